"""A client of the HTTP front for tests: requests as objects or as bytes, answers as they come."""
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import sys
from dataclasses import dataclass, field

import certificates
import harness


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self):
        return json.loads(self.body)

    @property
    def error(self) -> dict:
        return self.json()["error"]


def address_of(server: harness.Server, front: str = "http") -> tuple[str, int]:
    host, port = server.fields[front].rsplit(":", 1)
    return host.strip("[]"), int(port)


def connect(server: harness.Server, source: str | None = None):
    """A connection to the server, encrypted if the server is."""
    plain = socket.create_connection(address_of(server), harness.GUARD, source and (source, 0))
    if server.tls is None:
        return plain
    try:
        return server.tls.wrap_socket(plain, server_hostname="localhost")
    except BaseException:
        plain.close()
        raise


def call(server: harness.Server, method: str, path: str, body=None, headers=None) -> Answer:
    """Sends a request, with an object as JSON, and reads the whole answer."""
    connection = http.client.HTTPConnection(*address_of(server))
    connection.sock = connect(server)
    with contextlib.closing(connection):
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, data,
                           {"Content-Type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        names = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, names, answer.read())


def sum_of_metrics(server: harness.Server, names: str) -> int:
    """The sum over the metrics whose names match, and over their labels."""
    text = call(server, "GET", "/metrics").body.decode()
    return sum(int(float(count)) for count in re.findall(
        rf"^(?:{names})(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE))


def open_requests(server: harness.Server) -> int:
    """How many requests run or wait, as the metrics say."""
    return sum_of_metrics(server, "vllm:num_requests_(?:running|waiting)")


def complete(server: harness.Server, headers=None, **fields) -> Answer:
    return call(server, "POST", "/v1/completions", fields, headers)


class Raw:
    """A connection that sends bytes as they are."""

    def __init__(self, server: harness.Server, data: bytes = b"", source: str = "127.0.0.1"):
        self.socket = connect(server, source=source)
        self.data = b""
        if data:
            self.socket.sendall(data)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, data: bytes):
        self.socket.sendall(data)

    def until(self, mark: bytes) -> bytes:
        """Reads up to the mark, or to the end of the connection."""
        while mark not in self.data:
            block = self.socket.recv(1 << 16)
            if not block:
                break
            self.data += block
        return self.data

    def rest(self) -> bytes:
        """Reads to the end. A reset counts as the end."""
        with contextlib.suppress(ConnectionResetError):
            while block := self.socket.recv(1 << 16):
                self.data += block
        return self.data

    def status(self) -> int:
        """The status of the answer; 0 if the connection ends without one."""
        line = self.until(b"\r\n").split(b"\r\n")[0].split()
        return int(line[1]) if len(line) > 1 else 0


def request_bytes(body: dict, path: str = "/v1/completions", version: str = "1.1",
                  *headers: str) -> bytes:
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/{version}", "Host: localhost", "Content-Type: application/json",
             f"Content-Length: {len(data)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


@dataclass
class Stream:
    """The events of a stream, as objects; and whether it ended with [DONE]."""
    events: list = field(default_factory=list)
    comments: int = 0
    done: bool = False

    @staticmethod
    def parse(body: bytes) -> "Stream":
        stream = Stream()
        for part in body.decode().split("\n\n"):
            if part.startswith(":"):
                stream.comments += 1
            elif part == "data: [DONE]":
                stream.done = True
            elif part:
                assert part.startswith("data: ") and not stream.done, part
                stream.events.append(json.loads(part[6:]))
        return stream

    def text(self, index: int = 0) -> str:
        return "".join(choice.get("text", "") for event in self.events
                       for choice in event.get("choices", []) if choice["index"] == index)

    def ids(self, index: int = 0) -> list[int]:
        return [one for event in self.events for choice in event.get("choices", [])
                if choice["index"] == index for one in choice["token_ids"]]

    def finish(self) -> list:
        return [choice["finish_reason"] for event in self.events
                for choice in event.get("choices", []) if choice["finish_reason"]]


AUTHORITY: certificates.Authority | None = None


def main():
    """harness.main. With the argument `tls` all servers and clients of ServerCase speak TLS."""
    global AUTHORITY
    if "tls" in sys.argv:
        AUTHORITY = certificates.Authority()
        AUTHORITY.server = AUTHORITY.issue("server")
        sys.argv.remove("tls")
    harness.main()


class ServerCase(harness.TestCase):
    """Two ranks serve the bundled model for all tests of a class."""

    FLAGS: tuple = ()

    def serve(self, model, *flags, **popen) -> harness.Server:
        if AUTHORITY is None:
            return super().serve(model, *flags, **popen)
        server = super().serve(model, *AUTHORITY.server.serve_flags(), *flags, **popen)
        server.tls = AUTHORITY.context()
        return server

    def setUp(self):
        super().setUp()
        self.server = self.serve(harness.DEMO, "-tp", 2, *self.FLAGS)
        self.server.wait_ready()

    def stop(self):
        os.kill(self.server.pid, signal.SIGTERM)
        self.assertEqual(self.server.end(), 0, self.server.err.rest())

    def wait_for_log(self, pattern: str):
        harness.wait_until(lambda: re.search(pattern, self.server.err.text()),
                           f"{pattern!r} in the log", self.server.err.text)
