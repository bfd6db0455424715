"""Something that was there at the start has run out when lost ranks must be started again. The
server waits until it is there, holds its streams, and uses up no restart.

Every shortage is real: limits of the running front are lowered, and others fill /dev/shm or the
memory cgroup. The ranks are killed.
"""
import os
import resource
import signal
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path

import breadth
import cgroups
import denied
import harness

try:
    import grpc
except ImportError:
    print("skipped: this Python has no grpc (Debian: python3-grpcio)")
    sys.exit(harness.SKIPPED)

from grpc_client_test import make_stubs

RANKS = 2
OTHER_USER = 65_122
REQUEST = ("--prompt-ids", "0,1151,262,2088", "--max-tokens", 60, "--ignore-eos",
           "--temperature", 0)
# One restart is granted, so that a second one would end the server. No deadline passes meanwhile.
FLAGS = ("-tp", RANKS, "--threads-per-rank", 1, "--max-restarts", 1, "--step-timeout",
         5 * harness.GUARD, "--shutdown-timeout", 5 * harness.GUARD)
IN_THE_STREAM = "1:step-9:stop"  # where a rank waits for its death
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"  # grpc.health.v1
MIB = 2**20


class Shortage(harness.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        make_stubs(folder.name)
        from openengine.v1 import control_pb2, generate_pb2
        cls.load_type = control_pb2.LoadInfo
        cls.endless = generate_pb2.GenerateRequest(
            prompt="In the beginning",
            stopping=generate_pb2.StoppingOptions(max_tokens=500, ignore_eos=True)
        ).SerializeToString()
        cls.expected = harness.run("generate", harness.DEMO, *REQUEST).stdout.decode().strip()

    def started(self, *flags, **popen) -> harness.Server:
        with harness.planted(IN_THE_STREAM):
            server = self.serve(harness.DEMO, *FLAGS, *flags, **popen)
        self.address = server.wait_ready()["grpc"]
        return server

    def stream(self, server):
        client = server.client(*REQUEST)
        self.addCleanup(lambda: client.poll() is None and client.kill())
        out, err = harness.Reader(client.stdout), harness.Reader(client.stderr)
        harness.stopped_rank(server.pid)
        return client, out, err

    def lose_ranks(self, server, meanwhile=lambda: None):
        """Kills the ranks, and calls meanwhile() before the front can see it."""
        with harness.stopped(server.pid):
            harness.kill_and_wait(harness.children(server.pid))  # they have given back what they had
            meanwhile()

    def await_tries(self, server, count: int):
        def tried():
            self.assertIsNone(server.process.poll(), server.err.text())
            return server.err.text().count("something is short") >= count
        harness.wait_until(tried, f"{count} tries", server.err.text)

    def check_recovered(self, server, stream):
        client, out, err = stream
        self.assertEqual(client.wait(), 0, err.rest() + server.err.text())
        self.assertEqual(out.rest().strip(), self.expected)
        server.process.terminate()
        self.assertEqual(server.end(), 0, server.err.text())
        self.assertEqual(server.err.rest().count("starting the ranks again"), 1)
        # What is short for now refuses a try, but no rung for good, as the ladder's own line would say.
        self.assertNotRegex(server.err.text(), r"refused \(.*\), trying ")
        self.assertNotRegex(server.err.text(), r"(again \(.*\)|next try in .* s): [A-Z_]{5,}: |"
                                               r"\.cc:\d|\[(front|rank \d+)\]")

    def channel(self) -> grpc.Channel:
        channel = grpc.insecure_channel(self.address, options=[("grpc.enable_http_proxy", 0)])
        self.addCleanup(channel.close)
        return channel

    def health(self) -> bytes:
        return self.channel().unary_unary("/grpc.health.v1.Health/Check")(
            b"", timeout=harness.GUARD, wait_for_ready=True)

    def generate(self, **options):
        return self.channel().unary_stream("/openengine.v1.Inference/Generate")(
            self.endless, **options)

    def open_requests(self) -> int:
        get_load = self.channel().unary_unary("/openengine.v1.Control/GetLoad")
        answer = get_load(b"", timeout=harness.GUARD)
        load = self.load_type.FromString(answer)
        return load.running_requests + load.queued_requests

    def lower(self, server, kind: int, to: int):
        """Lowers a soft limit of the front, and returns what raises it again."""
        soft, hard = resource.prlimit(server.pid, kind)
        resource.prlimit(server.pid, kind, (to, hard))
        return lambda: resource.prlimit(server.pid, kind, (soft, hard))

    def test_descriptors(self):
        server = self.started()
        stream = self.stream(server)
        channel = self.channel()  # connected before descriptors are short
        grpc.channel_ready_future(channel).result(harness.GUARD)
        self.channel = lambda: channel
        again = self.lower(server, resource.RLIMIT_NOFILE, 5)
        new = []
        self.lose_ranks(server, lambda: new.extend([self.generate(), self.generate(timeout=2)]))
        self.await_tries(server, 2)

        # At first new requests wait with the others. They end when their clients want that, and
        # nothing else ends them here.
        late, hurried = new
        with self.assertRaises(grpc.RpcError) as ended:
            list(hurried)
        self.assertEqual(ended.exception.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
        harness.wait_until(lambda: self.open_requests() == 2, "a request that is held")
        late.cancel()
        harness.wait_until(lambda: self.open_requests() == 1, "one request")

        # After 5 s others may be better served elsewhere.
        harness.wait_until(lambda: self.health() == NOT_SERVING, "health: not serving")
        with self.assertRaises(grpc.RpcError) as refused:
            list(self.generate(timeout=harness.GUARD))
        self.assertEqual(refused.exception.code(), grpc.StatusCode.UNAVAILABLE)
        details = dict(refused.exception.trailing_metadata())["grpc-status-details-bin"]
        self.assertIn(b"WORKERS_RESTARTING", details)
        self.assertIn(b"google.rpc.RetryInfo", details)
        self.assertIsNone(stream[0].poll(), "the stream is held")
        self.assertIn("ulimit -n", server.err.text())
        again()
        harness.wait_until(lambda: self.health() == SERVING, "health: serving")
        self.check_recovered(server, stream)

    def test_a_stop_does_not_wait(self):
        server = self.started()
        self.lower(server, resource.RLIMIT_NOFILE, 5)
        self.lose_ranks(server)
        self.await_tries(server, 2)
        server.process.terminate()
        self.assertEqual(server.end(), 0, server.err.text())
        _, told, after = server.err.rest().partition("stopping: ")
        self.assertTrue(told)
        # One try may have been under way.
        self.assertLessEqual(after.count("something is short"), 1, after)

    def neighbour(self, program: str, preexec) -> subprocess.Popen:
        """A Python program in a process group of its own. It prints a line once it holds what it is
        to take."""
        process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, preexec_fn=preexec,
                                   start_new_session=True)
        self.addCleanup(self.end, process)
        return process

    def end(self, neighbour: subprocess.Popen):
        if neighbour.poll() is None:
            os.killpg(neighbour.pid, signal.SIGKILL)
        neighbour.communicate()

    def test_processes(self):
        self.skip_unless_reached_by(OTHER_USER)
        as_other = denied.limit(resource.RLIMIT_NPROC, 60, OTHER_USER)
        server = self.started(preexec_fn=as_other)
        stream = self.stream(server)
        # Takes every process that the limit leaves, also those that end later. The dead ranks count
        # until the front has waited for them. Without a higher limit for the neighbour, the front
        # could start new ones in their places before the neighbour gets its turn.
        more = 60 + len(harness.children(server.pid))
        neighbour = self.neighbour(
            "import os, time\ntold = False\nwhile True:\n    try:\n"
            "        if os.fork() == 0:\n            time.sleep(1000)\n"
            "    except OSError:\n        time.sleep(0.001)\n"
            "        if not told:\n            print(flush=True)\n        told = True",
            denied.limit(resource.RLIMIT_NPROC, more, OTHER_USER))
        self.lose_ranks(server, neighbour.stdout.readline)
        self.await_tries(server, 3)
        self.end(neighbour)
        self.check_recovered(server, stream)
        self.assertIn("ulimit -u", server.err.text())

    def started_in_a_cgroup(self):
        try:
            group = cgroups.MemoryLimit(400 * MIB)
        except OSError as error:
            self.skipTest(str(error))
        self.addCleanup(group.remove)
        server = self.started(preexec_fn=lambda: group.add(os.getpid()))
        return group, server, self.stream(server)

    def neighbour_in(self, group) -> tuple[subprocess.Popen, Callable[[int], None]]:
        """A neighbour in the cgroup, and a function that makes it take more memory. The argument of
        the function is the number of bytes."""
        neighbour = self.neighbour(
            "import sys\nheld = []\nfor line in sys.stdin:\n    held.append(b'x' * int(line))\n"
            "    print(flush=True)", lambda: group.add(os.getpid()))

        def take(size: int):
            neighbour.stdin.write(f"{size}\n".encode())
            neighbour.stdin.flush()
            neighbour.stdout.readline()
        return neighbour, take

    def test_memory(self):
        group, server, stream = self.started_in_a_cgroup()
        neighbour, take = self.neighbour_in(group)
        self.lose_ranks(server, lambda: take(group.limit - group.used() - 16 * MIB))
        self.await_tries(server, 3)
        self.end(neighbour)
        self.check_recovered(server, stream)
        self.assertIn("the memory cgroup has", server.err.text())

    @unittest.skipIf(breadth.NARROW, "it is left to scripts/test --all")
    def test_a_rank_that_the_kernel_kills_for_its_memory(self):
        """The request may have been the cause, so this restart counts as one of those granted."""
        group, server, stream = self.started_in_a_cgroup()
        rank = harness.stopped_rank(server.pid)
        Path(f"/proc/{rank}/oom_score_adj").write_text("1000")  # it, and nobody else
        neighbour, take = self.neighbour_in(group)
        with harness.stopped(server.pid):
            while not harness.is_dead(rank):
                take(4 * MIB)
            self.end(neighbour)
        self.check_recovered(server, stream)
        self.assertRegex(server.err.text(),
                         rf"starting the ranks again \(1 of 1\).*pid {rank}.*see dmesg")

    def test_what_the_last_ranks_used_is_enough_for_the_next(self):
        # There is less memory than the plan for a first start would ask for.
        group, server, stream = self.started_in_a_cgroup()
        group.file.write_text(str(group.used() + 8 * MIB))
        self.lose_ranks(server)
        self.check_recovered(server, stream)
        self.assertNotIn("something is short", server.err.text())

    def test_dev_shm(self):
        own = ("unshare", "--mount", "--propagation", "private", "sh", "-ec",
               'mount -t tmpfs -o size=4m tmpfs /dev/shm; exec "$@"', "sh")
        if subprocess.run([*own, "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("no mount of its own here")
        server = self.started("--transport", "shm", wrapper=own)
        stream = self.stream(server)

        def fill():
            with open(f"/proc/{server.pid}/root/dev/shm/neighbour", "wb", buffering=0) as others:
                with self.assertRaises(OSError):
                    while True:
                        others.write(bytes(65536))
        self.lose_ranks(server, fill)
        self.check_recovered(server, stream)
        self.assertNotIn("something is short", server.err.text(), "the pool was kept")


if __name__ == "__main__":
    harness.main()
