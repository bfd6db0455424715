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
        harness.wait_until(lambda: not (self.path / "cgroup.procs").read_text(), 10, "an empty cgroup")
        self.path.rmdir()


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


if __name__ == "__main__":
    harness.main()
