"""shoal shmtest and a process that not even SIGKILL ends.

Such a process usually waits for a disk or a driver. Here it is the first process of the condition's
process namespace, which the kernel does not let end before every other process of it has been
waited for. A process outside, which the test starts, has a child in there and does not wait for it.
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import harness
from harness import SHOAL, SKIPPED
from shmtest_test import SOME_FAILED, namespaces

LEAVE_A_ZOMBIE = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
CLONE_NEWUSER, CLONE_NEWPID = 0x10000000, 0x20000000
user, pid = (os.open(f"/proc/{sys.argv[1]}/ns/{name}", os.O_RDONLY) for name in ("user", "pid"))
libc.setns(user, CLONE_NEWUSER)  # root is in the right one already
if libc.setns(pid, CLONE_NEWPID) != 0: raise SystemExit("setns failed")
child = os.fork()
if child == 0: os._exit(0)
os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
print("ready", flush=True)
sys.stdin.read()
"""
STUCK = "a process of it hangs in the kernel, and was left behind"


def pid_of(pipe: Path) -> int:
    """The process that runs `cat PIPE`."""
    return harness.wait_until(
        lambda: next((pid for pid in harness.pids()
                      if harness.words_of(pid)[:2] == ["cat", str(pipe)]), None), f"cat {pipe}")


def parent_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status[status.index("PPid:"):].split()[1])


class Stuck:
    """`shoal shmtest` whose first condition, 1m, runs `cat PIPE` and gets stuck."""

    def __init__(self, pipe: Path, *flags):
        os.mkfifo(pipe)
        self.pipe = pipe
        script = f"[ $SHOAL_SHMTEST_CONDITION = missing ] || exec cat {pipe}"
        self.shmtest = subprocess.Popen(
            [SHOAL, "shmtest", "--matrix", "1m,missing", "--jobs", "1", "--json", *flags, "--",
             "sh", "-c", script], env=harness.environment(), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        command = pid_of(pipe)
        self.pid1 = Path(f"/proc/{parent_of(command)}")
        self.zombie = subprocess.Popen([sys.executable, "-c", LEAVE_A_ZOMBIE, str(command)],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.zombie.stdout.readline() != "ready\n":
            raise unittest.SkipTest("this kernel does not let the test enter the namespace")

    def end_command(self):
        """The command ends as it wants to, because its pipe does."""
        self.pipe.open("wb").close()

    def end(self) -> str:
        """The output of shmtest. Then lets go what was stuck."""
        out, errors = self.shmtest.communicate(timeout=5 * harness.GUARD)
        assert self.pid1.exists(), "it was not stuck\n" + errors
        self.zombie.communicate(timeout=harness.GUARD)
        harness.wait_until(lambda: not self.pid1.exists(), "the process is still there")
        return out


class Kernel(harness.TestCase):
    def test_the_other_conditions_do_not_wait_for_it(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        pipes = Path(folder.name)
        hangs = Stuck(pipes / "hangs", "--timeout", "10")
        ends = Stuck(pipes / "ends")
        ends.end_command()
        stopped = Stuck(pipes / "stopped")
        stopped.shmtest.send_signal(signal.SIGINT)

        stopped.end()  # before the timeout of 600 s
        self.assertEqual(stopped.shmtest.returncode, 128 + signal.SIGINT)

        for run, end, reason in ((hangs, "hung", r"hang: killed after 10\S* s \(--timeout\); " + STUCK),
                                 (ends, "exited", STUCK)):
            with self.subTest(end):
                first, second = json.loads(run.end())["conditions"]
                self.assertEqual((first["result"], first["end"]), ("failed", end))
                self.assertRegex(first["reason"], "^" + reason)
                self.assertEqual((second["condition"], second["result"]), ("missing", "passed"))
                self.assertEqual(run.shmtest.returncode, SOME_FAILED)


if __name__ == "__main__":
    if not namespaces():
        raise SystemExit(SKIPPED)
    harness.main()
