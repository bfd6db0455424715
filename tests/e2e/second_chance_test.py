"""What scripts/test does with tests that fail: scripts/run_tests.py over small CTest folders."""
import contextlib
import dataclasses
import datetime
import io
import os
import re
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import run_parts  # noqa: E402
import run_tests  # noqa: E402
import unsteady  # noqa: E402
from run_tests import Deadline, OutOfTime, Phase, Verdict  # noqa: E402

FAILS = "echo 'it is broken'; exit 1"
HANGS = "echo 'it waits'; exec sleep 600"


def at_first(times: int, what: str = FAILS) -> str:
    """A shell test that does this in its first runs, and passes from then on."""
    return f"echo run >> $0; [ $(wc -l < $0) -gt {times} ] || {{ {what}; }}"


# Passes in every second run, so never twice in a row.
ALTERNATES = f"echo run >> $0; [ $(($(wc -l < $0) % 2)) = 0 ] || {{ {FAILS}; }}"


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        here = os.getcwd()
        os.chdir(self.folder)
        self.addCleanup(os.chdir, here)

    def phase(self, tests: dict[str, str], properties: dict[str, str] | None = None,
              **more) -> Phase:
        """A phase whose tests are these shell commands. $0 is a file of the test's own."""
        text = ""
        for name, command in tests.items():
            file = self.folder / name.replace("/", "_")
            its = (properties or {}).get(name, "TIMEOUT 200")
            text += f"add_test({name} sh -c [==[{command}]==] {file})\n" \
                    f"set_tests_properties({name} PROPERTIES {its})\n"
        (self.folder / "CTestTestfile.cmake").write_text(text)
        return Phase("small", self.folder, **more)

    def run_quietly(self, phase: Phase, deadline=Deadline(None)) -> Verdict:
        verdict = Verdict()
        with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())):
            run_tests.run_phases([phase], deadline, verdict)
        self.assertEqual(verdict.errors, [])
        return verdict

    def runs(self, name: str) -> int:
        return len((self.folder / name.replace("/", "_")).read_text().splitlines())

    def names(self, failures: list[run_tests.Failure]) -> set[str]:
        return {failure.first.name for failure in failures}


