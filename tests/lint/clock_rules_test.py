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
        self.build = self.root / "build/release"

    def write(self, path: str, text: str):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def found(self, text: str, path: str) -> int:
        return len(clock.signs(path, text))

    def signs(self, name: str, *words: str) -> list[str]:
        """What shows that the test with this command depends on time."""
        test = {"name": name, "command": [*words]}
        return clock.signs_of(clock.sources_of(test, self.build, self.root), self.root)

    def problem(self, name: str, *words: str, labels: list[str] = []) -> str:
        test = {"name": name, "command": [*words],
                "properties": [{"name": "LABELS", "value": labels}]}
        return "\n".join(clock.problems([test], self.build, self.root))

    def test_lines_of_cpp(self):
        for line in ("std::this_thread::sleep_for(kStep);", "::usleep(10'000);", "::sleep(2);",
                     "this_thread::sleep_until(later);", "sleep_for(5ms);", "::alarm(5);",
                     "::clock_nanosleep(CLOCK_MONOTONIC, 0, &time, nullptr);",
                     "::poll(&one, 1, 200);", "later.wait_for(20ms);", "::raise(SIGTSTP);",
                     "::kill(child, SIGSTOP);", "Deadline::after_s(0.5)",
                     "Deadline::after_ms(9'999)",
                     "constexpr int kShortMs = 400;", "options.step_timeout_s = 1;",
                     "EXPECT_LT(seconds_since(began), 0.5);",
                     "context.set_deadline(now() + std::chrono::milliseconds(200));",
                     "context.set_deadline(now() +\n    std::chrono::seconds(5));",
                     "changed_.wait_for(lock, milliseconds(20), [&] { return over; });",
                     "changed->wait_for(lock, kShort);", "later.wait_until(soon)"):
            self.assertEqual(self.found(line, "a.cc"), 1, line)
        for line in ("::sleep(600);", "::alarm(60);", "::poll(&one, 1, 0);", "::poll(&one, 1, -1);",
                     "Deadline::after_s(10)", "Deadline::after_ms(0)",
                     "constexpr int kLongMs = 60'000;", "// SIGSTOP", "flags.sleep(1, 1, kMs);",
                     "EXPECT_LT(seconds_since(began), 60);", "slots = 2;",
                     "::usleep(1);  // no deadline: a poll", "wait_for(event);",
                     "context.set_deadline(now() + std::chrono::seconds(60));",
                     "changed_.wait_for(lock, std::chrono::milliseconds(kGuardMs));",
                     "// no deadline: it never comes\nlater.wait_for(\n    milliseconds(20))"):
            self.assertEqual(self.found(line, "a.cc"), 0, line)

    def test_lines_of_python(self):
        for line in ("time.sleep(0.2)", "time.sleep(seconds)", "os.kill(pid, signal.SIGSTOP)",
                     'run("sh", "-c", "sleep 1; true")', 'run("sleep", "2")', "kill -STOP $$",
                     "call(timeout=5)", 'serve("--step-timeout", 0.5)', "process.wait(5)",
                     "one.settimeout(0.5)", "thread.join(2)", "call.result(5)", "signal.alarm(5)",
                     "select.select([one], [], [], 0.5)", "wait_until(it, 'it', guard=5)",
                     "socket.create_connection(('::1', 80), 2)", "os.kill(pid, signal.SIGTSTP)",
                     "self.assertLess(time.monotonic() - began, 1 * harness.PATIENCE)"):
            self.assertEqual(self.found(line, "a.py"), 1, line)
        for line in ("thread.join(60)", "', '.join(words)", "wait(guard=5 * harness.GUARD)",
                     '{{ xs | select("gt", 9) }}', "one.settimeout(None)",
                     "socket.create_connection(address, harness.GUARD)",
                     "time.sleep(1000)", 'run("sleep", "987")', "call(timeout=60)", "# SIGSTOP",
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
        self.assertEqual(self.signs("a/b_test"), ["tests/a/fixture.h:1: raise(SIGSTOP);"])
        interpreter = self.root / "build/venv/bin/python"
        interpreter.parent.mkdir(parents=True)
        interpreter.write_bytes(b"\xff")
        script = ("e2e/c", str(interpreter), f"{self.root}/tests/e2e/c_test.py")
        self.assertEqual(self.signs(*script), ["tests/e2e/helper.py:1: time.sleep(1)"])
        self.assertRegex(self.problem(*script), "^e2e/c needs the label clock")
        self.assertEqual(self.problem(*script, labels=["e2e", "clock"]), "")

    def test_the_source_of_a_helpers_header_counts(self):
        self.write("tests/a/b_test.cc", '#include "tests/a/helper.h"\n')
        self.write("tests/a/helper.h", "void poll_it();\n")
        self.write("tests/a/helper.cc", '#include "tests/a/helper.h"\n::usleep(200);\n')
        self.assertEqual(self.signs("a/b_test"), ["tests/a/helper.cc:2: ::usleep(200);"])

    def test_a_program_has_the_sources_that_cmake_names_for_it(self):
        self.write("tests/gpu/CMakeLists.txt",
                   "add_executable(gpu gpu_main.cc\n    cases.cc ${other}/far.cc)\n")
        self.write("tests/gpu/gpu_main.cc", "int main() {}\n")
        self.write("tests/gpu/cases.cc", "setup.timeout_ms = 3'000;\n")
        program = f"{self.build}/tests/gpu/gpu"
        self.assertEqual(self.signs("conformance/device", "wrapper.sh", program, "--only", "tcp/"),
                         ["tests/gpu/cases.cc:1: setup.timeout_ms = 3'000;"])

    def test_a_source_that_is_not_found_is_an_error(self):
        self.write("tests/gpu/CMakeLists.txt", "add_executable(gpu gpu_main.cc)\n")
        other = f"{self.build}/tests/gpu/other"
        for words in ((), ("a/wrapper.sh", "/usr/bin/true"), (other,)):
            self.assertRegex(self.problem("a/lost", *words), "^a/lost: its source is not found")
        self.assertEqual(self.problem("lint/lost", labels=["lint"]), "")

    def test_every_name_in_the_tables_is_that_of_a_test(self):
        tables = '# of a (test)\nset(CLOCK "a/(b|c/(d|e)|f/.*)_test" "g")\n' \
                 "set(COSTS a/b_test=9\n    g=1)  # more\n"
        names = ["a/b_test", "a/c/d_test", "a/c/e_test", "a/f/x_test", "g"]
        self.assertEqual(clock.unknown_names(tables, names), [])
        for gone, unknown in (("a/c/e_test", ["CLOCK: no test has the name a/c/e_test"]),
                              ("a/f/x_test", ["CLOCK: no test has the name a/f/.*_test"]),
                              ("g", ["CLOCK: no test has the name g",
                                     "COSTS: no test has the name g"])):
            left = [name for name in names if name != gone] + [f"{gone}er"]
            self.assertEqual(clock.unknown_names(tables, left),
                             [f"tests/tables.cmake: {one}" for one in unknown])

    def test_a_limit_that_ends_a_hang_is_made_of_the_guard(self):
        self.write("tests/e2e/e_test.py",
                   "run(timeout=240)\nrun(timeout=4 * harness.GUARD)\nrun(timeout=2)\n"
                   "run(startup_timeout=60)\nthread.join(120)\nthread.join(2 * harness.GUARD)\n"
                   "run(timeout=60)  # no deadline: the server's own\n")
        self.write("tests/e2e/lift_test.py", "run(timeout=900)\n")
        self.assertEqual(clock.own_guards(self.root),
                         [f"tests/e2e/e_test.py:{line}: write a multiple of harness.GUARD"
                          for line in ("1: timeout=240", "5: .join(120")])

    def test_only_the_classes_that_a_test_names_count(self):
        self.write("tests/e2e/d_test.py", "class Base(harness.TestCase):\n    time.sleep(1)\n"
                   "class TwoWords(Base):\n    pass\nclass Other(harness.TestCase):\n"
                   "    time.sleep(2)\n")

        def lines(*words: str) -> list[str]:
            script = f"{self.root}/tests/e2e/d_test.py"
            return [sign.split(": ")[1] for sign in self.signs("e2e/d", script, *words)]
        self.assertEqual(lines(), ["time.sleep(1)", "time.sleep(2)"])
        self.assertEqual(lines("shm"), ["time.sleep(1)", "time.sleep(2)"])
        self.assertEqual(lines("two-words", "shm"), ["time.sleep(1)"])
        self.assertEqual(lines("Other"), ["time.sleep(2)"])


if __name__ == "__main__":
    unittest.main()
