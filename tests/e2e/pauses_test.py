"""A machine that stands still costs nothing: no rank, no rung and no request.

The pauses are real: SIGSTOP and SIGCONT for the whole process group or for the front alone, and the
cgroup freezer, which is what `docker pause` uses. Each is longer than the deadlines, and no restart
is allowed, so that one rank that is given up ends the run. A rank that is stopped alone is another
matter: it is ended, but no request is to blame.

A rank stops itself where a pause is to come (SHOAL_TEST_FAULT), and goes on with the others.
"""
import os
import signal
import time

import breadth
import harness
from cgroups import Freezer

RANKS = 2
REQUEST = ("--prompt-ids", harness.ids_flag([0, 1151, 262, 2088]), "--max-tokens", 60,
           "--ignore-eos", "--temperature", 0)
# A phase of a start may be silent for 5 s, and a step for 3 s. What a busy machine lets a rank wait
# for a processor does not count.
DEADLINES = ("--startup-timeout", 20, "--step-timeout", 3)
STRICT = (*DEADLINES, "--max-restarts", 0)
PAUSE_OF_START_S = 5.5
PAUSE_OF_STREAM_S = 3.5


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
        cls.expected = harness.run("generate", harness.DEMO, *REQUEST).stdout.decode().strip()

    def freezer(self) -> Freezer:
        try:
            freezer = Freezer()
        except OSError as error:
            self.skipTest(str(error))
        self.addCleanup(freezer.remove)
        return freezer

    def generate_until(self, where: str):
        """Returns when rank 1 has stopped there."""
        with harness.planted(f"1:{where}:stop"):
            process = harness.start("generate", harness.DEMO, *REQUEST, "-tp", RANKS, *STRICT)
        self.addCleanup(lambda: process.poll() is None and os.killpg(process.pid, signal.SIGKILL))
        out, err = harness.Reader(process.stdout), harness.Reader(process.stderr)
        return process, out, err, harness.stopped_rank(process.pid)

    def serve(self, faults: str, *flags) -> harness.Server:
        with harness.planted(faults):
            return super().serve(harness.DEMO, "-tp", RANKS, *flags)

    def check(self, process, out, err):
        self.assertEqual(process.wait(), 0, err.rest())
        self.assertEqual(out.rest().strip(), self.expected)
        self.assertEqual(err.rest(), "", "nobody has noticed anything")

    def pause_group(self, process, times: int, seconds: float):
        pause(times, seconds, lambda: os.killpg(process.pid, signal.SIGSTOP),
              lambda: os.killpg(process.pid, signal.SIGCONT))

    def test_a_start_that_is_paused(self):
        process, out, err, _ = self.generate_until("load")
        self.pause_group(process, 3 if breadth.FULL else 2, PAUSE_OF_START_S)
        self.check(process, out, err)

    def test_a_stream_that_is_paused(self):
        process, out, err, _ = self.generate_until("step-9")
        self.pause_group(process, 10 if breadth.FULL else 2, PAUSE_OF_STREAM_S)
        self.check(process, out, err)

    def test_a_front_that_is_paused_alone(self):
        process, out, err, rank = self.generate_until("step-9")
        with harness.stopped(process.pid):
            os.kill(rank, signal.SIGCONT)
            time.sleep(PAUSE_OF_STREAM_S)
        self.check(process, out, err)

    def test_a_server_that_is_frozen(self):
        freezer = self.freezer()
        server = self.serve("1:step-9:stop", *STRICT)
        freezer.add(server.pid)
        pause(1, PAUSE_OF_START_S, lambda: freezer.freeze(True), lambda: freezer.freeze(False))
        server.wait_ready()
        for pid in harness.children(server.pid):  # in case they were born before the front was in
            freezer.add(pid)
        client = server.client(*REQUEST)
        out, err = harness.Reader(client.stdout), harness.Reader(client.stderr)
        rank = harness.stopped_rank(server.pid)
        freezer.freeze(True)
        os.kill(rank, signal.SIGCONT)
        time.sleep(PAUSE_OF_STREAM_S)
        freezer.freeze(False)
        self.assertEqual(client.wait(), 0, err.rest())
        self.assertEqual(out.rest().strip(), self.expected)
        server.process.terminate()
        self.assertEqual(server.end(), 0, server.err.text())
        self.assertNotRegex(server.err.rest(), "no answer|starting the ranks again|refused")

    def hold_up_rank_1(self, hold_up) -> str:
        """Serves a stream and holds up rank 1 where it stops, and then its successor in its
        third step, after less than 16. Returns the log."""
        server = self.serve("1:step-9:stop,1:step-3:stop", *DEADLINES)
        server.wait_ready()
        client = server.client(*REQUEST)
        out, err = harness.Reader(client.stdout), harness.Reader(client.stderr)
        for restarts in (1, 2):
            hold_up(server)
            server.wait_logged("the ranks run again over", restarts)
        self.assertEqual(client.wait(), 0, err.rest())
        self.assertEqual(out.rest().strip(), self.expected)
        self.assertNotIn("refused", server.err.text())
        return server.err.text()

    def test_a_rank_that_is_stopped_alone_is_ended_and_no_request_is_blamed(self):
        log = self.hold_up_rank_1(lambda server: None)
        self.assertRegex(log, r"rank 1 \(step \d+\) is stopped by a signal")

    def test_a_rank_that_is_frozen_alone_is_ended_and_no_request_is_blamed(self):
        if not breadth.FULL:
            self.skipTest("only with SHOAL_TEST_BREADTH=full: version 1 of cgroups lets nobody die "
                          "who is frozen, so that each rank is waited for in vain for 2 s")
        freezer = self.freezer()

        def hold_up(server: harness.Server):
            rank = harness.stopped_rank(server.pid)
            freezer.add(rank)
            freezer.freeze(True)
            os.kill(rank, signal.SIGCONT)
        log = self.hold_up_rank_1(hold_up)
        self.assertRegex(log, r"rank 1 \(step \d+\) is frozen with its cgroup")
        freezer.freeze(False)


if __name__ == "__main__":
    harness.main()
