"""Which requests a busy server takes, and what it tells the others.

Clients have addresses of their own: each sends over a relay that connects from another address of
127.0.0.0/8, because gRPC's Python client cannot choose its own.
"""
import contextlib
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time

import breadth
import harness

try:
    import grpc
except ImportError:
    print("skipped: this Python has no grpc (Debian: python3-grpcio)")
    sys.exit(harness.SKIPPED)

from grpc_client_test import make_stubs

# A deadline that no test comes near, because the server refuses what is likely to miss its own.
PATIENT = 5 * harness.GUARD
REASONS = {"QUEUE_FULL", "CLIENT_SHARE_EXCEEDED", "WAIT_TOO_LONG", "QUEUE_TIMEOUT"}


class Relay:
    """Passes connections on to the server, from an address."""

    def __init__(self, server: str, source: str):
        host, port = server.rsplit(":", 1)
        self.server, self.source = (host, int(port)), source
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.sockets = [self.listener]
        threading.Thread(target=self.accept, daemon=True).start()

    @property
    def address(self) -> str:
        return "127.0.0.1:%d" % self.listener.getsockname()[1]

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(self.server, source_address=(self.source, 0))
            self.sockets += [client, server]
            for pair in ((client, server), (server, client)):
                threading.Thread(target=self.copy, args=pair, daemon=True).start()

    @staticmethod
    def copy(source: socket.socket, target: socket.socket):
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self):
        for one in self.sockets:
            one.close()


