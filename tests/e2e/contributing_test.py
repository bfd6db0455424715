"""Checks that the commands in CONTRIBUTING.md work: contributing_test.py [TEST...]"""
import re
import shutil
import subprocess
import unittest

import harness

TEXT = (harness.ROOT / "CONTRIBUTING.md").read_text()


class Commands(harness.TestCase):
    def test_gdb_stops_in_the_worker(self):
        """Runs the lines of the document, with commands for gdb instead of a person's input."""
        if shutil.which("gdb") is None:
            raise unittest.SkipTest("no gdb here")
        lines = re.search(r"<!-- gdb: begin -->\n```sh\n(.*?)```\n<!-- gdb: end -->", TEXT,
                          re.DOTALL)[1]
        lines = lines.replace("build/release/shoal", harness.SHOAL)
        # Find only this test's own rank, not one of a test that runs beside it.
        lines = (lines.replace("pgrep -f", "pgrep -P $! -f")
                 .replace("gdb -p", "gdb -q -nx -batch -p"))
        script = lines.rstrip("\n") + " -ex backtrace -ex delete -ex continue\nwait $!\n"
        done = subprocess.run(["bash", "-c", script], cwd=harness.ROOT, capture_output=True,
                              text=True, timeout=4 * harness.GUARD, env=harness.environment())
        if "Operation not permitted" in done.stderr:
            raise unittest.SkipTest("attaching is forbidden here")
        self.assertRegex(done.stdout, r"hit Breakpoint|Breakpoint 1, ")
        self.assertRegex(done.stdout, r"#0  shoal::forward")
        self.assertIn("shoal::worker_main", done.stdout)
        self.assertIn("exited normally", done.stdout, "the rank went on, and the front ended it")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_presets_find_the_tests(self):
        for line in re.findall(r"ctest --preset release -[RL] [\w/]+", TEXT):
            listed = subprocess.run([*line.split(), "-N"], cwd=harness.ROOT,
                                    capture_output=True, text=True)
            if "No such preset" not in listed.stderr and not (
                    harness.ROOT / "build/release/CTestTestfile.cmake").exists():
                raise unittest.SkipTest("no release build here")
            self.assertEqual(listed.returncode, 0, listed.stderr)
            self.assertRegex(listed.stdout, r"Total Tests: [1-9]", line)

    def test_programs_of_the_tests_exist(self):
        """What `scripts/build` is told to build; a recipe for a flag says how to try it."""
        named = {word for line in re.findall(r"scripts/build \w+ (.*)", TEXT)
                 for word in re.findall(r"\btest_\w+", line)}
        self.assertLessEqual({"test_runtime_base", "test_server_cli"}, named)
        tests = harness.ROOT / "tests"
        made = {"test_" + "_".join(file.parent.relative_to(tests).parts)
                for file in tests.rglob("CMakeLists.txt")}
        self.assertLessEqual(named, made)

    def test_scripts_exist(self):
        named = set(re.findall(r"\bscripts/[\w-]+", TEXT))
        self.assertGreater(len(named), 6)
        for script in named:
            self.assertTrue((harness.ROOT / script).exists(), script)


if __name__ == "__main__":
    harness.main()
