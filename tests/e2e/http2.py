"""A client of HTTP/2 that sends whatever a test wants, also what no library would.

It keeps to the server's windows, so that large messages can be sent on many streams at once.
"""
import contextlib
import socket
import struct
import threading

import harness

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM = ACK = 1
END_HEADERS = 4
INITIAL_WINDOW, MAX_FRAME = 4, 16384


def integer(value: int, prefix_bits: int) -> bytes:
    """A number as HPACK writes it, behind bits that are all zero."""
    most = (1 << prefix_bits) - 1
    if value < most:
        return bytes([value])
    out, value = bytes([most]), value - most
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def header(name: str, value: str) -> bytes:
    """A header as a literal that enters no table."""
    return b"\0" + b"".join(integer(len(text), 7) + text.encode() for text in (name, value))


def message(data: bytes, compressed: bool = False) -> bytes:
    return struct.pack(">BI", compressed, len(data)) + data


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return (struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) +
            payload)


class Connection:
    """Thread-safe, but for the sends on one stream.

    replies: whether it acknowledges and opens windows by itself, as a client should. Without that
    nothing is sent but what the test asks for.
    """

    def __init__(self, address: str, replies: bool = True):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=harness.GUARD)
        self.sending = threading.Lock()
        self.changed = threading.Condition()
        self.windows = {0: 65535}  # by stream, 0 being the connection
        self.first_window = 65535
        self.answers: dict[int, bytes] = {}  # of each stream, all blocks of headers and data
        self.over: set[int] = set()          # streams that have ended
        self.closed = False
        self.last_stream = -1
        self.replies = replies
        self.socket.sendall(PREFACE)
        self.frame(SETTINGS, 0, 0)
        threading.Thread(target=self._read, daemon=True).start()

    def close(self):
        self.socket.close()

    def abandon(self):
        """Wakes whoever sends on it."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def frame(self, kind: int, flags: int, stream: int, payload: bytes = b""):
        with self.sending:
            self.socket.sendall(frame(kind, flags, stream, payload))

    def call(self, path: str, **headers: str) -> int:
        """Begins a call of a method, and returns its stream. `_` in a header's name stands for -."""
        self.last_stream += 2
        stream = self.last_stream
        with self.changed:
            self.windows[stream] = self.first_window
            self.answers[stream] = b""
        self.frame(HEADERS, END_HEADERS, stream, call_headers(path, **headers))
        return stream

    def send(self, stream: int, data: bytes, end: bool = False):
        """Sends as the windows allow, and stops when the stream has ended."""
        view = memoryview(data)
        while view:
            with self.changed:
                ok = self.changed.wait_for(
                    lambda: self.is_over(stream) or min(self.windows[0], self.windows[stream]) > 0,
                    harness.GUARD)
                assert ok, "the server takes no more"
                if self.is_over(stream):
                    return
                count = min(len(view), MAX_FRAME, self.windows[0], self.windows[stream])
                self.windows[0] -= count
                self.windows[stream] -= count
            try:
                self.frame(DATA, END_STREAM if end and count == len(view) else 0, stream,
                           bytes(view[:count]))
            except OSError:
                return  # the server has closed the connection
            view = view[count:]

    def is_over(self, stream: int) -> bool:
        return self.closed or stream in self.over

    def wait_answer(self, stream: int):
        """Waits for the first bytes of the answer."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.answers[stream], harness.GUARD), "no answer"

    def wait_over(self, stream: int):
        with self.changed:
            assert self.changed.wait_for(lambda: self.is_over(stream), harness.GUARD), "no end"

    def wait_closed(self):
        with self.changed:
            assert self.changed.wait_for(lambda: self.closed, harness.GUARD), "still open"

    def _exactly(self, count: int) -> bytes:
        out = b""
        while len(out) < count:
            part = self.socket.recv(count - len(out))
            if not part:
                raise EOFError
            out += part
        return out

    def _read(self):
        try:
            while True:
                head = self._exactly(9)
                payload = self._exactly(int.from_bytes(head[:3], "big"))
                self._take(head[3], head[4], int.from_bytes(head[5:], "big"), payload)
        except (OSError, EOFError):
            pass
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def _reply(self, kind: int, flags: int, stream: int, payload: bytes):
        if kind in (SETTINGS, PING) and not flags & ACK:
            self.frame(kind, ACK, 0, payload if kind == PING else b"")
        if kind == DATA and payload:
            for to in (0, stream):
                self.frame(WINDOW_UPDATE, 0, to, struct.pack(">I", len(payload)))

    def _take(self, kind: int, flags: int, stream: int, payload: bytes):
        if self.replies:
            self._reply(kind, flags, stream, payload)
        with self.changed:
            if kind == SETTINGS and not flags & ACK:
                settings = dict(struct.unpack(">HI", payload[i:i + 6])
                                for i in range(0, len(payload), 6))
                wider = settings.get(INITIAL_WINDOW, self.first_window) - self.first_window
                self.first_window += wider
                for one in self.windows.keys() - {0}:
                    self.windows[one] += wider
            if kind == WINDOW_UPDATE and stream in self.windows:
                self.windows[stream] += int.from_bytes(payload, "big")
            if kind in (HEADERS, CONTINUATION, DATA) and stream in self.answers:
                self.answers[stream] += payload
            if kind == RST_STREAM or (kind in (HEADERS, DATA) and flags & END_STREAM):
                self.over.add(stream)
            self.changed.notify_all()


def call_headers(path: str, **headers: str) -> bytes:
    fixed = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "shoal",
             "content-type": "application/grpc", "te": "trailers"}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return b"".join(header(name, value) for name, value in (fixed | named).items())
