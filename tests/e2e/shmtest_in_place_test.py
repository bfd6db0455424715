"""shoal shmtest where the kernel allows no namespaces, as in a pod: it can try the machine as it is,
and nothing else.
"""
import json
import platform
import subprocess
import unittest
from pathlib import Path

import denied
import harness
from doctor_test import NAMESPACE, namespaces_work
from harness import SHOAL, UNAVAILABLE
from shmtest_test import SOME_FAILED

# Makes a name in a fresh /dev/shm, and then runs "$@" where no namespace can be made.
IN_PLACE = """
mount -t tmpfs tmpfs /dev/shm
touch /dev/shm/mine
exec python3 -c 'import denied, os, sys
denied.deny(denied.UNSHARE, 1)()
os.execvp(sys.argv[1], sys.argv[1:])' "$@"
"""


@unittest.skipUnless(namespaces_work() and platform.machine() == "x86_64",
                     "the place is made with a namespace and a filter with x86-64's numbers")
class InPlace(harness.TestCase):
    def run_in_place(self, *words, tag: str = "") -> subprocess.CompletedProcess:
        environment = {**harness.environment(), "PYTHONPATH": str(Path(denied.__file__).parent),
                       "IN_PLACE_TEST": tag}
        return subprocess.run([*NAMESPACE, "sh", "-ec", IN_PLACE, "sh", SHOAL, "shmtest",
                               *map(str, words)], env=environment, capture_output=True, timeout=10 * harness.GUARD,
                              stdin=subprocess.DEVNULL)

    def one(self, *command, code: int, flags=(), tag: str = "") -> dict:
        done = self.run_in_place("--matrix", "host", "--json", *flags, "--", *command, tag=tag)
        self.assertEqual(done.returncode, code, done.stderr.decode())
        [entry] = json.loads(done.stdout)["conditions"]
        return entry

    def test_how_it_ended(self):
        entry = self.one("sh", "-c", "echo out; test $SHOAL_SHMTEST_CONDITION = host", code=0)
        self.assertEqual((entry["result"], entry["trace"]), ("passed", "complete"))
        entry = self.one("sh", "-c", "echo out; exit 7", code=SOME_FAILED)
        self.assertEqual((entry["exit_code"], entry["output_tail"]), (7, "out\n"))
        entry = self.one("sh", "-c", "sh -c 'kill -BUS $$'; exit 0", code=0)
        self.assertTrue(entry["sigbus"])
        self.assertRegex(entry["reason"], r"^SIGBUS killed process \d+ \(sh\)$")

    def test_what_it_took_and_left(self):
        entry = self.one("sh", "-c", "head -c 8192 /dev/zero > /dev/shm/left", code=SOME_FAILED)
        self.assertEqual((entry["shm_peak_bytes"], entry["left"]),
                         (8192, [{"name": "left", "bytes": 8192}]))

    def tagged(self, tag: str) -> list[str]:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if f"IN_PLACE_TEST={tag}\0".encode() in (process / "environ").read_bytes():
                    found.append((process / "comm").read_text().strip())
            except OSError:
                pass
        return found

    def test_what_outlives_it_is_named_and_killed(self):
        # A daemon is nobody's child and in nobody's group.
        daemon = "setsid sh -c 'sleep 987 & sleep 987' & exit 0"
        entry = self.one("sh", "-c", daemon, code=SOME_FAILED, tag="daemon")
        self.assertEqual((entry["end"], entry["exit_code"]), ("exited", 0))
        self.assertGreaterEqual(len(entry["orphans"]), 1)
        self.assertEqual(self.tagged("daemon"), [])

    def test_a_hang_is_killed_with_all_its_processes(self):
        entry = self.one("sh", "-c", "trap '' TERM; setsid sleep 987 & sleep 987",
                         code=SOME_FAILED, flags=("--timeout", 15), tag="hang")
        self.assertEqual(entry["end"], "hung")
        self.assertEqual(sum("sleep" in process for process in entry["orphans"]), 2)
        self.assertEqual(self.tagged("hang"), [])

    def test_everything_else_still_needs_namespaces(self):
        for words in (("--matrix", "host,4k"), ("--matrix", "4k"), ("--min-size",)):
            done = self.run_in_place(*words, "--", "true")
            self.assertEqual((done.returncode, done.stdout), (UNAVAILABLE, b""), words)
            self.assertIn(b"namespace", done.stderr)


if __name__ == "__main__":
    harness.main()
