"""How calls over HTTP end: clients that leave or do not read, ranks that die, and a server that stops.

Everything is real: the sockets, the signals, the server and its ranks.
"""
import os
import signal
import socket
import struct
import threading

import harness
import http_client
from http_client import Raw, ServerCase, Stream, call, complete, open_requests, request_bytes
from http_test import GREEDY, HEAD, PROMPT

LONG = {**GREEDY, "max_tokens": 400}
# A rank that a test stops in a step is not taken for one that hangs.
PATIENT_STEPS = ("--step-timeout", 5 * harness.GUARD)


class Waiting(ServerCase):
    """Requests whose turn does not come in time."""

    FLAGS = ("--max-num-seqs", 1, "--max-queue-time", 1, *PATIENT_STEPS)

    def setUp(self):
        with harness.planted("0:step-20:stop"):  # in the middle of the first answer
            super().setUp()

    def test_a_stream_that_has_not_begun_ends_with_a_status(self):
        """Also that of a chat, whose first event would say nothing but a role."""
        with Raw(self.server, request_bytes({**LONG, "stream": True})) as busy:
            rank = harness.stopped_rank(self.server.pid)
            for path, prompt in (("/v1/completions", {"prompt": "a"}),
                                 ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})):
                answer = call(self.server, "POST", path, {**prompt, "max_tokens": 4, "stream": True})
                self.assertEqual((answer.status, answer.error["code"]), (429, "rate_limit_exceeded"),
                                 answer.body)
            os.kill(rank, signal.SIGCONT)
            self.assertIn(b"data: [DONE]", busy.until(b"data: [DONE]"))
        self.stop()


class WithoutRoom(ServerCase):
    """Requests that wait until there is memory for them."""

    FLAGS = ("--max-request-memory", "32m")

    HALF = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Expect: 100-continue\r\nContent-Length: 16000000\r\n\r\n")

    def test_a_deadline_that_passes_before_the_body_is_read(self):
        with Raw(self.server, self.HALF) as first:
            self.assertIn(b"100 Continue", first.until(b"\r\n\r\n"))
            # The last place is for other clients.
            second = self.HALF.replace(b"Expect", b"x-envoy-expected-rq-timeout-ms: 500\r\nExpect")
            with Raw(self.server, second) as waits:
                self.assertIn(b" 504 Gateway Timeout", waits.until(b"\r\n\r\n"))
            # The first one was not refused for the second: its body is still waited for, and read.
            body = b'{"prompt": "a", "max_tokens": 1}'
            first.data = b""
            first.send(body + b" " * (16_000_000 - len(body)))
            self.assertEqual(first.status(), 200, first.data)
        self.stop()

    def test_a_drain_tells_those_whose_body_is_on_its_way_and_those_without_room(self):
        """At once, although an answer is still running, which ends as if nothing had happened."""
        with harness.planted("0:step-20:stop"):
            server = self.serve(harness.DEMO, "-tp", 1, *self.FLAGS, *PATIENT_STEPS, "--shutdown-timeout",
                                5 * harness.GUARD)
        server.wait_ready()
        # Of another client, which leaves all of the room for one request to those that come then.
        with Raw(server, request_bytes({**LONG, "stream": True}), source="127.0.0.2") as busy:
            rank = harness.stopped_rank(server.pid)  # in a step
            with Raw(server, self.HALF) as arrives:
                self.assertIn(b"100 Continue", arrives.until(b"\r\n\r\n"))
                with Raw(server, self.HALF) as waits:
                    for _ in range(3):  # one thread does all, in turns, and has read the second head then
                        self.assertEqual(call(server, "GET", "/health").status, 200)
                    os.kill(server.pid, signal.SIGTERM)
                    for raw in (arrives, waits):
                        raw.data = b""
                        self.assertIn(b" 503 Service Unavailable", raw.until(b"\r\n\r\n"))
                        self.assertIn(b'"code":"DRAINING"', raw.rest())
            os.kill(rank, signal.SIGCONT)
            self.assertIn(b"data: [DONE]", busy.until(b"data: [DONE]"))
        self.assertEqual(server.end(), 0, server.err.rest())
        self.stop()