class SecondChance(Folder):
    def test_what_passes_alone_is_unsteady_and_what_does_not_has_failed(self):
        verdict = self.run_quietly(self.phase(
            {"a/passes": "true", "a/skips": "exit 77", "b/always": f"echo run >> $0; {FAILS}",
             "b/once": at_first(1), "b/twice": at_first(2)},
            {"a/skips": "SKIP_RETURN_CODE 77"}, jobs=3))
        self.assertEqual(self.names(verdict.failed), {"b/always"})
        self.assertEqual(self.names(verdict.unsteady), {"b/once", "b/twice"})
        self.assertEqual((verdict.passed, verdict.skipped), (1, 1))
        self.assertEqual([self.runs(name) for name in ("b/always", "b/once", "b/twice")], [5, 3, 4])
        for failure in verdict.failed + verdict.unsteady:
            self.assertIn("it is broken", failure.kept.read_text())

    def test_it_must_pass_twice_in_a_row(self):
        verdict = self.run_quietly(self.phase({"alternates": ALTERNATES, "late": at_first(4)}))
        self.assertEqual(self.names(verdict.failed), {"alternates", "late"})
        self.assertEqual((self.runs("alternates"), self.runs("late")), (5, 5))

    def test_four_may_be_repeated_and_five_may_not(self):
        tests = {f"test{i}": at_first(1) for i in range(4)}
        self.assertEqual(len(self.run_quietly(self.phase(tests)).unsteady), 4)
        tests = {f"another{i}": at_first(1) for i in range(5)}
        verdict = self.run_quietly(self.phase(tests))
        self.assertEqual((len(verdict.failed), verdict.unsteady), (5, []))
        self.assertEqual([self.runs(name) for name in tests], [1] * 5)

    def test_bits_and_lint_have_no_second_chance(self):
        tests = {label: at_first(1) for label in ("bits", "conformance", "lint")}
        labels = {label: f'LABELS "unit;{label}" TIMEOUT 200' for label in tests}
        verdict = self.run_quietly(self.phase(tests, labels))
        self.assertEqual((self.names(verdict.failed), verdict.unsteady), (set(tests), []))
        self.assertEqual([self.runs(name) for name in tests], [1] * 3)

    def test_what_hung_is_repeated_once(self):
        verdict = self.run_quietly(self.phase(
            {"always": HANGS, "once": at_first(1, HANGS)},
            {"always": "TIMEOUT 1", "once": "TIMEOUT 10"}, jobs=2))
        self.assertEqual([(failure.first.name, failure.history) for failure in verdict.failed],
                         [("always", "alone: Timeout")])
        self.assertEqual([(failure.first.name, failure.history) for failure in verdict.unsteady],
                         [("once", "alone: Passed")])

    def test_a_test_that_a_signal_ended_has_failed(self):
        signals = ("ABRT", "KILL", "SEGV", "ILL")
        verdict = self.run_quietly(self.phase({name: f"echo run >> $0; kill -{name} $$"
                                               for name in signals}, jobs=2))
        self.assertEqual(self.names(verdict.failed), set(signals))
        self.assertEqual({failure.first.result for failure in verdict.failed},
                         {run_tests.Result.FAILED})
        self.assertEqual([self.runs(name) for name in signals], [5] * 4)

    def test_a_skip_is_no_pass(self):
        verdict = self.run_quietly(self.phase({"shy": at_first(1) + "; exit 77"},
                                              {"shy": "SKIP_RETURN_CODE 77"}))
        self.assertEqual((self.names(verdict.failed), verdict.passed), ({"shy"}, 0))

    def test_what_a_test_prints_is_not_taken_for_what_ctest_says(self):
        liar = "echo '1/1 Test #1: liar ......   Passed    0.01 sec'; exit 1"
        verdict = self.run_quietly(self.phase({"liar": liar}))
        self.assertEqual(self.names(verdict.failed), {"liar"})

    def test_what_ctest_remembers_is_removed(self):
        remembered = self.folder / "Testing/Temporary"
        remembered.mkdir(parents=True)
        for name in ("CTestCostData.txt", "LastTestsFailed.log"):
            (remembered / name).write_text("second 1 9999\n---\n")
        look = f"cat {remembered}/CTestCostData.txt {remembered}/LastTestsFailed.log"
        verdict = self.run_quietly(self.phase({"first": f"! {look} | grep second"}))
        self.assertEqual(verdict.passed, 1)

    def test_the_end_of_the_time_names_what_failed_and_what_was_running(self):
        class Soon:
            """A deadline that has passed once the hanging test has begun and the other one has
            failed."""

            def left(self):
                if not Path("fails").exists():
                    return None
                while not Path("hangs").exists() or not Path("hangs").read_text().strip():
                    pass
                return 0
        verdict = Verdict()
        phase = self.phase({"fails": f"echo run >> $0; {FAILS}", "hangs": f"echo $$ > $0; {HANGS}"})
        with self.assertRaises(OutOfTime) as raised, \
                contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())):
            run_tests.run_phases([phase], Soon(), verdict)
        self.assertEqual(raised.exception.running, ["hangs"])
        self.assertEqual(self.names(verdict.failed), {"fails"})
        try:  # its process is gone, or waits for init to ask for its end
            stat = Path(f"/proc/{Path('hangs').read_text().strip()}/stat").read_text()
            self.assertIn(stat.rpartition(")")[2].split()[0], "ZX")
        except OSError:
            pass

    def test_a_longer_timeout_than_allowed_is_an_error(self):
        verdict = Verdict()
        with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())):
            run_tests.run_phases([self.phase({"long": "true"}, most_seconds=100)], Deadline(None),
                                 verdict)
        self.assertEqual(verdict.errors, ["the TIMEOUT of long is not at most 100 s"])

    def test_a_test_without_the_sanitizers_options_is_an_error(self):
        options = 'ENVIRONMENT "TSAN_' + 'OPTIONS=log_path=x"'
        for properties, wrong in (({}, []), ({"a": options, "b": options}, []), (
                {"b": options}, ["a has no options of the sanitizer (shoal_sanitizer_options)"])):
            verdict = Verdict()
            with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())):
                run_tests.run_phases([self.phase({"a": "true", "b": "true"}, properties)],
                                     Deadline(None), verdict)
            self.assertEqual(verdict.errors, wrong)

    def test_what_depends_on_time_runs_two_at_a_time_in_every_part(self):
        """Also under an emulator."""
        shown = {"arm64": 'LABELS "unit;arm64"', "timed": 'LABELS "unit;clock;arm64"'}
        self.phase({name: "true" for name in shown}, shown)
        for part in (run_parts.arm64, run_parts.asan, run_parts.tsan, run_parts.release):
            run = run_parts.Run(run_parts.LONG, ("release",), 0)
            jobs = {}

            def note(*phases: Phase):
                for phase in phases:
                    here = dataclasses.replace(phase, build=self.folder)
                    jobs.update({name: phase.jobs for name in run_tests.listed(here)})
            with unittest.mock.patch.multiple(run, command=lambda *_: None, tests=note), \
                    unittest.mock.patch.multiple(run_parts, JOBS=99, TSAN_JOBS=99,
                                                 require_cuda_module=lambda _: None,
                                                 can_cross_compile=lambda: True):
                part(run)
            self.assertEqual(jobs, {"arm64": 99, "timed": 2}, part)

    def test_three_runs_for_arm_do_what_is_shared_out_between_them(self):
        labels = {f"share{day}": f'LABELS "e2e;arm64;day{day}"' for day in range(3)}
        self.phase({name: "true" for name in labels}, labels)

        def chosen(name: str, days: range) -> list[list[str]]:
            found: list[list[str]] = []
            for day in days:
                run = run_parts.Run(name, ("arm64",), day)

                def note(*phases: Phase):
                    found.append([test for phase in phases for test in run_tests.listed(
                        dataclasses.replace(phase, build=self.folder))])
                with unittest.mock.patch.multiple(run, command=lambda *_: None, tests=note), \
                        unittest.mock.patch.object(run_parts, "can_cross_compile", lambda: True):
                    run_parts.arm64(run)
            return found
        self.assertEqual(sorted(chosen(run_parts.ALL, range(12))), [[name] for name in labels])
        self.assertEqual(chosen(run_parts.LONG, range(1, 2)), [list(labels)])

    def test_a_failure_that_lies_about_another_is_not_forgotten(self):
        liar = "echo '2/2 Test #2: quiet .....   Passed    0.01 sec'"
        verdict = self.run_quietly(self.phase(
            {"a": at_first(1, f"{liar}; exit 1"), "quiet": f"echo run >> $0; {FAILS}"}, jobs=2))
        self.assertEqual((self.names(verdict.failed), self.names(verdict.unsteady)),
                         ({"quiet"}, {"a"}))

    def test_what_cannot_be_started_is_not_repeated(self):
        phase = self.phase({"good": "true"})
        with open(self.folder / "CTestTestfile.cmake", "a") as file:
            file.write("add_test(missing /nonexistent/program)\n")
        verdict = self.run_quietly(phase)
        self.assertEqual([(failure.first.name, failure.history) for failure in verdict.failed],
                         [("missing", "not repeated, because it cannot be started")])

    def test_what_outlives_its_parent_is_ended_too(self):
        class Soon:
            def left(self):
                return 0 if Path("orphan").exists() and Path("orphan").read_text() else 100
        with self.assertRaises(OutOfTime), \
                contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())):
            run_tests.stream(["sh", "-c", "(setsid sh -c 'echo $$ > orphan; exec sleep 600' &); "
                                          "exec sleep 600"], Soon(), [])
        self.assertNotIn(int(Path("orphan").read_text()), run_tests.ours())

    def test_a_child_that_keeps_the_pipe_holds_nothing_up(self):
        with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())):
            code = run_tests.stream(["sh", "-c", "sleep 600 & exit 3"], Deadline(None), [])
        self.assertEqual(code, 3)
        run_tests.end_ours()

    def test_a_sanitizers_report_is_final_also_of_a_test_that_passed(self):
        reports = self.folder / "reports"
        verdict = self.run_quietly(self.phase(
            {"a/swallows": f"echo race > {reports}/a__swallows.77",
             "a/good": f"printf '===\\nERROR: Failed to mmap\\n' > {reports}/a__good.3",
             "a/ends": f"echo '==8==Unable to get registers from thread 7.' > {reports}/a__ends.6",
             "b/once": at_first(1, f"echo overflow > {reports}/b__once.1; exit 1")}, jobs=2))
        self.assertEqual(self.names(verdict.failed), {"a/swallows", "b/once"})
        self.assertEqual((verdict.passed, verdict.unsteady), (2, []))
        for failure in verdict.failed:
            self.assertEqual(failure.history, "not repeated, because of a sanitizer's report")
            self.assertRegex(failure.kept.read_text(), "report, .*/reports/.*:\n(race|overflow)\n")
        repeated = at_first(1) + f"; [ $(wc -l < $0) != 2 ] || echo race > {reports}/c.8"
        verdict = self.run_quietly(self.phase({"c": repeated}))
        self.assertEqual([failure.history for failure in verdict.failed], ["alone: Failed"])
        self.assertEqual(reports.stat().st_mode & 0o7777, 0o1777)
        # What an earlier run left counts for nothing.
        self.assertEqual(self.run_quietly(self.phase({"a/swallows": "true"})).failed, [])

    def test_a_report_of_no_test_is_an_error(self):
        verdict = Verdict()
        phase = self.phase({"good": f"echo leak > {self.folder}/reports/gone.5"})
        with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())):
            run_tests.run_phases([phase], Deadline(None), verdict)
        self.assertRegex(verdict.errors[0], "(?s)^gone .*leak")

    def test_ctest_itself_is_not_forgiven(self):
        run = run_parts.Run(run_parts.GATE, ("release",), 0)
        self.assertFalse(run.attempt(lambda: run.tests(Phase("none", self.folder / "nowhere"))))
        self.assertRegex(run.failed[0].what, "ctest")
        verdict = Verdict()
        phase = self.phase({"ends": "kill -KILL $PPID; sleep 9"})
        with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())):
            run_tests.run_phases([phase], Deadline(None), verdict)
        self.assertRegex(verdict.errors[0], "CTest itself")


