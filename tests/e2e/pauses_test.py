"""A machine that stands still costs nothing: no rank, no rung and no request.

The pauses are real: SIGSTOP and SIGCONT for the whole process group or for the front alone, and the
cgroup freezer, which is what `docker pause` uses. Each is longer than the deadlines, and no restart
is allowed, so that one rank that is given up ends the run. A rank that is stopped alone is another
matter: it is ended, but no request is to blame.
"""
import os
import signal
import time

import breadth
import harness
from cgroups import Freezer

RANKS = 2
# The plain loops are so slow that the pauses hit the stream.
SLOW = ("--threads-per-rank", 1, "--cpu-kernels", "reference")
REQUEST = ("--prompt-ids", harness.ids_flag([0, 1151, 262, 2088]), "--max-tokens", 60,
           "--ignore-eos", "--temperature", 0)
# A phase of a start may be silent for 1.5 s, and a step for 0.5 s.
DEADLINES = ("--startup-timeout", 6, "--step-timeout", 0.5)
STRICT = (*DEADLINES, "--max-restarts", 0)
PAUSE_OF_START_S = 1.7
PAUSE_OF_STREAM_S = 0.8


def pause(times: int, seconds: float, stop, go):
    """Stops what stop() stops, several times. Between two pauses it runs for a moment."""
    for _ in range(times):
        stop()
        time.sleep(seconds)
        go()
        time.sleep(0.05)


class Pauses(harness.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.expected = harness.run("generate", harness.DEMO, *REQUEST, "--cpu-kernels",
                                   "reference").stdout.decode().strip()

    def freezer(self) -> Freezer:
        try:
            freezer = Freezer()
        except OSError as error:
            self.skipTest(str(error))
        self.addCleanup(freezer.remove)
        return freezer

    def generate(self):
        process = harness.start("generate", harness.DEMO, *REQUEST, *SLOW, "-tp", RANKS, *STRICT)
        self.addCleanup(lambda: process.poll() is None and os.killpg(process.pid, signal.SIGKILL))
        return process, harness.Reader(process.stdout), harness.Reader(process.stderr)

    def check(self, process, out, err):
        self.assertEqual(process.wait(), 0, err.rest())
        self.assertEqual(out.rest().strip(), self.expected)
        self.assertEqual(err.rest(), "", "nobody has noticed anything")

    def test_a_start_that_is_paused(self):
        process, out, err = self.generate()
        harness.wait_until(lambda: harness.children(process.pid), "a rank")
        pause(3 if breadth.FULL else 2, PAUSE_OF_START_S, lambda: os.killpg(process.pid, signal.SIGSTOP),
              lambda: os.killpg(process.pid, signal.SIGCONT))
        self.check(process, out, err)

    def test_a_stream_that_is_paused(self):
        process, out, err = self.generate()
        harness.wait_until(lambda: out.data, "the first text")
        pause(10 if breadth.FULL else 2, PAUSE_OF_STREAM_S, lambda: os.killpg(process.pid, signal.SIGSTOP),
              lambda: os.killpg(process.pid, signal.SIGCONT))
        # Now the ranks go on, and only the front stands still.
        pause(1, PAUSE_OF_STREAM_S, lambda: os.kill(process.pid, signal.SIGSTOP),
              lambda: os.kill(process.pid, signal.SIGCONT))
        self.assertIsNone(process.poll(), "the stream was over before the pauses")
        self.check(process, out, err)

    def test_a_server_that_is_frozen(self):
        freezer = self.freezer()
        server = self.serve(harness.DEMO, "-tp", RANKS, *SLOW, *STRICT)
        freezer.add(server.pid)
        pause(1, PAUSE_OF_START_S, lambda: freezer.freeze(True), lambda: freezer.freeze(False))
        server.wait_ready()
        for pid in harness.children(server.pid):  # in case they were born before the front was in
            freezer.add(pid)
        client = server.client(*REQUEST)
        out, err = harness.Reader(client.stdout), harness.Reader(client.stderr)
        harness.wait_until(lambda: out.data, "the first text")
        pause(1, PAUSE_OF_STREAM_S, lambda: freezer.freeze(True), lambda: freezer.freeze(False))
        self.assertEqual(client.wait(), 0, err.rest())
        self.assertEqual(out.rest().strip(), self.expected)
        server.process.terminate()
        self.assertEqual(server.end(), 0, server.err.text())
        self.assertNotRegex(server.err.rest(), "no answer|starting the ranks again|refused")

    def hold_up_rank_1(self, hold_up) -> str:
        """Serves a stream and holds up rank 1, and then its successor at once, which is less than
        16 steps later. Returns the log."""
        server = self.serve(harness.DEMO, "-tp", RANKS, *SLOW, *DEADLINES)
        server.wait_ready()
        client = server.client(*REQUEST)
        out, err = harness.Reader(client.stdout), harness.Reader(client.stderr)
        harness.wait_until(lambda: out.data, "the first text")
        for restarts in (1, 2):
            hold_up(harness.children(server.pid)[-1])
            harness.wait_until(
                lambda: server.err.text().count("the ranks run again over") == restarts,
                "a restart")
        self.assertEqual(client.wait(), 0, err.rest())
        self.assertEqual(out.rest().strip(), self.expected)
        self.assertNotIn("refused", server.err.text())
        return server.err.text()

    def test_a_rank_that_is_stopped_alone_is_ended_and_no_request_is_blamed(self):
        log = self.hold_up_rank_1(lambda pid: os.kill(pid, signal.SIGSTOP))
        self.assertRegex(log, r"rank 1 \(step \d+\) is stopped by a signal")

    def test_a_rank_that_is_frozen_alone_is_ended_and_no_request_is_blamed(self):
        if not breadth.FULL:
            self.skipTest("only with SHOAL_TEST_BREADTH=full: version 1 of cgroups lets nobody die "
                          "who is frozen, so that each rank is waited for in vain for 2 s")
        freezer = self.freezer()

        def hold_up(pid: int):
            freezer.add(pid)
            freezer.freeze(True)
        log = self.hold_up_rank_1(hold_up)
        self.assertRegex(log, r"rank 1 \(step \d+\) is frozen with its cgroup")
        freezer.freeze(False)


if __name__ == "__main__":
    harness.main()