class Ends(ServerCase):
    """Clients that leave or do not read, ranks that die, and the end of the server."""

    # Clients that hold others up would do so for longer than a test waits.
    PATIENT = ("--header-timeout", 2 * harness.GUARD, "--body-timeout", 2 * harness.GUARD)
    FLAGS = ("--kv-cache-memory", "16m", *PATIENT)

    def test_clients_that_leave(self):
        """A hundred clients leave before, in and after their answers, with FIN and with RST."""
        for i in range(100):
            with Raw(self.server, request_bytes({**LONG, "stream": i % 2 == 0})) as raw:
                if i % 4 == 0:
                    raw.until(b"data: ")
                if i % 3 == 0:
                    raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # A request that needs the whole cache gets it, so that nothing of the others is left.
        answer = complete(self.server, prompt="a", max_tokens=500, ignore_eos=True)
        self.assertEqual(answer.json()["usage"]["completion_tokens"], 500)
        self.stop()

    def test_a_lost_rank(self):
        """Streams of a rank that is killed go on as if nothing had happened."""
        expected = complete(self.server, **LONG).json()["choices"][0]["text"]
        answers = [None] * 8

        def ask(i: int):
            answers[i] = Stream.parse(complete(self.server, **LONG, stream=True).body)
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(answers))]
        for thread in threads:
            thread.start()
        harness.wait_until(lambda: open_requests(self.server), "a request that runs")
        os.kill(self.server.workers(2)[1], signal.SIGKILL)
        for thread in threads:
            thread.join()
        self.assertEqual([(a.text(), a.finish(), a.done) for a in answers],
                         [(expected, ["length"], True)] * len(answers))
        self.assertEqual(call(self.server, "GET", "/health").status, 200)
        self.stop()

    def test_half_open_connections_and_slow_senders(self):
        """They cost nobody else anything: health answers, and a stream goes on."""
        stream = Raw(self.server, request_bytes({**LONG, "stream": True}))
        stream.until(b"data: ")
        waiting = [Raw(self.server, data, "127.0.0.2") for data in
                   (b"", b"GET /health HT", HEAD, HEAD + b"Content-Length: 9000000\r\n\r\n{") * 300]
        self.assertEqual(call(self.server, "GET", "/health").status, 200)
        self.assertEqual(complete(self.server, prompt="a", max_tokens=1).status, 200)
        stream.until(b"[DONE]")
        self.assertIn(b"data: [DONE]", stream.data)
        for raw in [stream, *waiting]:
            raw.socket.close()
        self.stop()

    def test_a_client_that_does_not_read(self):
        """It is closed when a few MiB wait for it, or after 30 s, and its requests end."""
        if "SHOAL_TEST_SANITIZED" in os.environ:
            self.skipTest("a sanitizer keeps memory that was freed, and is slow")
        before = self.resident_kib()
        with Raw(self.server) as raw:
            raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.send(request_bytes({"prompt": [PROMPT] * 64, "max_tokens": 400, "ignore_eos": True,
                                    "logprobs": 64, "stream": True}))
            # A busy machine may need longer for those MiB than the 30 s.
            self.wait_for_log("does not read its answer|has not read for 30000 ms")
            self.assertEqual(complete(self.server, prompt="a", max_tokens=1).status, 200)
        self.assertLess(self.resident_kib() - before, 64 << 10, "KiB more than before")
        self.stop()

    def serve_stopping_at(self, step: int, *flags) -> harness.Server:
        """A server with one rank, which stops itself in that step."""
        with harness.planted(f"0:step-{step}:stop"):
            server = self.serve(harness.DEMO, "-tp", 1, *PATIENT_STEPS, *flags)
        server.wait_ready()
        return server

    def resident_kib(self) -> int:
        with open(f"/proc/{self.server.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

    def test_drain(self):
        server = self.serve(harness.DEMO, "-tp", 1, "--shutdown-grace", 5 * harness.GUARD)
        server.wait_ready()
        with Raw(server, request_bytes({**LONG, "stream": True})) as running:
            running.until(b"data: ")
            os.kill(server.pid, signal.SIGTERM)
            harness.wait_until(lambda: call(server, "GET", "/health").status == 503, "red health")
            self.assertEqual(call(server, "GET", "/health").json()["status"], "draining")
            self.assertEqual(call(server, "GET", "/health/live").status, 200, "it is not dead")
            self.assertEqual(complete(server, prompt="a", max_tokens=1).status, 200)
            self.assertIn(b"[DONE]", running.until(b"[DONE]"))
        os.kill(server.pid, signal.SIGTERM)  # a second one ends the time of grace
        self.assertEqual(server.end(), 0, server.err.rest())
        self.stop()

    def test_a_drain_that_takes_too_long(self):
        server = self.serve_stopping_at(20, "--shutdown-timeout", "0.2", "--max-model-len", 512)
        with Raw(server, request_bytes({**LONG, "stream": True})) as running:
            running.until(b"data: ")
            harness.stopped_rank(server.pid)  # so that the answer cannot end by itself
            os.kill(server.pid, signal.SIGTERM)
            tail = running.rest()
            self.assertIn(b'"code":"DRAINING"', tail)
            self.assertTrue(tail.rstrip().endswith(b"data: [DONE]\n\n\r\n0") or b"data: [DONE]" in tail)
        self.assertEqual(server.end(), 0, server.err.rest())
        self.stop()

    def begun_stream(self, server: harness.Server) -> Raw:
        """A connection that is not idle for the server, which has read the head of its request."""
        head, end, body = request_bytes({**LONG, "stream": True}, "/v1/completions", "1.1",
                                        "Expect: 100-continue").partition(b"\r\n\r\n")
        raw = Raw(server, head + end)
        self.assertIn(b"100 Continue", raw.until(end))
        raw.send(body)
        return raw

    def test_too_many_connections(self):
        server = self.serve_stopping_at(20, "--max-http-connections", 4)
        busy = [self.begun_stream(server) for _ in range(4)]
        rank = harness.stopped_rank(server.pid)  # in a step, so that no answer ends and leaves room
        harness.wait_until(lambda: open_requests(server) == 4, "four requests")
        self.assertEqual(call(server, "GET", "/health").status, 200)
        refused = complete(server, prompt="a", max_tokens=1)
        self.assertEqual((refused.status, refused.error["code"]), (503, "TOO_MANY_CONNECTIONS"))
        self.assertIn("retry-after", refused.headers)
        os.kill(rank, signal.SIGCONT)
        for raw in busy:
            self.assertIn(b"[DONE]", raw.until(b"[DONE]"))
        self.assertEqual(complete(server, prompt="a", max_tokens=1).status, 200)
        for raw in busy:
            raw.socket.close()
        server.kill()
        self.stop()


if __name__ == "__main__":
    http_client.main()
