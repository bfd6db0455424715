"""Thousands of clients do the wrong thing, and no other client suffers from it."""
import contextlib
import os
import re
import signal
import socket
import struct
import threading
import time

import harness
from http_client import Raw, ServerCase, call, complete, request_bytes
from http_test import GREEDY, HEAD, PROMPT

LONG = {**GREEDY, "max_tokens": 450}
RESET = struct.pack("ii", 1, 0)


class Crowds(ServerCase):
    # Clients that hold others up would do so for longer than a test waits.
    PATIENT = ("--header-timeout", 2 * harness.GUARD, "--body-timeout", 2 * harness.GUARD)
    FLAGS = ("--kv-cache-memory", "16m", "--max-num-seqs", 16, *PATIENT)

    def stop(self):
        os.kill(self.server.pid, signal.SIGTERM)
        self.assertEqual(self.server.end(), 0, self.server.err.rest())

    def resident_kib(self) -> int:
        with open(f"/proc/{self.server.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

    def metric(self, name: str) -> float:
        text = call(self.server, "GET", "/metrics").body.decode()
        return float(re.search(rf"^{re.escape(name)}{{[^}}]*}} (\S+)$", text, re.MULTILINE)[1])

    def test_a_client_that_does_not_read_for_half_a_minute(self):
        """The server ends it and says so, before the kernel gives the connection up."""
        with Raw(self.server) as raw:
            raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            # About 1.5 MiB: too much for the kernel's 128 KiB, and less than the 4 MiB that may
            # wait in the server. A sanitizer's build needs longer than a second for them, so this
            # also shows that the limit counts from the first byte that had to wait.
            raw.send(request_bytes({"prompt": [PROMPT] * 16, "max_tokens": 60, "ignore_eos": True,
                                    "logprobs": 64, "stream": True}))
            harness.wait_until(lambda: "has not read for 30000 ms" in self.server.err.text(),
                               "the log to name the client", self.server.err.text)
        self.assertNotIn("does not read its answer", self.server.err.text())
        self.stop()

    def test_half_open_slow_and_deaf_clients(self):
        """2,000 connections without a whole request, and 20 that never read, beside a stream."""
        before = self.resident_kib()
        expected = complete(self.server, **LONG).json()["choices"][0]["text"]
        deaf = []
        for _ in range(20):
            raw = Raw(self.server, source="127.0.0.3")
            raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.send(request_bytes({"prompt": PROMPT, "max_tokens": 400, "ignore_eos": True,
                                    "logprobs": 20, "stream": True}))
            deaf.append(raw)
        stream = Raw(self.server, request_bytes({**LONG, "stream": True}))
        half = []
        for i in range(500):
            for data in (b"", b"GET /health HT", HEAD, HEAD + b"Content-Length: 9000000\r\n\r\n{"):
                # The server may close one to make room for the next.
                with contextlib.suppress(OSError):
                    half.append(Raw(self.server, data, f"127.0.1.{1 + i % 4}"))
            if i % 50 == 0:
                self.check_health()
        self.assertGreater(len(half), 1900)
        self.check_health()
        answer = complete(self.server, **LONG)
        self.assertEqual(answer.json()["choices"][0]["text"], expected)
        self.assertIn(b"data: [DONE]", stream.until(b"[DONE]"))
        if "SHOAL_TEST_SANITIZED" not in os.environ:  # a sanitizer keeps what was freed
            self.assertLess(self.resident_kib() - before, 128 << 10, "KiB more than before")
        for raw in [stream, *half, *deaf]:
            raw.socket.close()
        self.expect_nothing_left()
        self.stop()

    def check_health(self):
        self.assertEqual(call(self.server, "GET", "/health").status, 200)

    def expect_nothing_left(self):
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting",
                 "vllm:kv_cache_usage_perc")
        harness.wait_until(lambda: not any(self.metric(name) for name in names),
                           "no request, and every KV block free")

    def test_clients_that_leave(self):
        """1,000 of them: some in the queue, some in their prefill, some in their stream; each with
        FIN or with RST."""
        threads = [threading.Thread(target=self.leave, args=(part,)) for part in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.expect_nothing_left()
        whole = complete(self.server, prompt="a", max_tokens=500, ignore_eos=True)
        self.assertEqual(whole.json()["usage"]["completion_tokens"], 500)
        self.stop()

    def leave(self, part: int):
        """Fifty clients, one after the other. Twenty at once are more than the sixteen that run."""
        for i in range(50):
            prompt = [5] * 480 if i % 3 == 1 else PROMPT
            body = {**LONG, "prompt": prompt, "max_tokens": 20, "stream": i % 2 == 0}
            with contextlib.suppress(ConnectionError), Raw(self.server, request_bytes(body)) as raw:
                if i % 3 == 0:
                    raw.until(b"\r\n\r\n")
                elif i % 3 == 1:
                    time.sleep(0.001 * (part % 5))
                if (i + part) % 2:
                    raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


if __name__ == "__main__":
    harness.main()