class Admission(harness.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        make_stubs(cls.folder.name)
        import google_rpc_pb2
        from openengine.v1 import control_pb2, generate_pb2, services_pb2_grpc
        cls.control_pb2, cls.pb, cls.services = control_pb2, generate_pb2, services_pb2_grpc
        cls.rpc = google_rpc_pb2

    def start(self, *flags):
        self.server = self.serve(harness.DEMO, "-tp", 2, "--step-timeout", 300, *flags)
        self.address = self.server.wait_ready()["grpc"]
        self.own = self.client()
        self.control = self.services.ControlStub(self.channel_to(self.address))

    @contextlib.contextmanager
    def step_that_takes_long(self):
        """One of the ranks stands still, so that nobody in a step gets on and nobody else begins."""
        rank = self.server.workers(2)[1]
        os.kill(rank, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(rank, signal.SIGCONT)

    @contextlib.contextmanager
    def queue_that_stands_still(self, tokens: int):
        """Some of 60 requests have ended, so that the server knows its rates, and others wait.

        How fast the machine is does not matter, because a step has taken 3 s a few requests before:
        whoever has 800 requests ahead waits for more than a minute. Without a queue the server
        would forget its rates, and after many more requests that step. A test that was kept from
        running may find that so when it stops the rank, and tries again.
        """
        calls = []
        while True:
            calls += [self.own.Generate(self.request(4, tokens)) for _ in range(60)]
            list(calls[-46])
            with self.step_that_takes_long():
                for _ in range(30):  # a machine that stands still does so in one of them
                    time.sleep(0.1)
            list(calls[-42])
            with self.step_that_takes_long():
                if self.load().queued_requests > 30:
                    yield calls
                    return

    def channel_to(self, address: str):
        channel = grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0),
                                                          ("grpc.use_local_subchannel_pool", 1)])
        self.addCleanup(channel.close)
        # gRPC tries again to connect, but a call fails with the first try.
        grpc.channel_ready_future(channel).result(PATIENT)
        return channel

    def client(self, source: str | None = None):
        """A client with an address of its own, or with that of this process."""
        if source is None:
            return self.services.InferenceStub(self.channel_to(self.address))
        relay = Relay(self.address, source)
        self.addCleanup(relay.close)
        return self.services.InferenceStub(self.channel_to(relay.address))

    def request(self, prompt_tokens: int, max_tokens: int):
        ids = [4 + 31 * i % 4000 for i in range(prompt_tokens)]
        return self.pb.GenerateRequest(
            token_ids=self.pb.TokenIds(ids=ids), sampling=self.pb.SamplingParams(temperature=0),
            stopping=self.pb.StoppingOptions(max_tokens=max_tokens, ignore_eos=True))

    def ask(self, client, prompt_tokens: int, max_tokens: int,
            timeout: float = PATIENT) -> int:
        """Returns how many tokens came. Raises grpc.RpcError if the request is refused."""
        return sum(len(event.token.tokens) for event in client.Generate(
            self.request(prompt_tokens, max_tokens), timeout=timeout))

    def tokens(self, prompt_tokens: int, max_tokens: int) -> list[int]:
        return [token.token_id
                for event in self.own.Generate(self.request(prompt_tokens, max_tokens))
                for token in event.token.tokens]

    def check_refusal(self, error) -> tuple[str, float]:
        """Returns the reason, and after how many seconds to try again."""
        self.assertEqual(error.code(), grpc.StatusCode.RESOURCE_EXHAUSTED, error.details())
        status = self.rpc.Status.FromString(
            dict(error.trailing_metadata())["grpc-status-details-bin"])
        self.assertEqual((status.code, status.message), (8, error.details()))
        info, retry = self.rpc.ErrorInfo(), self.rpc.RetryInfo()
        self.assertTrue(status.details[0].Unpack(info) and status.details[1].Unpack(retry), status)
        self.assertIn(info.reason, REASONS)
        seconds = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
        self.assertGreater(seconds, 0)
        return info.reason, seconds

    def load(self):
        return self.control.GetLoad(self.control_pb2.GetLoadRequest(), timeout=harness.GUARD)

    def wait_until_empty(self):
        def empty():
            load = self.load()
            return (load.used_kv_blocks, load.queued_requests, load.running_requests,
                    load.attributes["queued_bytes"]) == (0, 0, 0, 0)
        harness.wait_until(empty, "an empty server")

    def test_a_thousand_cancels_leave_nothing(self):
        self.start("--max-num-seqs", 6, "--max-model-len", 512, "--kv-cache-memory", 1 << 22)
        alone = self.tokens(9, 20)
        draw = random.Random(breadth.day())

        def cancel_some(seed: int):
            own = random.Random(seed)
            for _ in range(50):
                call = self.own.Generate(self.request(own.randrange(1, 300), 200))
                time.sleep(own.choice((0, 0, 0.002, 0.02, 0.1)) * own.random())
                call.cancel()

        threads = [threading.Thread(target=cancel_some, args=(draw.random(),)) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.wait_until_empty()
        self.assertEqual(self.tokens(9, 20), alone)

    def test_a_greedy_client_does_not_keep_modest_ones_out(self):
        """The greedy one keeps 120 requests open, in a server that takes 44, and does not wait when
        it is refused."""
        self.start("--max-num-seqs", 4, "--max-num-queued-reqs", 44)
        stop, lock = threading.Event(), threading.Lock()
        refusals, served, failures, modest_tokens = [], [], [], []

        def be_greedy():
            client = self.client("127.0.0.100")
            calls = [client.Generate(self.request(8, 30)) for _ in range(10)]
            while not stop.is_set() or calls:
                call = calls.pop(0)
                try:
                    tokens = sum(len(event.token.tokens) for event in call)
                    with lock:
                        served.append(tokens)
                except grpc.RpcError as error:
                    with lock:
                        refusals.append(error)
                    time.sleep(0.01)
                if not stop.is_set():
                    calls.append(client.Generate(self.request(8, 30)))

        def be_modest(number: int):
            client = self.client(f"127.0.0.{number}")
            for _ in range(3):
                try:
                    modest_tokens.append(self.ask(client, 8, 30))
                except grpc.RpcError as error:
                    failures.append((number, error.code(), error.details()))

        greedy = [threading.Thread(target=be_greedy) for _ in range(12)]
        for thread in greedy:
            thread.start()
        harness.wait_until(lambda: len(refusals) > 20, "a full queue")
        modest = [threading.Thread(target=be_modest, args=(2 + i,)) for i in range(10)]
        for thread in modest:
            thread.start()
        for thread in modest:
            thread.join()
        stop.set()
        for thread in greedy:
            thread.join()
        self.assertEqual(failures, [])
        self.assertEqual(modest_tokens, [30] * 30)
        self.assertTrue(served and all(tokens == 30 for tokens in served), served)
        for error in refusals:
            self.check_refusal(error)
        self.wait_until_empty()

    def test_the_latest_of_the_greedy_client_gives_way(self):
        self.start("--max-num-seqs", 1, "--max-num-queued-reqs", 5)
        with self.step_that_takes_long():
            waiting = []
            for number in range(5):  # one after the other, so that the order is known
                waiting.append(self.own.Generate(self.request(4, 3), timeout=PATIENT))
                harness.wait_until(lambda: self.load().queued_requests == number, "its place")
                harness.wait_until(lambda: self.load().running_requests == 1, "a step")
            with self.assertRaises(grpc.RpcError) as refused:
                self.ask(self.own, 4, 3)
            self.assertEqual(self.check_refusal(refused.exception)[0], "QUEUE_FULL")
            modest = self.client("127.0.0.9").Generate(self.request(4, 3), timeout=PATIENT)
            with self.assertRaises(grpc.RpcError) as refused:
                list(waiting.pop())
            self.assertEqual(self.check_refusal(refused.exception)[0], "CLIENT_SHARE_EXCEEDED")
        for call in [modest, *waiting]:
            self.assertEqual(sum(len(event.token.tokens) for event in call), 3)
        self.wait_until_empty()

    def test_a_request_that_waits_too_long_is_refused(self):
        self.start("--max-num-seqs", 1, "--max-queue-time", 2)
        with self.step_that_takes_long():
            running = self.own.Generate(self.request(4, 4), timeout=PATIENT)
            harness.wait_until(lambda: self.load().running_requests == 1, "a step")
            began = time.monotonic()
            with self.assertRaises(grpc.RpcError) as refused:
                list(self.own.Generate(self.request(4, 4)))
            self.assertGreater(time.monotonic() - began, 2)
            self.assertEqual(self.check_refusal(refused.exception)[0], "QUEUE_TIMEOUT")
            self.assertEqual(self.load().queued_requests, 0)
        self.assertEqual(sum(len(event.token.tokens) for event in running), 4)
        self.assertEqual(self.ask(self.own, 4, 4), 4)

    def test_what_is_likely_to_come_too_late_is_refused_at_once(self):
        self.start("--max-num-seqs", 2, "--max-num-queued-reqs", 2000)
        tokens = 100 if breadth.SANITIZED else 508
        with self.queue_that_stands_still(tokens) as calls:
            # So many more wait that the deadline can be long enough for the request to arrive.
            calls += [client.Generate(self.request(4, tokens))
                      for client in [self.client() for _ in range(16)] for _ in range(50)]
            harness.wait_until(lambda: self.load().queued_requests > 800, "a very long queue")
            with self.assertRaises(grpc.RpcError) as refused:
                self.ask(self.own, 8, 1, timeout=10)  # no deadline: the request's, refused for it
        reason, seconds = self.check_refusal(refused.exception)
        self.assertEqual(reason, "WAIT_TOO_LONG")
        self.assertIn("its deadline is in", refused.exception.details())
        self.assertGreater(seconds, 10)
        for call in calls:
            call.cancel()
        self.wait_until_empty()

    def test_the_limits_of_tokens_and_bytes(self):
        for flags, which in ((("--max-num-queued-tokens", 60), "--max-num-queued-tokens"),
                             (("--max-queued-bytes", 500), "--max-queued-bytes")):
            with self.subTest(flags=flags):
                self.start("--max-num-seqs", 1, *flags)
                with self.step_that_takes_long():
                    running = self.own.Generate(self.request(4, 4), timeout=PATIENT)
                    harness.wait_until(lambda: self.load().running_requests == 1, "a step")
                    waiting = self.own.Generate(self.request(40, 4), timeout=PATIENT)
                    harness.wait_until(lambda: self.load().queued_requests == 1, "another")
                    with self.assertRaises(grpc.RpcError) as refused:
                        self.ask(self.own, 100, 4)
                    self.assertEqual(self.check_refusal(refused.exception)[0], "QUEUE_FULL")
                    self.assertIn(which, refused.exception.details())
                for call in (running, waiting):
                    self.assertEqual(sum(len(event.token.tokens) for event in call), 4)
                self.assertEqual(self.ask(self.own, 300, 4), 4, "it is the only one")
                self.server.process.terminate()
                self.assertEqual(self.server.end(), 0)


if __name__ == "__main__":
    harness.main()
