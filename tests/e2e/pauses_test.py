"""A machine that stands still costs nothing: no rank, no rung and no request.

The pauses are real: SIGSTOP and SIGCONT for the whole process group or for the front alone, and the
cgroup freezer, which is what `docker pause` uses. Each is longer than the deadlines, and no restart
is allowed, so that one rank that is given up ends the run.
"""
import os
import signal
import time
import uuid
from pathlib import Path

import harness

RANKS = 2
REQUEST = ("--prompt-ids", harness.ids_flag([0, 1151, 262, 2088]), "--max-tokens", 60,
           "--ignore-eos", "--temperature", 0)
# A phase of the start may be silent for 1 s and a step for 0.5 s. The plain loops are so slow that
# the pauses hit the stream.
SLOW = ("--threads-per-rank", 1, "--cpu-kernels", "reference")
DEADLINES = ("--startup-timeout", 4, "--step-timeout", 0.5, "--max-restarts", 0)
PAUSE_S = 1.2


class Freezer:
    """A cgroup that can be frozen: version 1 or 2, whichever this machine has."""

    def __init__(self):
        self.name = f"shoal-test-{uuid.uuid4().hex[:8]}"
        for root, file, values in (("/sys/fs/cgroup/freezer", "freezer.state", ("FROZEN", "THAWED")),
                                   ("/sys/fs/cgroup", "cgroup.freeze", ("1", "0")),
                                   ("/sys/fs/cgroup/unified", "cgroup.freeze", ("1", "0"))):
            self.path = Path(root, self.name)
            try:
                self.path.mkdir()
            except OSError:
                continue
            self.file, self.values = self.path / file, values
            if self.file.exists():
                return
            self.path.rmdir()
        raise OSError("no cgroup can be made and frozen here")

    def add(self, pid: int):
        (self.path / "cgroup.procs").write_text(str(pid))

    def freeze(self, yes: bool):
        self.file.write_text(self.values[0 if yes else 1])

    def remove(self):
        self.freeze(False)
        harness.wait_until(self.removed, 10, "an empty cgroup")

    def removed(self) -> bool:
        try:
            self.path.rmdir()
        except OSError:  # somebody is still in it
            return False
        return True


class Pauses(harness.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.expected = harness.run("generate", harness.DEMO, *REQUEST, *SLOW).stdout.decode()

    def pause(self, stop, go, times: int, run_s: float):
        for _ in range(times):
            stop()
            time.sleep(PAUSE_S)
            go()
            time.sleep(run_s)

    def generate(self):
        process = harness.start("generate", harness.DEMO, *REQUEST, *SLOW, "-tp", RANKS, *DEADLINES)
        self.addCleanup(lambda: process.poll() is None and os.killpg(process.pid, signal.SIGKILL))
        return process, harness.Reader(process.stdout), harness.Reader(process.stderr)

    def check(self, process, out, err):
        self.assertEqual(process.wait(60), 0, err.rest())
        self.assertEqual(out.rest(), self.expected)
        self.assertEqual(err.rest(), "", "nobody has noticed anything")

    def test_a_start_that_is_paused(self):
        process, out, err = self.generate()
        harness.wait_until(lambda: harness.children(process.pid), 20, "a rank")
        self.pause(lambda: os.killpg(process.pid, signal.SIGSTOP),
                   lambda: os.killpg(process.pid, signal.SIGCONT), 3, 0.02)
        self.check(process, out, err)

    def test_a_stream_that_is_paused(self):
        process, out, err = self.generate()
        harness.wait_until(lambda: out.data, 20, "the first text")
        self.pause(lambda: os.killpg(process.pid, signal.SIGSTOP),
                   lambda: os.killpg(process.pid, signal.SIGCONT), 2, 0.05)
        # Now the ranks go on, and the front does not.
        self.pause(lambda: os.kill(process.pid, signal.SIGSTOP),
                   lambda: os.kill(process.pid, signal.SIGCONT), 1, 0.05)
        self.assertIsNone(process.poll(), "the stream was over before the pauses")
        self.check(process, out, err)

    def test_a_server_that_is_frozen(self):
        try:
            freezer = Freezer()
        except OSError as error:
            self.skipTest(str(error))
        self.addCleanup(freezer.remove)
        server = self.serve(harness.DEMO, "-tp", RANKS, *SLOW, *DEADLINES)
        freezer.add(server.pid)  # its ranks are born there
        self.pause(lambda: freezer.freeze(True), lambda: freezer.freeze(False), 1, 0)
        server.wait_ready()
        for pid in harness.children(server.pid):
            freezer.add(pid)
        client = server.client(*REQUEST)
        out, err = harness.Reader(client.stdout), harness.Reader(client.stderr)
        harness.wait_until(lambda: out.data, 20, "the first text")
        self.pause(lambda: freezer.freeze(True), lambda: freezer.freeze(False), 2, 0.05)
        self.assertEqual(client.wait(60), 0, err.rest())
        self.assertEqual(out.rest(), self.expected)
        server.process.terminate()
        self.assertEqual(server.end(), 0, server.err.text())
        self.assertNotRegex(server.err.rest(), "no answer|starting the ranks again|refused")


    def hit_one_rank(self, stop) -> harness.Server:
        """Serves a stream, and calls stop(pid) for a rank once it runs. Returns the server."""
        server = self.serve(harness.DEMO, "-tp", RANKS, *SLOW, "--step-timeout", 0.5)
        server.wait_ready()
        client = server.client(*REQUEST)
        out, err = harness.Reader(client.stdout), harness.Reader(client.stderr)
        harness.wait_until(lambda: out.data, 20, "the first text")
        # The second one comes at once, that is less than 16 steps after the first.
        for restarts in (1, 2):
            stop(harness.children(server.pid)[-1])
            harness.wait_until(
                lambda: server.err.text().count("the ranks run again over") == restarts, 30,
                "a restart")
        self.assertEqual(client.wait(60), 0, err.rest())
        self.assertEqual(out.rest(), self.expected)
        return server

    def test_a_rank_that_is_stopped_alone_is_ended_and_no_request_is_blamed(self):
        server = self.hit_one_rank(lambda pid: os.kill(pid, signal.SIGSTOP))
        self.assertEqual(server.err.text().count("rank 1 (step"), 2, server.err.text())
        self.assertRegex(server.err.text(), r"rank 1 \(step \d+\) is stopped by a signal")
        self.assertNotIn("refused", server.err.text())

    def test_a_rank_that_is_frozen_alone_is_ended_and_no_request_is_blamed(self):
        freezers = []

        def freeze(pid: int):
            freezers.append(Freezer())
            self.addCleanup(freezers[-1].remove)
            freezers[-1].add(pid)
            freezers[-1].freeze(True)
        try:
            Freezer().remove()
        except OSError as error:
            self.skipTest(str(error))
        server = self.hit_one_rank(freeze)
        self.assertRegex(server.err.text(), r"rank 1 \(step \d+\) is frozen")
        self.assertNotIn("refused", server.err.text())
        for freezer in freezers:  # version 1 lets nobody die who is frozen
            freezer.freeze(False)


if __name__ == "__main__":
    harness.main()
