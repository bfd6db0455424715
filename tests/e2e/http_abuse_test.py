"""Requests that are cheap to send and were once dear to serve, or that took more than their own.

Each of them comes from an attack on the HTTP front.
"""
import os
import select
import signal
import socket
import tempfile
import threading
from pathlib import Path

import breadth
import harness
from http_client import Raw, ServerCase, call, complete, request_bytes
from http_test import GREEDY, HEAD

LONG = {**GREEDY, "max_tokens": 400}


class Abuse(ServerCase):
    FLAGS = ("--max-http-connections", 16)

    def test_settings_are_not_multiplied_by_prompts(self):
        """A list that each prompt would get a copy of is bounded before it is copied."""
        for field, value in (("stop_token_ids", [5] * 100_000), ("stop", ["a" * 100_000]),
                             ("stop", ["a"] * 1000)):
            answer = complete(self.server, prompt=["a"] * 1024, max_tokens=1, **{field: value})
            self.assertEqual((answer.status, answer.error["param"]), (400, field))
        self.check_peak(256)
        self.stop()

    def test_many_values_are_not_copied_before_they_are_refused(self):
        """Four million of them are a body of 16 MB, and 256 MB when they are parsed."""
        many = [""] * 4_000_000
        answer = complete(self.server, prompt="x", max_tokens=1, stop=many)
        self.assertEqual((answer.status, answer.error["param"]), (400, "stop"))
        answer = complete(self.server, prompt=many, max_tokens=1)
        self.assertEqual((answer.status, answer.error["param"]), (400, "prompt"))
        answer = call(self.server, "POST", "/v1/chat/completions", {
            "messages": [{"role": "user", "content": "x", "y": many}]})
        self.assertEqual(answer.status, 400, answer.body)
        self.check_peak(512)  # what SECURITY.md says
        self.stop()

    def check_peak(self, mebibytes: int):
        """Checks that the front has never had more memory than this."""
        with open(f"/proc/{self.server.pid}/status") as status:
            peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
        if not breadth.SANITIZED:
            self.assertLess(peak, mebibytes << 10, "KiB at most")

    def test_a_long_whole_answer_is_refused_or_made_in_parts(self):
        answer = complete(self.server, prompt=["a"] * 256, max_tokens=500, ignore_eos=True,
                          logprobs=64)
        self.assertEqual((answer.status, answer.error["param"]), (400, "logprobs"))
        tokens = 60 if breadth.SANITIZED else 500
        slowest, done, statuses = 0, threading.Event(), []

        def probe():
            nonlocal slowest
            while not done.is_set():
                before = harness.processor_time(self.server.pid)
                statuses.append(0)  # stays if the call raises, which ends this thread alone
                statuses[-1] = call(self.server, "GET", "/health").status
                slowest = max(slowest, harness.processor_time(self.server.pid) - before)
                done.wait(0.1)  # so that asking takes little of the machine
        before = harness.processor_time(self.server.pid)
        prober = threading.Thread(target=probe)
        prober.start()
        answer = complete(self.server, prompt=["a"] * 8, max_tokens=tokens, ignore_eos=True,
                          logprobs=64)
        done.set()
        prober.join()
        self.assertEqual(set(statuses), {200})
        self.assertEqual(len(answer.json()["choices"][7]["logprobs"]["tokens"]), tokens)
        whole = harness.processor_time(self.server.pid) - before
        self.assertLess(slowest, whole / 2, f"of {whole} s of work, done while /health waited")
        self.stop()

    def test_half_sent_bodies_make_room(self):
        """Connections whose bodies have stopped coming do not keep others out, and are told so."""
        half = [Raw(self.server, HEAD + b"Content-Length: 100\r\n\r\n{") for _ in range(16)]

        def takes_a_place() -> bool:
            for path in ("/health", "/metrics", "/none"):  # these need none
                self.assertIn(call(self.server, "GET", path).status, (200, 404))
            return complete(self.server, prompt="a", max_tokens=1).status == 200
        harness.wait_until(takes_a_place, "a place")
        told, _, _ = select.select([raw.socket for raw in half], [], [], harness.GUARD)
        self.assertEqual([raw.status() for raw in half if raw.socket in told], [408])
        for raw in half:
            raw.socket.close()
        self.stop()

    def test_a_burst_of_clients_at_the_limit(self):
        """Each request that has come is answered. Clients that send none keep nobody out."""
        with harness.planted("0:step-20:stop"):
            server = self.serve(harness.DEMO, "-tp", 1, "--max-http-connections", 2,
                                "--step-timeout", 5 * harness.GUARD)
        server.wait_ready()
        with Raw(server, request_bytes({**LONG, "stream": True})) as busy:
            busy.until(b"data: ")
            rank = harness.stopped_rank(server.pid)  # so that no answer ends and leaves a place
            request = request_bytes({"prompt": "a", "max_tokens": 1}, "/v1/completions", "1.1",
                                    "Connection: close")
            with harness.stopped(server.pid):  # so that all wait in the kernel, with their requests
                first, *others = [Raw(server, request) for _ in range(50)]
            for raw in others:
                self.assertEqual(raw.status(), 503, raw.data)
                for part in (b"\r\nRetry-After: ", b"\r\nConnection: close", b"TOO_MANY_CONNECTIONS"):
                    self.assertIn(part, raw.rest())
                raw.socket.close()
            silent = [Raw(server) for _ in range(50)]
            self.assertEqual(call(server, "GET", "/health").status, 200)
            os.kill(rank, signal.SIGCONT)
            self.assertEqual(first.status(), 200, first.data)
        for raw in (first, *silent):
            raw.socket.close()
        server.kill()
        self.stop()

    def test_a_unix_socket_takes_no_file_away(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "thesis"
            path.write_text("years of work")
            refused = harness.run("serve", harness.DEMO, "--grpc-port", 0, "--uds", path,
                                  code=harness.USAGE)
            self.assertIn(b"is no socket", refused.stderr)
            self.assertEqual(path.read_text(), "years of work")
            stale = Path(folder) / "stale"
            with socket.socket(socket.AF_UNIX) as left:
                left.bind(str(stale))
            server = self.serve(harness.DEMO, "-tp", 1, "--uds", stale)
            server.wait_ready()
            busy = harness.run("serve", harness.DEMO, "--grpc-port", 0, "--uds", stale,
                               code=harness.UNAVAILABLE)
            self.assertIn(b"another server listens", busy.stderr)
            server.kill()
        self.stop()

    def test_reflection_without_a_key(self):
        """It is not there if there are keys, and a call to it disturbs nobody."""
        try:
            import grpc
        except ImportError:
            self.skipTest("this Python has no grpc (Debian: python3-grpcio)")
        server = self.serve(harness.DEMO, "-tp", 1, "--api-key", "k")
        server.wait_ready()
        for version in ("v1", "v1alpha"):
            with grpc.insecure_channel(server.fields["grpc"]) as channel:
                method = channel.stream_stream(
                    f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo")
                with self.assertRaises(grpc.RpcError) as refused:
                    list(method(iter([b"\x3a\x00"]), timeout=harness.GUARD))
                self.assertEqual(refused.exception.code(), grpc.StatusCode.UNIMPLEMENTED)
        self.assertEqual(call(server, "GET", "/health").status, 200)
        server.kill()
        self.stop()

    def test_ranks_that_are_lost_for_good(self):
        """A client may find another server, so that it gets 503 and not 500."""
        with harness.planted("0:step-9:stop"):  # the request is there then, and not over
            server = self.serve(harness.DEMO, "-tp", 2, "--max-restarts", 0, "--step-timeout",
                                5 * harness.GUARD)
        server.wait_ready()
        with Raw(server, request_bytes({**LONG, "max_tokens": 500})) as raw:
            os.kill(harness.stopped_rank(server.pid), signal.SIGKILL)
            self.assertEqual(raw.status(), 503, raw.data)
            self.assertIn(b"Retry-After", raw.until(b"\r\n\r\n"))
        self.assertEqual(server.end(), harness.WORKER_DIED)
        self.stop()

    def test_what_other_clients_write_otherwise(self):
        body = b'{"prompt":"a"}'
        for data in (b"GET http://localhost/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
                     b"\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
                     b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: Application/JSON;"
                     b" charset=utf-8\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)):
            with Raw(self.server, data) as raw:
                self.assertEqual(raw.status(), 200, raw.data)
        self.stop()


if __name__ == "__main__":
    harness.main()
