"""shoal shmtest --min-size: the smallest /dev/shm in which a command passes, and how the search is
shown.
"""
import contextlib
import json
import os
import pty
import re
import subprocess

import harness
from harness import SHOAL, SKIPPED
from pages import PAGE
from shmtest_test import SOME_FAILED, UNTIL_A_LOOK, namespaces, shmtest


class Search(harness.TestCase):
    def search(self, *command, code: int) -> dict:
        result = shmtest("--min-size", "--json", "--", *command)
        self.assertEqual(result.returncode, code, result.stderr.decode())
        found = json.loads(result.stdout)
        self.assertEqual(result.stderr.decode().count("shmtest: ["), len(found["conditions"]))
        return found

    def test_the_smallest_size(self):
        write = ("import os\nf = open('/dev/shm/x', 'wb')\nos.unlink('/dev/shm/x')\n"
                 "f.write(b'x' * {0})\nf.flush()\n")
        for need in (3 << 20, 100 << 20):
            found = self.search("python3", "-c", write.format(need) + UNTIL_A_LOOK, code=0)
            self.assertLessEqual(need, found["min_size_bytes"])
            self.assertLessEqual(found["min_size_bytes"], need * 33 // 32 + PAGE)
            self.assertLess(found["largest_failing_bytes"], need)
            self.assertLess(len(found["conditions"]), 14)
        found = self.search("true", code=0)
        self.assertEqual((found["min_size_bytes"], found["largest_failing_bytes"]), (PAGE, None))
        # What fails on the machine as it is fails in every size.
        found = self.search("false", code=SOME_FAILED)
        self.assertEqual((found["control_failed"], found["min_size_bytes"]), (True, None))
        only_host = "test $SHOAL_SHMTEST_CONDITION = host"
        found = self.search("sh", "-c", only_host, code=SOME_FAILED)
        self.assertIsNone(found["min_size_bytes"])
        self.assertGreater(found["largest_failing_bytes"], 64 << 20)
        text = shmtest("--min-size", "--", "true").stdout.decode()
        self.assertIn("The smallest /dev/shm that passed here: "
                      f"{PAGE // 1024}k ({PAGE // 1024}.0 KiB); no size failed.\n", text)

    def on_a_terminal(self, *args) -> str:
        """What somebody sees who runs it at a terminal."""
        outer, inner = pty.openpty()
        self.addCleanup(os.close, outer)
        process = subprocess.Popen([SHOAL, "shmtest", *args], env=harness.environment(),
                                   stdin=subprocess.DEVNULL, stdout=inner, stderr=inner)
        os.close(inner)
        shown = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while data := os.read(outer, 4096):
                shown += data
        process.wait()
        return shown.decode().replace("\r\n", "\n")

    def test_a_search_shows_each_step_once(self):
        words = ("--min-size", "--", "sh", "-c", "head -c 3000000 /dev/zero > /dev/shm/x; code=$?; "
                 "rm -f /dev/shm/x; exit $code")
        piped = shmtest(*words)
        self.assertEqual((piped.returncode, piped.stderr), (0, b""))
        for text in (piped.stdout.decode(), self.on_a_terminal(*words)):
            steps = re.findall(r"(?m)^(?:shmtest: \[ *\d+\] )?(host|\d+[km]) ", text)
            self.assertEqual(steps[:2], ["host", "64m"], text)
            self.assertGreater(len(steps), 4, text)
            self.assertEqual(len(steps), len(set(steps)), text)
            self.assertRegex(text, r"\n--- \d+[km]: exit code 1\n")
            for row in re.findall(r"(?m)^\d+[km] +FAIL .*", text):
                self.assertRegex(row, r'; last line: ".*No space left on device"$')
            # Every size that is too small fails alike, so one of them shows the whole output.
            self.assertEqual(text.count("the end of its output"), 1, text)
            self.assertRegex(text, r"\nThe smallest /dev/shm that passed here: .*; it failed in .*\. The search is "
                                   r"exact to 1/32 of the size, or a page\. A need "
                                   r"that varies gives another figure, so leave room: --shm-size=4m\n\Z")


if __name__ == "__main__":
    if not namespaces():
        raise SystemExit(SKIPPED)
    harness.main()
