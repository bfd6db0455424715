"""Checks that clock.py finds what depends on time, and nothing else."""
import tempfile
import unittest
from pathlib import Path

import clock


class ClockRules(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name).resolve()

    def write(self, path: str, text: str):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def found(self, text: str, path: str) -> int:
        return len(clock.signs(path, text))

    def test_lines_of_cpp(self):
        for line in ("std::this_thread::sleep_for(kStep);", "::usleep(10'000);", "::sleep(2);",
                     "::kill(child, SIGSTOP);", "Deadline::after_s(0.5)",
                     "Deadline::after_ms(9'999)",
                     "constexpr int kShortMs = 400;", "options.step_timeout_s = 1;",
                     "EXPECT_LT(seconds_since(began), 0.5);"):
            self.assertEqual(self.found(line, "a.cc"), 1, line)
        for line in ("::sleep(600);", "Deadline::after_s(10)", "Deadline::after_ms(0)",
                     "constexpr int kLongMs = 60'000;", "// SIGSTOP", "flags.sleep(1, 1, kMs);",
                     "EXPECT_LT(seconds_since(began), 60);", "slots = 2;",
                     "::usleep(1);  // no deadline: a poll"):
            self.assertEqual(self.found(line, "a.cc"), 0, line)

    def test_lines_of_python(self):
        for line in ("time.sleep(0.2)", "time.sleep(seconds)", "os.kill(pid, signal.SIGSTOP)",
                     'run("sh", "-c", "sleep 1; true")', 'run("sleep", "2")', "kill -STOP $$",
                     "call(timeout=5)", 'serve("--step-timeout", 0.5)', "process.wait(5)",
                     "self.assertLess(time.monotonic() - began, 1 * harness.PATIENCE)"):
            self.assertEqual(self.found(line, "a.py"), 1, line)
        for line in ("time.sleep(1000)", 'run("sleep", "987")', "call(timeout=60)", "# SIGSTOP",
                     'serve("--step-timeout", 300)', "process.wait(60)", '"""A SIGSTOP."""',
                     "self.assertLess(len(found), 2)", "asleep(1)",
                     "# no deadline: a poll\ntime.sleep(1)".replace("\\\n", "\n")):
            self.assertEqual(self.found(line, "a.py"), 0, line)

    def test_headers_and_helpers_count_and_other_tests_do_not(self):
        self.write("tests/a/b_test.cc", '#include "tests/a/fixture.h"\n')
        self.write("tests/a/fixture.h", "raise(SIGSTOP);\n")
        self.write("tests/e2e/c_test.py", "import helper\nimport other_test\nimport harness\n")
        self.write("tests/e2e/helper.py", "time.sleep(1)\n")
        self.write("tests/e2e/other_test.py", "time.sleep(2)\n")
        self.write("tests/e2e/harness.py", "time.sleep(3)\n")
        script = {"name": "e2e/c", "command": ["python3", f"{self.root}/tests/e2e/c_test.py"]}
        self.assertEqual(clock.signs_of_test({"name": "a/b_test", "command": ["x"]}, self.root),
                         ["tests/a/fixture.h:1: raise(SIGSTOP);"])
        self.assertEqual(clock.signs_of_test(script, self.root),
                         ["tests/e2e/helper.py:1: time.sleep(1)"])
        labels = [{"name": "LABELS", "value": ["e2e", "clock"]}]
        self.assertEqual(len(clock.problems([script], self.root)), 1)
        self.assertEqual(clock.problems([{**script, "properties": labels}], self.root), [])

    def test_only_the_classes_that_a_test_names_count(self):
        self.write("tests/e2e/d_test.py", "class Base(harness.TestCase):\n    time.sleep(1)\n"
                   "class TwoWords(Base):\n    pass\nclass Other(harness.TestCase):\n"
                   "    time.sleep(2)\n")

        def lines(*words: str) -> list[str]:
            test = {"name": "e2e/d", "command": [f"{self.root}/tests/e2e/d_test.py", *words]}
            return [sign.split(": ")[1] for sign in clock.signs_of_test(test, self.root)]
        self.assertEqual(lines(), ["time.sleep(1)", "time.sleep(2)"])
        self.assertEqual(lines("shm"), ["time.sleep(1)", "time.sleep(2)"])
        self.assertEqual(lines("two-words", "shm"), ["time.sleep(1)"])
        self.assertEqual(lines("Other"), ["time.sleep(2)"])


if __name__ == "__main__":
    unittest.main()
