"""The program's file changes while it serves. Ranks are started again from the file that runs, or not
at all, and the server says why."""
import os
import shutil
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

import harness

TINY = harness.ORACLE / "llama-nine-heads"
NO_PROC = ("unshare", "--mount", "sh", "-c", 'umount -l /proc && exec "$@"', "sh")


@unittest.skipIf(harness.EMULATOR, "an emulator is started on the program's path")
class ProgramFile(harness.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.program = Path(folder.name) / "shoal"
        shutil.copy(harness.SHOAL, self.program)
        self.trace = Path(folder.name) / "started"
        self.other = Path(folder.name) / "other"
        self.other.write_text(f"#!/bin/sh\ntouch {self.trace}\n")
        self.other.chmod(0o755)

    def started(self, *args, wrapper=()) -> harness.Process:
        process = harness.Process(
            [*wrapper, str(self.program), *map(str, args)], env=harness.environment(),
            start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        return process

    def serving(self, **popen):
        process = self.started("serve", TINY, "--grpc-port", 0, "-tp", 2, **popen)
        out, self.err = harness.Reader(process.stdout), harness.Reader(process.stderr)
        harness.wait_until(lambda: "\n" in out.text() or process.poll() is not None, "READY",
                           self.err.text)
        self.assertIn("READY", out.text(), self.err.text())
        return process

    def lose_a_rank(self, process):
        os.kill(harness.children(process.pid)[1], signal.SIGKILL)

    def check_lost(self, process, why: str):
        self.lose_a_rank(process)
        self.assertEqual(process.wait(), harness.WORKER_DIED, self.err.rest())
        self.assertIn("the ranks are lost and cannot be started again", self.err.rest())
        self.assertIn(why, self.err.rest())
        self.assertFalse(self.trace.exists(), "the other program was started as a rank")

    def test_ranks_are_started_from_the_file_that_runs(self):
        process = self.serving()
        os.replace(self.other, self.program)
        self.lose_a_rank(process)
        harness.wait_until(lambda: "the ranks run again" in self.err.text(), "a restart",
                           self.err.text)
        self.assertFalse(self.trace.exists())
        process.terminate()
        self.assertEqual(process.wait(), 0)

    def test_a_file_that_may_not_be_run_any_more(self):
        process = self.serving()
        self.program.chmod(0o644)
        os.replace(self.other, self.program)
        self.check_lost(process, f"tried {self.program}: Permission denied")

    @unittest.skipIf("SHOAL_TEST_SANITIZED" in os.environ,
                     "without /proc ThreadSanitizer finds no names, and so reports what is suppressed")
    def test_another_file_where_there_is_no_proc(self):
        if subprocess.run([*NO_PROC, "true"], capture_output=True).returncode != 0:
            self.skipTest("/proc cannot be unmounted here")
        process = self.serving(wrapper=NO_PROC)
        os.replace(self.other, self.program)
        self.check_lost(process, f"{self.program} is another file by now")

    def test_a_rank_of_another_build(self):
        file = bytearray(self.program.read_bytes())
        note = file.find(b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0")
        file[note + 16] ^= 1
        newer = self.other.with_name("newer")
        newer.write_bytes(file)
        newer.chmod(0o755)
        # What is named so is started with "-0 shoal PROGRAM" and the words of a rank.
        self.other.write_text(f'#!/bin/sh\nshift 3\nexec {newer} "$@"\n')
        os.environ["SHOAL_TEST_EMULATOR"] = str(self.other)
        self.addCleanup(os.environ.pop, "SHOAL_TEST_EMULATOR")
        process = self.started("generate", TINY, "--prompt-ids", "1,2", "--max-tokens", 2, "-tp", 2)
        err = process.communicate()[1].decode()
        self.assertEqual(process.returncode, harness.WORKER_DIED, err)
        self.assertRegex(err, "a rank is of build [0-9a-f]{40} and its front of build [0-9a-f]{40}")
        self.assertIn("it is of another build than this process", err)


if __name__ == "__main__":
    harness.main()
