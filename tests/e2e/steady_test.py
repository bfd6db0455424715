"""scripts/steady: how it counts, and that nothing stays frozen, over small CTest folders."""
import contextlib
import functools
import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import stalls  # noqa: E402
import steady  # noqa: E402
from run_tests import Phase  # noqa: E402

# Writes the longest time between two looks at the clock.
LOOKS = """import sys, time
longest, last = 0, time.monotonic()
while True:
    now = time.monotonic()
    if now - last > longest:
        longest = now - last
        with open(sys.argv[1], "w") as file: file.write(str(longest))
    last = now
    time.sleep(0.001)
"""


def wait_until(condition):
    """CTest ends the test if it never does."""
    while not condition():
        time.sleep(0.01)


def runs(pid: int) -> bool:
    """Also one that has ended runs no longer, whose parent has not yet asked for its end."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def phase(self, **tests: str) -> Phase:
        (self.folder / "CTestTestfile.cmake").write_text("".join(
            f"add_test({name} sh -c [==[{command}]==] {self.folder / name})\n"
            for name, command in tests.items()))
        return Phase("small", self.folder)

    def rounds(self, count: int, phase: Phase, seconds: float | None = None,
               every: float = 20) -> tuple[steady.Tally, str]:
        shown = io.TextIOWrapper(io.BytesIO())
        with contextlib.redirect_stdout(shown), steady.disturbed(every, 1) as beside:
            tally = steady.run_rounds([phase], count, seconds, self.folder / "kept", beside)
        tally.stalls = beside.count
        shown.seek(0)
        return tally, shown.read()


class Tallies(Folder):
    def test_first_failures_and_red_tests_are_counted_by_name(self):
        # Its second and third runs are the repetitions.
        shaky = "echo run >> $0; [ $(($(wc -l < $0) % 3)) != 1 ]"
        tally, text = self.rounds(2, self.phase(good="true", shaky=shaky, broken="exit 1"))
        self.assertEqual((dict(tally.first), dict(tally.red)),
                         ({"shaky": 2, "broken": 2}, {"broken": 2}))
        self.assertIn("| shaky | 2 | 0 |\n| **all** | **4** | **2** |", text)
        tally.stalls = 1
        self.assertEqual(tally.verdict(), "a test was red")
        self.assertTrue((self.folder / "kept/2" / self.folder.name / "shaky.log").exists())

    def test_ten_rounds_may_have_two_first_failures_and_no_red_one(self):
        for rounds, first, red, wrong in ((10, 2, 0, ""), (10, 3, 0, "too many"),
                                          (1, 1, 0, "too many"), (1, 0, 0, ""), (10, 1, 1, "red")):
            tally = steady.Tally(rounds, stalls=1)
            tally.first["a/test"] += first
            if red:
                tally.red["a/test"] += red
            self.assertRegex(tally.verdict(), wrong or "^$", (rounds, first, red))

    def test_a_run_in_which_nothing_stood_still_proves_nothing(self):
        tally, _ = self.rounds(1, self.phase(good="true"), every=1000)
        self.assertEqual((dict(tally.red), dict(tally.first), tally.stalls), ({}, {}, 0))
        self.assertRegex(tally.verdict(), "proves nothing")
        seldom = functools.partial(steady.disturbed, 1000)
        with unittest.mock.patch.multiple(steady, run_rounds=lambda *_: tally, disturbed=seldom,
                                          KEPT=self.folder / "kept"), \
                unittest.mock.patch.object(steady.run_parts, "prepare_process"), \
                contextlib.redirect_stdout(io.StringIO()) as shown:
            self.assertEqual(steady.main(["1"]), 1)
        self.assertRegex(shown.getvalue(), "steady: no: nothing stood still")


class StandsStill(Folder):
    def setUp(self):
        super().setUp()
        if not (freezer := stalls.new_freezer()):
            self.skipTest("no freezer can be made here")
        self.freezer = freezer
        self.addCleanup(freezer.remove)
        self.seen = self.folder / "longest"

    def look(self):
        process = subprocess.Popen([*self.freezer.joined_by(), sys.executable, "-c", LOOKS,
                                    self.seen])
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        wait_until(self.seen.exists)

    def longest(self) -> float:
        return float(self.seen.read_text() or 0)

    def frozen(self) -> bool:
        return self.freezer.file.read_text().strip() in ("1", "FROZEN", "FREEZING")

    def test_a_stall_holds_what_is_in_the_cgroup(self):
        self.look()
        beside = stalls.Stalls(0.1, self.freezer)
        wait_until(lambda: self.longest() > 0.9 * stalls.LEAST_S)
        wait_until(self.frozen)
        beside.end()
        self.assertGreater(beside.count, 0)
        self.assertFalse(self.freezer.folder.exists(), "it ends what is left in it")

    def test_it_goes_on_if_the_process_that_makes_the_stalls_is_killed(self):
        self.look()
        beside = stalls.Stalls(0.01, self.freezer)
        wait_until(self.frozen)
        beside.process.kill()
        wait_until(lambda: not beside.alive())
        self.assertFalse(self.frozen())
        beside.end()

    def test_it_goes_on_if_the_process_that_runs_the_tests_is_killed(self):
        own = f"import sys, stalls\nfrom pathlib import Path\n" \
              f"stalls.Stalls(0.01, stalls.Freezer(Path(sys.argv[1])))\nsys.stdin.read()"
        run = subprocess.Popen([sys.executable, "-c", own, self.freezer.folder],
                               stdin=subprocess.PIPE, cwd=ROOT / "scripts")
        with run:
            wait_until(self.frozen)
            run.send_signal(signal.SIGKILL)
        wait_until(lambda: not self.freezer.folder.exists())

    def test_the_next_run_removes_what_killed_processes_left_frozen(self):
        own = "import subprocess, sys, stalls\n" \
              "freezer = stalls.new_freezer()\n" \
              "member = subprocess.Popen([*freezer.joined_by(), 'sleep', '1000'], stdout=2)\n" \
              "while not (freezer.folder / 'cgroup.procs').read_text(): pass\n" \
              "freezer.freeze()\n" \
              "print(freezer.folder, flush=True)\nsys.stdin.read()"
        run = subprocess.Popen([sys.executable, "-c", own], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, cwd=ROOT / "scripts", text=True)
        with run:
            left = Path(run.stdout.readline().strip())
            member = int((left / "cgroup.procs").read_text())
            stalls.new_freezer().remove()
            self.assertTrue(left.exists(), "its process lives")
            run.kill()
        stalls.new_freezer().remove()
        self.assertFalse(left.exists())
        wait_until(lambda: not runs(member))
        self.assertTrue(self.freezer.folder.exists(), "it is in use")

    def test_a_cgroup_that_no_process_can_join_is_no_freezer(self):
        tried = []

        def refuses(freezer: stalls.Freezer) -> tuple[str, ...]:
            tried.append(freezer.folder)
            return ("false",)
        with unittest.mock.patch.object(stalls.Freezer, "joined_by", refuses):
            self.assertIsNone(stalls.new_freezer())
        self.assertTrue(tried)
        self.assertFalse([folder for folder in tried if folder.exists()])


class RealTime(unittest.TestCase):
    def test_processors_are_held_for_the_time_or_it_says_that_they_cannot_be(self):
        began = time.monotonic()
        try:
            stalls.hold_processors(0.02)
        except OSError:
            self.assertRegex(str(sys.exc_info()[1]), "neither a freezer nor")
        else:
            self.assertGreaterEqual(time.monotonic() - began, 0.02)
        self.assertEqual(os.sched_getscheduler(0), os.SCHED_OTHER)


class Disturbed(Folder):
    def test_the_tests_run_in_the_cgroup_and_nothing_is_left(self):
        if not (freezer := stalls.new_freezer()):
            self.skipTest("no cgroup can be frozen here, and nobody else is to be held up")
        freezer.remove()
        tally, text = self.rounds(1, self.phase(good="cat /proc/self/cgroup > $0"), every=0.1)
        self.assertEqual((dict(tally.red), dict(tally.first)), ({}, {}))
        if found := re.search(r"the freezer (\S+)", text):
            self.assertIn(Path(found[1]).name, (self.folder / "good").read_text())
            self.assertFalse(Path(found[1]).exists())

    def test_the_end_of_the_time_is_red_and_ends_the_rounds(self):
        tally, _ = self.rounds(3, self.phase(hangs="exec sleep 600"), seconds=5)
        self.assertEqual((tally.rounds, tally.red["the time is over: hangs"]), (1, 1))


if __name__ == "__main__":
    unittest.main(verbosity=2)
