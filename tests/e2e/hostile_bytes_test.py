"""Bytes that no library would send cost the server little, and nobody else an answer."""
import gzip
import sys
import threading
import zlib
from pathlib import Path

try:
    import grpc
except ImportError:
    print("skipped: this Python has no grpc (Debian: python3-grpcio)")
    sys.exit(77)

import harness
import http2

MEBIBYTE = 1 << 20
GENERATE = "/openengine.v1.Inference/Generate"
CONTROL = "/openengine.v1.Control/Health"
HEALTH = "/grpc.health.v1.Health/Check"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
UNIMPLEMENTED = b"grpc-status\x0212"


def memory(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {name}")


class Case(harness.TestCase):
    def setUp(self):
        super().setUp()
        self.server = self.serve(harness.DEMO, "-tp", 1)
        self.address = self.server.wait_ready()["grpc"]
        self.answers("before")
        self.before = memory(self.server.pid, "VmRSS")

    def connect(self) -> http2.Connection:
        connection = http2.Connection(self.address)
        self.addCleanup(connection.close)
        return connection

    def answers(self, what: str):
        """Another client is served."""
        channel = grpc.insecure_channel(self.address, options=[
            ("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)])
        with channel:
            generate = channel.unary_stream(GENERATE)
            prompt = b"In the beginning"
            request = bytes([0x1a, len(prompt)]) + prompt + b"\x32\x02\x08\x04"
            self.assertTrue(list(generate(request, timeout=harness.GUARD)), what)

    def grown(self) -> int:
        return memory(self.server.pid, "VmHWM") - self.before


class Compressed(Case):
    """Nothing is inflated, whatever says that it is compressed."""

    def expect_cheap(self, messages: dict[str, bytes], paths: list[str], connections: int,
                     compressed: bool = True) -> list[bytes]:
        """Sends each message (by its grpc-encoding) to each path, all at once."""
        calls = []
        everybody = [self.connect() for _ in range(connections)]
        senders = []
        for encoding, data in messages.items():
            for path in paths:
                connection = everybody[len(calls) % connections]
                headers = {"grpc_encoding": encoding} if encoding else {}
                stream = connection.call(path, **headers)
                calls.append((connection, stream))
                senders.append(threading.Thread(
                    target=connection.send,
                    args=(stream, http2.message(data, compressed), True)))
        for sender in senders:
            sender.start()
        for connection, stream in calls:
            connection.wait_over(stream)
        for sender in senders:
            sender.join()
        self.answers("afterwards")
        self.assertNotIn("ERROR", self.server.err.text(), "what a client does is no error of ours")
        return [connection.answers[stream] for connection, stream in calls]

    def test_a_hundred_large_ones_at_once_are_refused_unread(self):
        noise = (b"".join(i.to_bytes(3, "big") for i in range(6 * MEBIBYTE)))[:16 * MEBIBYTE - 64]
        stored = {"gzip": gzip.compress(noise, 0)[:16 * MEBIBYTE],
                  "deflate": zlib.compress(noise, 0)[:16 * MEBIBYTE]}
        paths = [GENERATE, CONTROL, HEALTH, REFLECTION, GENERATE] * 10
        refused = 0
        for answer in self.expect_cheap(stored, paths, 10):
            self.assertTrue(not answer or b"disabled" in answer, answer[:300])
            refused += b"disabled" in answer
        self.assertGreater(refused, 50, "most of them hear why")
        self.assertLess(self.grown(), 64 * MEBIBYTE)

    def test_bombs_do_not_go_off(self):
        zeros = bytes(64 * MEBIBYTE)
        bombs = {"gzip": gzip.compress(zeros), "deflate": zlib.compress(zeros),
                 "br": gzip.compress(zeros), "": gzip.compress(zeros)}
        paths = [GENERATE, CONTROL, HEALTH, REFLECTION] * 6
        for answer in self.expect_cheap(bombs, paths, 10):
            self.assertNotIn(b"larger than max", answer)
        self.assertLess(self.grown(), 64 * MEBIBYTE)

    def test_a_second_message_of_a_stream_is_not_inflated(self):
        connection = self.connect()
        stream = connection.call(REFLECTION)
        connection.send(stream, http2.message(b"\x3a\x00"))
        connection.wait_answer(stream)
        connection.send(stream, http2.message(gzip.compress(bytes(64 * MEBIBYTE)), True), True)
        connection.wait_over(stream)
        self.answers("afterwards")
        self.assertLess(self.grown(), 32 * MEBIBYTE)

    def test_the_refusal_says_why(self):
        connection = self.connect()
        stream = connection.call(CONTROL, grpc_encoding="gzip")
        connection.send(stream, http2.message(gzip.compress(b""), True), True)
        connection.wait_over(stream)
        self.assertIn(UNIMPLEMENTED, connection.answers[stream])
        self.assertIn(b"Compression algorithm 'gzip' is disabled", connection.answers[stream])


class EndlessHeaders(Case):
    """gRPC 1.51 keeps a block of headers without end (CVE-2023-33953)."""

    KINDS = {
        # Headers without number, a value without end, and a number without end.
        "many": (b"", http2.header("name", "value") * (http2.MAX_FRAME // 12)),
        "string": (b"\0" + http2.integer(4, 7) + b"name" + http2.integer(1 << 30, 7),
                   b"v" * http2.MAX_FRAME),
        "varint": (b"\0\x7f", b"\x80" * http2.MAX_FRAME),
    }

    def send_endlessly(self, connection: http2.Connection, kind: str):
        first, rest = self.KINDS[kind]
        connection.last_stream += 2
        try:
            connection.frame(http2.HEADERS, 0, connection.last_stream,
                             http2.call_headers(GENERATE) + first)
            while not connection.closed:
                connection.frame(http2.CONTINUATION, 0, connection.last_stream, rest)
        except OSError:
            pass  # it was closed, as it should be

    def test_eight_connections_cost_little_and_are_closed(self):
        attackers = [(self.connect(), kind) for kind in ("many", "string", "varint", "many") * 2]
        threads = [threading.Thread(target=self.send_endlessly, args=one) for one in attackers]
        for thread in threads:
            thread.start()
        for _ in range(5):
            self.answers("beside the attack")
        for connection, _ in attackers:
            connection.wait_closed()
            connection.abandon()  # what it still sends may wait for a peer that is gone
        for thread in threads:
            thread.join()
        # On a quiet machine it stays below 128 MiB. The watch looks every 50 ms, and later on a busy
        # one.
        self.assertLess(memory(self.server.pid, "VmHWM"), 256 * MEBIBYTE)
        self.answers("afterwards")
        self.server.wait_logged("in which no call began and no message ended")


class Peak(Case):
    def test_memory_is_given_back_after_large_messages(self):
        channel = grpc.insecure_channel(self.address, options=[("grpc.enable_http_proxy", 0)])
        self.addCleanup(channel.close)
        health = channel.unary_unary(CONTROL)
        calls = [health.future(bytes(15 * MEBIBYTE), timeout=harness.GUARD) for _ in range(40)]
        for call in calls:
            self.assertIn(call.code(), (grpc.StatusCode.INVALID_ARGUMENT,
                                        grpc.StatusCode.RESOURCE_EXHAUSTED,
                                        grpc.StatusCode.UNAVAILABLE))
        harness.wait_until(
            lambda: memory(self.server.pid, "VmRSS") < self.before + 32 * MEBIBYTE,
            "the memory given back")


if __name__ == "__main__":
    harness.main()
