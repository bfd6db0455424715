"""Builds and runs examples/lift from a copy of only those folders that docs/transport.md lists as
sufficient.

lift_test.py COMPILER FLAGS: the compiler and flags of the build that runs this test, so that its
compiler cache can be used.
"""
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMPILER, FLAGS = sys.argv.pop(1), sys.argv.pop(1)
RANKS = 3
# Folders that must never be needed: those of the model, the server and the public API.
NOT_LIFTED = ("kernels", "models", "server", "proto", "runtime/engine", "runtime/worker")


def lifted_folders() -> list[str]:
    """The folders that docs/transport.md lists in "To lift this into another engine"."""
    section = (ROOT / "docs/transport.md").read_text().split(
        "## To lift this into another engine")[1]
    items = re.findall(r"^- (.*):", section.split("\n\n")[2], re.MULTILINE)
    return [folder for item in items for folder in re.findall(r"`([^`]+)`", item)]


class Lift(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tree = Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.tree, ignore_errors=True)
        for folder in lifted_folders() + ["examples/lift"]:
            shutil.copytree(ROOT / folder, cls.tree / folder)
        build = cls.tree / "build" / "lift"
        cls.command(["cmake", "-S", cls.tree / "examples/lift", "-B", build, "-G", "Ninja",
                     "-DSHOAL_UNITY=ON", f"-DCMAKE_CXX_COMPILER={COMPILER}",
                     f"-DCMAKE_CXX_FLAGS_RELWITHDEBINFO={FLAGS}"])
        cls.command(["cmake", "--build", build, "--parallel", "2"])
        cls.program = build / "lift"

    @classmethod
    def command(cls, words):
        done = subprocess.run([str(word) for word in words],
                              capture_output=True, text=True, timeout=900)
        if done.returncode != 0:
            raise AssertionError(f"{words}: {done.returncode}\n{done.stdout[-4000:]}\n"
                                 f"{done.stderr[-4000:]}")

    def test_the_copy_holds_nothing_else(self):
        self.assertGreaterEqual(len(lifted_folders()), 8)
        for folder in NOT_LIFTED:
            self.assertFalse((self.tree / folder).exists(), folder)
        linked = subprocess.run(["ldd", self.program], capture_output=True,
                                text=True, check=True).stdout
        self.assertNotRegex(linked, "grpc|protobuf|absl|pcre|utf8proc")

    def test_it_sums_and_survives_the_death_of_a_rank(self):
        done = subprocess.run([self.program, str(RANKS)],
                              capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        self.assertRegex(lines[0], "^(shm|memfd|cma|tcp)")
        steps = [line for line in lines if line.startswith("step ")]
        self.assertEqual([float(line.split()[-1]) for line in steps],
                         [RANKS * step + 3 for step in range(1, 7)])
        restarts = [line for line in lines if line.startswith("restart ")]
        self.assertEqual(len(restarts), 1, done.stdout)
        self.assertIn(f"restart 1 of 3: rank {RANKS - 1}", restarts[0])
        self.assertIn("killed by signal 9", restarts[0])

    def test_a_wrong_number_of_ranks_is_refused(self):
        done = subprocess.run([self.program, "1"], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 64)
        self.assertIn("[2, 16]", done.stderr)

    def test_the_example_is_short(self):
        self.assertLessEqual(len((ROOT / "examples/lift/main.cc").read_text().splitlines()), 150)


if __name__ == "__main__":
    unittest.main()
