"""The narrow choice of combinations must still find what it is meant to find, tests in Python and in
C++ have the same patience and days, and filters of system calls have the kernel's numbers:
breadth_test.py"""
import itertools
import os
import platform
import subprocess
import sys
import unittest
from pathlib import Path

import breadth
import denied

SETTINGS = [[1, 2, 3, 8], [1, 2, 3], ["shm", "tcp"], [None, 7, 64], [None, 40, 77]]


class Pairs(unittest.TestCase):
    def test_a_fault_of_any_two_settings_shows(self):
        chosen = breadth.pairs(SETTINGS)
        for (i, first), (k, second) in itertools.combinations(enumerate(SETTINGS), 2):
            for a, b in itertools.product(first, second):
                self.assertTrue(any(c[i] == a and c[k] == b for c in chosen),
                                f"{a} of {i} never meets {b} of {k}")

    def test_they_are_few(self):
        self.assertLessEqual(len(breadth.pairs(SETTINGS)), 14)

    def test_one_dimension_is_all_its_values_with_the_other(self):
        self.assertEqual(sorted(breadth.pairs([[1, 2], [3, 4]])), [(1, 3), (1, 4), (2, 3), (2, 4)])


def compiles(text: str, *flags: str) -> subprocess.CompletedProcess:
    return subprocess.run(["c++", "-std=c++20", "-fsyntax-only", *flags, "-xc++", "-"], input=text,
                          capture_output=True, text=True)


class SystemCalls(unittest.TestCase):
    def test_the_filters_have_the_numbers_of_the_kernel(self):
        # Arm's are those of every processor without a table of its own, whose header all have.
        headers = {platform.machine(): "asm/unistd.h", "aarch64": "asm-generic/unistd.h"}
        for machine, header in headers.items():
            done = compiles(f"#include <{header}>\n" + "".join(
                f"static_assert(__NR_{call} == {number});\n"
                for call, number in denied.CALLS[machine].items()), "-D__ARCH_WANT_SYS_CLONE3")
            self.assertEqual(done.returncode, 0, machine + done.stderr)
        self.assertEqual(*(set(calls) for calls in denied.CALLS.values()))


class Both(unittest.TestCase):
    """What Python and C++ have each in a file of its own."""

    def test_they_wait_equally_long_and_count_the_same_days(self):
        folder, root = Path(__file__).parent, Path(__file__).resolve().parents[2]
        plain = {name: value for name, value in os.environ.items()
                 if name not in ("SHOAL_TEST_SANITIZED", "SHOAL_TEST_EMULATOR")}
        for macro, variable in (("SHOAL_NONE", {}),
                                ("SHOAL_SANITIZED", {"SHOAL_TEST_SANITIZED": "1"}),
                                ("SHOAL_EMULATED", {"SHOAL_TEST_EMULATOR": "qemu"})):
            seconds, days = subprocess.check_output(
                [sys.executable, "-c", "import breadth, harness\n"
                 "print(harness.GUARD, breadth.DAYS_BETWEEN_RUNS)"], cwd=folder,
                env={**plain, **variable}, text=True).split()
            done = compiles('#include "tests/breadth.h"\n#include "tests/guard.h"\n'
                            f"static_assert(shoal::kGuardSeconds == {seconds});\n"
                            f"static_assert(shoal::kDaysBetweenRuns == {days});\n",
                            f"-D{macro}", f"-I{root}")
            self.assertEqual(done.returncode, 0, macro + done.stderr)

    def test_an_emulators_days_are_those_on_which_it_runs(self):
        root = Path(__file__).resolve().parents[2]
        arm64_days = subprocess.check_output(
            [sys.executable, "-c", "import run_parts; print(run_parts.ARM64_DAYS)"],
            cwd=root / "scripts", text=True)
        days = [subprocess.check_output(
            [sys.executable, "-c", "import breadth; print(breadth.day())"],
            cwd=Path(__file__).parent, text=True,
            env={**os.environ, "SHOAL_TEST_EMULATOR": "qemu", "SHOAL_TEST_DAY": str(day)})
            for day in (0, int(arm64_days), 2 * int(arm64_days))]
        self.assertEqual([int(day) for day in days], [0, 1, 2])


if __name__ == "__main__":
    unittest.main()
