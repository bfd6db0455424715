"""Clients that take every descriptor cannot take what the server and its ranks need.

The limit is real (RLIMIT_NOFILE), and so are the connections.
"""
import os
import re
import resource
import signal
import socket
import sys
import threading
import time
import unittest

try:
    import grpc
except ImportError:
    print("skipped: this Python has no grpc (Debian: python3-grpcio)")
    sys.exit(77)

import harness

LIMIT, IDLE, RANKS = 72, 90, 2
SERVING = b"\x08\x01"  # grpc.health.v1: the status SERVING


class Descriptors(harness.TestCase):
    def setUp(self):
        super().setUp()
        self.server = self.serve(
            harness.DEMO, "-tp", RANKS,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT)))
        self.address = self.server.wait_ready()["grpc"]

    def idle_connections(self) -> list[socket.socket]:
        host, port = self.address.rsplit(":", 1)
        found = []
        for _ in range(IDLE):
            found.append(socket.create_connection((host, int(port)), timeout=harness.GUARD))
            self.addCleanup(found[-1].close)
        return found

    def channel(self) -> grpc.Channel:
        channel = grpc.insecure_channel(self.address, options=[
            ("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)])
        self.addCleanup(channel.close)
        return channel

    def check_health(self):
        check = self.channel().unary_unary("/grpc.health.v1.Health/Check")
        self.assertEqual(check(b"", timeout=harness.GUARD, wait_for_ready=True), SERVING)

    def check_client(self):
        client = self.server.client("--prompt", "In the beginning", "--max-tokens", 4)
        self.addCleanup(lambda: client.poll() is None and client.kill())
        out, err = client.communicate()
        self.assertEqual(client.returncode, 0, err.decode())
        self.assertTrue(out.strip())

    def open_descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.server.pid}/fd"))

    @unittest.skipIf("SHOAL_TEST_SANITIZED" in os.environ,
                     "UndefinedBehaviorSanitizer looks at objects through descriptors of its own")
    def test_a_limit_that_is_enough_to_start_is_enough_to_serve(self):
        self.server.process.terminate()
        self.server.end()
        for limit in range(18, LIMIT, 2):
            self.server = self.serve(
                harness.DEMO, "-tp", RANKS,
                preexec_fn=lambda limit=limit: resource.setrlimit(resource.RLIMIT_NOFILE,
                                                                  (limit, limit)))
            try:
                self.address = self.server.wait_ready()["grpc"]
                break
            except AssertionError:  # too little to start
                self.assertEqual(self.server.end(), harness.UNAVAILABLE, self.server.err.text())
        self.check_client()

    def test_idle_connections_that_are_closed_again_leave_no_trace(self):
        before = self.open_descriptors()
        for connection in self.idle_connections():
            connection.close()
        self.check_client()
        harness.wait_until(lambda: self.open_descriptors() <= before + 1,
                           "the descriptors given back")

    def test_beside_idle_connections_probes_are_answered_and_ranks_recover(self):
        self.idle_connections()
        self.check_health()
        self.assertLess(self.open_descriptors(), LIMIT - 4 * RANKS)
        os.kill(self.server.workers(RANKS)[1], signal.SIGKILL)
        harness.wait_until(lambda: "the ranks run again over" in self.server.err.text(),
                           "the ranks again")
        self.check_health()
        self.check_client()
        rungs = re.findall(r"the ranks run again over (\S+) after", self.server.err.text())
        self.assertEqual(set(rungs), {self.server.fields["transport"]}, "the rung is kept")

    def watch(self) -> tuple[grpc.Call, bool]:
        """A call that lasts, on a connection of its own, and whether it was answered at once."""
        channel = self.channel()
        call = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", wait_for_ready=True)
        answer = []

        def read():
            try:
                answer.extend(call)
            except grpc.RpcError:
                pass
        first = threading.Event()
        call.add_callback(first.set)
        threading.Thread(target=read, daemon=True).start()
        end = time.monotonic() + 1.5
        while not answer and not first.is_set() and time.monotonic() < end:
            time.sleep(0.002)
        if not answer and not first.is_set():
            channel.close()
        return call, bool(answer)

    def live_calls(self) -> list[grpc.Call]:
        """As many as are answered at once."""
        calls = []
        while len(calls) < LIMIT:
            call, answered = self.watch()
            if not answered:
                break
            calls.append(call)
        return calls

    def test_beside_live_calls_only_probes_get_in(self):
        calls = self.live_calls()
        for _ in range(2):
            if len(calls) <= 16:  # the machine stood still, and an answer came too late
                self.server.kill()
                self.setUp()
                calls = self.live_calls()
        self.assertGreater(len(calls), 16)
        self.assertLess(len(calls), LIMIT - 4 * RANKS)
        self.check_health()
        generate = self.channel().unary_stream("/openengine.v1.Inference/Generate")
        with self.assertRaises(grpc.RpcError) as caught:
            next(generate(b"", timeout=harness.GUARD, wait_for_ready=True))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
        beyond = 4  # these are for probes, so that they are the first to be closed
        self.assertTrue(all(call.is_active() for call in calls[:-beyond]), "live calls go on")


if __name__ == "__main__":
    harness.main()