class LastWords(Folder):
    """What the last lines say, and when the run is green."""

    def last_words(self, mode: str, verdict: Verdict, *steps) -> tuple[bool, str]:
        run = run_parts.Run(mode, ("release",), 0, tests_seen=verdict)
        with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())):
            for step in steps:
                self.assertFalse(run.attempt(lambda: step(run)))
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            green = run_parts.last_words(run)
        return green, text.getvalue()

    def registered(self, *rows: str):
        page = self.folder / "UNSTEADY.md"
        page.write_text("\n".join([f"| {' | '.join(unsteady.HEAD)} |", "|---|---|---|---|---|",
                                   *rows]))
        self.enterContext(unittest.mock.patch.object(unsteady, "PAGE", page))

    def test_the_gate_forgives_an_unsteady_test_and_the_thorough_run_if_it_is_registered(self):
        verdict = self.run_quietly(self.phase({"a/shaky": at_first(1)}))
        today = datetime.datetime.now(datetime.timezone.utc).date()
        open_now, mended = f"| a/shaky | {today} | red | order | |", \
            f"| a/shaky | {today} | red | order | 0123abc |"
        old, coming = (f"| b/other | {today - datetime.timedelta(days=days)} | red | order | |"
                       for days in (15, -2))
        for mode, rows, why in (
                (run_parts.GATE, [old, coming, mended], ""), (run_parts.ALL, [open_now], ""),
                (run_parts.ALL, [], "has no open row"), (run_parts.ALL, [mended], "came again"),
                (run_parts.ALL, [mended, open_now], "came again"),
                (run_parts.ALL, [open_now, old], "for more than 14 days"),
                (run_parts.ALL, [open_now, coming], "which has not come yet")):
            self.registered(*rows)
            green, text = self.last_words(mode, verdict)
            self.assertRegex(text, r"unsteady: a/shaky .*alone: Passed, Passed; .*: \S+shaky.log")
            self.assertEqual(green, not why, text)
            self.assertIn(f"{why}", text)
            self.assertRegex(text, f"\n[01] passed, {int(bool(why))} failed, 0 skipped\n$")

    def test_the_form_of_the_register(self):
        row = "| a/b_test | 2026-11-24 | red | order | 0123abc |"
        for text, wrong in ((row, ""), (row.replace("0123abc", ""), ""),
                            (row.replace("0123abc", "soon"), "not a commit"),
                            (row.replace("a/b_test", "the test"), "name of a test"),
                            (row.replace("2026-11-24", "24.11."), "date"),
                            (row.replace("2026-11-24", "2026-02-30"), "day is out of range"),
                            (row.replace("order", ""), "which race"), (row + " x |", "6 columns")):
            self.registered(text)
            self.assertRegex("; ".join(unsteady.read(unsteady.PAGE.read_text())[1]),
                             wrong or "^$")
        self.assertTrue(unsteady.read("no table")[1])

    def test_the_register_names_tests_that_there_are(self):
        phase = self.phase({"a/there": "true"})
        rows = ("| a/there | 2026-11-24 | red | order | |",
                "| fuzz/config_fuzz | 2026-11-24 | red | order | |",
                "| a/gone | 2026-11-24 | red | order | 0123abc |")
        for names, shown in ((rows[:2], ""),
                             (rows, "tests/UNSTEADY.md: CTest has no test a/gone\n")):
            self.registered(*names)
            with contextlib.redirect_stdout(io.StringIO()) as text:
                self.assertEqual(unsteady.main(phase.build), int(bool(shown)))
            self.assertEqual(text.getvalue(), shown)

    def test_a_failed_test_and_a_failed_part_come_last_with_their_words(self):
        verdict = self.run_quietly(self.phase({"broken": "seq 100; exit 1", "good": "true"}))
        green, text = self.last_words(
            run_parts.GATE, verdict,
            lambda run: run.command("a build", "sh", "-c", "seq 200 300; exit 2"),
            # A step of a part fails: the part has failed too, and goes on.
            lambda run: run.attempt(lambda: run.command("a step", "false")))
        self.assertFalse(green)
        self.assertEqual([int(line) for line in text.splitlines() if line.strip().isdecimal()],
                         [*range(61, 101), *range(261, 301)])
        self.assertRegex(text, r"\n\| a build \| \d+ s \|\n\| a step \| \d+ s \|\n")
        self.assertRegex(text, re.compile(r"^test: red: broken .*, a build: sh .* 2, a step: false "
                                          "ended with 1$", re.MULTILINE))
        self.assertTrue(text.endswith("\n1 passed, 3 failed, 0 skipped\n"), text)

    def test_the_end_of_the_time_ends_a_build_too(self):
        class Over:
            def left(self):
                return 0
        run = run_parts.Run(run_parts.GATE, ("release",), 0, Over())
        with self.assertRaises(OutOfTime) as raised, \
                contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())):
            run.command("release build", "sleep", "600")
        self.assertEqual(raised.exception.running, ["release build"])

    def test_wrong_words(self):
        for words in (["--everything"], ["--all", "asan"], ["--long", "lint"]):
            with self.assertRaises(ValueError):
                run_parts.start(words, 0)
        run = run_parts.start([run_parts.LONG, "asan", "fuzz"], 0)
        self.assertRegex(run_parts.same_run(run),
                         r"^SHOAL_TEST_DAY=\d+ scripts/test --long asan fuzz$")
        if "SHOAL_TEST_DAY" not in os.environ:
            self.assertEqual(run_parts.start([], 0).day, 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
