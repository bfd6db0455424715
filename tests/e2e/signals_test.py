"""What a server and its ranks do about signals besides SIGTERM and SIGINT (faults_test.py)."""
import fcntl
import os
import re
import resource
import signal
import sys
import tempfile
import termios
import unittest
from pathlib import Path

import denied
import harness

TINY = harness.ORACLE / "llama-nine-heads"
SHORT = ("--prompt-ids", "1,2", "--max-tokens", 2)
REQUEST = ("--prompt-ids", "0,1151,262,2088", "--max-tokens", 40, "--ignore-eos",
           "--temperature", 0)
PATIENT = ("--step-timeout", 5 * harness.GUARD, "--shutdown-timeout", 5 * harness.GUARD)
IGNORED = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)
TO_THE_FRONT = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, *IGNORED)


def has(status: str, field: str, number: int) -> bool:
    """Whether a field of /proc/PID/status, such as SigIgn, has the signal."""
    return bool(int(re.search(rf"{field}:\s*(\w+)", status)[1], 16) >> (number - 1) & 1)


def status_of(pid: int) -> str:
    return Path(f"/proc/{pid}/status").read_text()


class Signals(harness.TestCase):
    def check_serves(self, server):
        client = server.client(*SHORT)
        self.assertEqual(client.wait(), 0, client.communicate()[1])
        client.communicate()

    def stop(self, server):
        server.process.terminate()
        self.assertEqual(server.end(), 0, server.err.text())

    def test_a_terminal_that_closes_lets_streams_finish(self):
        whole = harness.run("generate", harness.DEMO, *REQUEST).stdout.decode()
        master, slave = os.openpty()
        with harness.planted("1:step-9:stop"):
            server = self.serve(harness.DEMO, "-tp", 2, *PATIENT,
                                preexec_fn=lambda: fcntl.ioctl(slave, termios.TIOCSCTTY, 0))
        os.close(slave)
        server.wait_ready()
        client = server.client(*REQUEST)
        out, err = harness.Reader(client.stdout), harness.Reader(client.stderr)
        rank = harness.stopped_rank(server.pid)
        os.close(master)
        server.wait_logged("stopping: 1 request may finish within ")
        os.kill(server.pid, signal.SIGHUP)  # a shell sends another one
        os.kill(rank, signal.SIGCONT)
        self.assertEqual(client.wait(), 0, err.rest())
        self.assertEqual(server.end(), 0, server.err.text())
        self.assertEqual(out.rest().strip(), whole.strip())
        self.assertNotIn("SIGHUP", server.err.rest())

    def test_a_hangup_without_a_terminal_is_a_line_and_a_look_at_secrets(self):
        """The manuals say the same as the line. tls_files_test.py has what such a look finds."""
        look = "certificates and keys are read again if they have changed"
        manual = " ".join(harness.run("help", "--man").stdout.decode().split())
        manual = manual.replace(r"\:", "")  # where a line may break
        for text in (manual, (harness.ROOT / "docs/operations.md").read_text()):
            self.assertIn(f"it is a line in the log, and {look}", text)
        server = self.serve(TINY, "-tp", 2)
        server.wait_ready()
        ranks = server.workers(2)
        for count in (1, 2):
            os.killpg(server.pid, signal.SIGHUP)
            server.wait_logged(f"SIGHUP: without a controlling terminal it ends nothing; {look}",
                               count)
        self.check_serves(server)
        self.assertEqual(server.workers(2), ranks)
        self.stop(server)

    def test_others_are_ignored(self):
        server = self.serve(TINY, "-tp", 2)
        server.wait_ready()
        ranks = server.workers(2)
        for number in IGNORED:
            os.killpg(server.pid, number)
        self.check_serves(server)
        self.assertEqual(server.workers(2), ranks, server.err.text())
        for number in IGNORED:
            self.assertTrue(has(status_of(server.pid), "SigIgn", number), number)
        for rank in ranks:
            for number in TO_THE_FRONT:
                self.assertTrue(has(status_of(rank), "SigIgn", number), number)
        self.stop(server)

    @unittest.skipIf(harness.EMULATOR, "ranks are started by another emulator")
    def test_no_rank_can_be_hit_before_its_first_instruction(self):
        with tempfile.TemporaryDirectory() as folder:
            # What is named so is started with "-0 shoal PROGRAM" and the words of a rank.
            starter = Path(folder) / "starter"
            starter.write_text(
                f"#!{sys.executable}\n"  # no shell, which would take all signals again
                "import os, shutil, sys\n"
                "words = sys.argv[3:]\n"
                "if words[1] == 'worker':\n"
                f"    shutil.copy('/proc/self/status', os.path.join({folder!r}, words[3]))\n"
                "os.execv(words[0], words)\n")
            starter.chmod(0o755)
            os.environ["SHOAL_TEST_EMULATOR"] = str(starter)
            try:
                harness.run("generate", TINY, *SHORT, "-tp", 2)
            finally:
                del os.environ["SHOAL_TEST_EMULATOR"]
            for rank in ("rank-0", "rank-1"):
                status = (Path(folder) / rank).read_text()
                for number in TO_THE_FRONT:
                    self.assertTrue(has(status, "SigBlk", number) or has(status, "SigIgn", number),
                                    f"{rank} {number!r}: {status}")

    def test_what_is_ignored_at_the_start_stays_so(self):
        numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)

        def ignore():
            for number in numbers:
                signal.signal(number, signal.SIG_IGN)
        server = self.serve(TINY, "-tp", 2, preexec_fn=ignore)
        server.wait_ready()
        for number in numbers:
            os.killpg(server.pid, number)
            self.assertTrue(has(status_of(server.pid), "SigIgn", number))
            self.assertFalse(has(status_of(server.pid), "SigBlk", number), "it would be received")
        self.check_serves(server)
        self.stop(server)
        self.assertNotIn("SIGHUP", server.err.rest())

    @unittest.skipIf("SHOAL_TEST_SANITIZED" in os.environ, "a sanitizer has a report of its own")
    def test_a_fault_of_the_front_leaves_a_line(self):
        server = self.serve(TINY, "-tp", 2, preexec_fn=denied.limit(resource.RLIMIT_CORE, 0))
        server.wait_ready()
        os.kill(server.pid, signal.SIGBUS)
        self.assertEqual(server.end(), -signal.SIGBUS)
        self.assertIn("shoal: error: INTERNAL: the program dies of SIGBUS, ", server.err.rest())
        self.assertIn(f", which process {os.getpid()} has sent\n", server.err.rest())


if __name__ == "__main__":
    harness.main()
