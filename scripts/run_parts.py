"""Runs the parts of a check one after another, and says at the end what failed. scripts/test calls
it with the seconds that it took itself, and its own arguments.

A part that fails does not keep the others from running. The functions of PARTS are the parts, and
MODES says what each way to call scripts/test does with them.
"""
import collections
import dataclasses
import datetime
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import run_tests
import unsteady
from run_tests import Deadline, OutOfTime, Phase, Verdict


@dataclasses.dataclass(frozen=True)
class Mode:
    parts: tuple[str, ...]
    without: str  # labels of tests that the release build leaves out, as a pattern
    breadth: str | None  # SHOAL_TEST_BREADTH (tests/breadth.h)
    of_the_day: bool = True  # whether the seed is the number of the day; otherwise it is 0
    forgives: bool = False  # whether an unsteady test that the register lacks leaves the run green
    seconds: float | None = None  # then the run ends itself
    most_seconds: float | None = None  # for one test


GATE, ALL, LONG = "", "--all", "--long"
MODES = {
    # What a change must pass is a function of the tree alone, and never hangs.
    GATE: Mode(("release",), "real|clients|thorough|gpu", "pairs", of_the_day=False, forgives=True,
               seconds=45 * 60, most_seconds=300),
    ALL: Mode(("arm64", "asan", "tsan", "fuzz", "release"), "none", None),
    LONG: Mode(("arm64", "asan", "tsan", "fuzz", "mutants", "release"), "none", "full"),
}
ARM64_DAYS = 4  # --all tests for Arm on every one of so many days (tests/breadth.h)
PROCESSORS = len(os.sched_getaffinity(0))
# Tests wait for each other's processes as much as they compute. Under ThreadSanitizer they compute,
# and its spinning ranks keep others from being woken. What depends on time runs two at a time.
JOBS, TSAN_JOBS, QUIET_JOBS = 2 * PROCESSORS, 2, 2


@dataclasses.dataclass
class PartFailed(Exception):
    what: str
    output: list[str] = dataclasses.field(default_factory=list)  # its last lines


@dataclasses.dataclass
class Run:
    name: str  # of the mode
    parts: tuple[str, ...]
    day: int
    deadline: Deadline = dataclasses.field(default_factory=lambda: Deadline(None))
    began: float = dataclasses.field(default_factory=time.monotonic)
    step: str = ""
    steps: list[tuple[str, float]] = dataclasses.field(default_factory=list)  # when each began
    tests_seen: Verdict = dataclasses.field(default_factory=Verdict)
    failed: list[PartFailed] = dataclasses.field(default_factory=list)
    cannot: set[str] = dataclasses.field(default_factory=set)  # parts that this machine cannot do
    running: list[str] = dataclasses.field(default_factory=list)  # when the time was over

    @property
    def mode(self) -> Mode:
        return MODES[self.name]

    def begin(self, step: str):
        self.step = step
        self.steps.append((step, time.monotonic() - self.began))
        print(f"\n== {step} (at {self.steps[-1][1]:.0f} s)", flush=True)

    def times(self) -> str:
        """How long each step took but the last one, as tests/TIMES.md has it."""
        ends = [began for _, began in self.steps[1:]]
        return "\n".join(f"| {step} | {end - began:.0f} s |"
                         for (step, began), end in zip(self.steps, ends))

    def command(self, step: str, *words):
        self.begin(step)
        tail = collections.deque(maxlen=run_tests.SHOWN_LINES)
        if code := run_tests.stream(list(words), self.deadline, [step], tail.append):
            raise PartFailed(f"{step}: {' '.join(map(str, words))} ended with {code}", list(tail))

    def tests(self, *phases: Phase):
        run_tests.run_phases(list(phases), self.deadline, self.tests_seen, self.begin)

    def attempt(self, part) -> bool:
        """Runs a part or a step of one. What fails is kept for the end. Returns whether all of it
        was green."""
        before = self.count_red()
        try:
            part()
        except PartFailed as failure:
            self.failed.append(failure)
        except OutOfTime:
            raise
        except Exception as error:  # of the machine or of these scripts: the other parts still run
            self.failed.append(PartFailed(f"{self.step}: {error!r}",
                                          traceback.format_exc().splitlines()))
        return self.count_red() == before

    def unforgiven(self) -> list[str]:
        """Why unsteady tests make this run red."""
        if self.mode.forgives:
            return []
        rows = unsteady.read(unsteady.PAGE.read_text())[0]
        found = [(failure.name, unsteady.unforgiven(rows, failure.first.name))
                 for failure in self.tests_seen.unsteady]
        return [f"{name} is unsteady, and {why}" for name, why in found if why]

    def overdue(self) -> list[str]:
        """What the register of unsteady tests makes red on this day."""
        if self.mode.forgives:
            return []
        today = datetime.datetime.now(datetime.timezone.utc).date()
        rows, problems = unsteady.read(unsteady.PAGE.read_text())
        return problems + unsteady.overdue(rows, today)

    def count_red(self) -> int:
        seen = self.tests_seen
        return (len(seen.failed) + len(seen.errors) + len(self.failed) + bool(self.running) +
                len(self.unforgiven()))

    def and_other_days(self, without: str, shares: int) -> str:
        """This pattern of labels, and in --all those of the tests that are shared out over so many
        days (shoal_share_out, SHOAL_TESTS_BY_DAY) and have another than today."""
        days = [f"day{day}" for day in range(shares) if day != self.day % shares]
        return "|".join([without, *(days if self.name == ALL else [])])


def then_quiet(name: str, build: Path, jobs: int, without: str, only: tuple[str, ...] = (),
               **more) -> list[Phase]:
    """The tests but those with these labels, a pattern: first what does not depend on time, and
    then what does, with as little as possible beside it. `only` are CTest's words for some of
    them."""
    return [Phase(name, build, jobs, (*only, "--label-exclude", f"^(clock|{without})$"), **more),
            Phase(f"{name}: what depends on time", build, QUIET_JOBS,
                  (*only, "--label-regex", "^clock$", "--label-exclude", f"^({without})$"), **more)]


def of_the_release_build(mode: Mode, without: str) -> list[Phase]:
    return then_quiet("tests, release", Path("build/release"), JOBS, without,
                      most_seconds=mode.most_seconds)


def sanitized(run: Run, preset: str, name: str, shares: int, jobs: int,
              prefix: tuple[str, ...] = ()):
    run.command(f"{name}: build", "scripts/build", preset, "all")
    run.tests(*then_quiet(name, Path("build") / preset, jobs,
                          run.and_other_days("real|clients|lint|release", shares), prefix=prefix))


def asan(run: Run):
    sanitized(run, "asan", "AddressSanitizer and UBSan", 5, JOBS)


def tsan(run: Run):
    # Its shadow memory needs the classic address layout. If that cannot be asked for, as in a
    # strict container, the tests are tried with the layout that there is.
    classic = ("setarch", "--addr-no-randomize")
    may_ask = shutil.which(classic[0]) and \
        subprocess.run([*classic, "true"], stderr=subprocess.DEVNULL).returncode == 0
    sanitized(run, "tsan", "ThreadSanitizer", 7, TSAN_JOBS, classic if may_ask else ())


def can_cross_compile() -> bool:
    """Only Debian's own packages can, and only on another processor."""
    system = Path("/etc/os-release").read_text()
    return platform.machine() == "x86_64" and bool(re.search("^ID=debian", system, re.MULTILINE))


def arm64(run: Run):
    """The build and its tests take some minutes, so that --all does not do them every day."""
    if run.name == ALL and run.day % ARM64_DAYS:
        return
    if not can_cross_compile():
        print("test: arm64 is left out, because only Debian on x86-64 can cross-compile for it")
        run.cannot.add("arm64")
        return
    run.command("64-bit Arm: build", "scripts/build", "arm64", "emulated_tests")
    run.tests(*then_quiet("64-bit Arm under an emulator", Path("build/arm64"), JOBS,
                          run.and_other_days("none", 3), ("--label-regex", "^arm64$")))


def fuzz(run: Run):
    how = ("600",) if run.name == LONG else ("--day", run.day, "60")
    run.command("fuzzing", "scripts/fuzz", *how)


def mutants(run: Run):
    run.command("mutants", sys.executable, "tests/mutants/run.py")


def require_cuda_module(build: Path):
    """AUTO leaves the module out if it finds no toolkit; if there is one, the module's tests must
    be among those that run."""
    if shutil.which("nvcc") and "kernels/cuda/exports" not in run_tests.listed(Phase("", build)):
        raise PartFailed("nvcc is here, and the release build has no CUDA module")


def release(run: Run):
    gate, build = run.name == GATE, Path("build/release")
    targets = ("usual",) if gate else ("usual", "all")
    without, most = run.mode.without, run.mode.most_seconds
    if not run.attempt(lambda: run.command("release build", "scripts/build", "release", *targets)):
        # The rules of the tree need no program.
        run.tests(Phase("lint", build, JOBS, ("--label-regex", "^lint$", "--label-exclude",
                                              f"^({without}|thorough)$"), most_seconds=most))
        return
    run.attempt(lambda: require_cuda_module(build))
    if not gate:
        tidy = "tidy" if run.name == LONG else f"tidy --day {run.day}"
        for words in ("get-model smollm2", "get-templates", "get-clients", tidy):
            script, *arguments = words.split()
            run.attempt(lambda: run.command(words, f"scripts/{script}", *arguments))
    run.tests(*of_the_release_build(run.mode, run.and_other_days(run.mode.without, 3)))


PARTS = {part.__name__: part for part in (arm64, asan, tsan, fuzz, mutants, release)}


def note_green(part: str):
    """A part of --long was green, so its line in LONG_RUN.md gets the date and the commit."""
    commit = subprocess.check_output(["git", "rev-parse", "--short=12", "HEAD"], text=True).strip()
    if subprocess.run(["git", "diff", "--quiet", "HEAD", "--", ".",
                       ":!tests/LONG_RUN.md"]).returncode:
        commit += " with changes"
    page = Path("tests/LONG_RUN.md")
    today = time.strftime("%Y-%m-%d", time.gmtime())
    page.write_text(re.sub(rf"^(\| {part} \|[^|]*\|).*", rf"\1 {today} | {commit} |",
                           page.read_text(), flags=re.MULTILINE))
    print(f"\nlong run: {part} is green; tests/LONG_RUN.md says so: commit it")


def same_run(run: Run) -> str:
    words = [run.name, *(run.parts if run.parts != run.mode.parts else ())]
    return " ".join([f"SHOAL_TEST_DAY={run.day} scripts/test", *words]).strip()


def last_words(run: Run) -> bool:
    """Prints the verdict, what failed last. Returns whether the run is green."""
    seen = run.tests_seen
    run.begin("verdict")
    print(run.times())
    for failure in seen.unsteady:
        print(f"unsteady: {failure.name}: {failure.first.result.value} at first, then "
              f"{failure.history}; what it printed first: {failure.kept}")
    for failure in seen.failed:
        how = ", ".join(filter(None, [failure.first.result.value, failure.history]))
        print(f"\nFAILED: {failure.name}: {how}; what it printed: {failure.kept}\n"
              f"{run_tests.last_lines(failure.first.output.splitlines())}")
    for failure in run.failed:
        print(f"\nFAILED: {failure.what}\n{run_tests.last_lines(failure.output)}")
    register = [*run.unforgiven(), *run.overdue()]
    for error in [*seen.errors, *register]:
        print(f"FAILED: {error}")
    if run.running:
        print(f"FAILED: the time is over; still running: {', '.join(run.running)}")
    red = run.count_red() + len(run.overdue())
    if red:
        names = [*(failure.name for failure in seen.failed), *(part.what for part in run.failed),
                 *seen.errors, *register, *(["the time is over"] if run.running else [])]
        print(f"\ntest: red: {', '.join(names)}\ntest: the same run again: {same_run(run)}")
    forgiven = len(seen.unsteady) - len(run.unforgiven())
    print(f"{seen.passed + forgiven} passed, {red} failed, {seen.skipped} skipped", flush=True)
    return not red


def do_parts(run: Run):
    for part in run.parts:
        green = run.attempt(lambda: PARTS[part](run))
        if green and run.name == LONG and part not in run.cannot:
            run.attempt(lambda: note_green(part))


def interrupt(number, _):
    raise KeyboardInterrupt(signal.Signals(number).name)


def start(arguments: list[str], seconds_before: float) -> Run:
    """The run that the arguments and the environment ask for. ValueError: they ask for none."""
    name = arguments[0] if arguments else GATE
    if name not in MODES:
        raise ValueError(f"unknown argument {name}: use --all or --long")
    mode = MODES[name]
    if others := [part for part in arguments[1:] if name != LONG or part not in mode.parts]:
        raise ValueError(f"{others[0]} is not a part: use --long, then any of "
                         f"{' '.join(MODES[LONG].parts)}")
    # Days since 1970 in UTC, so that what is shared out by the day comes round to everything.
    today = int(time.time() // 86400) if mode.of_the_day else 0
    day = os.environ.get("SHOAL_TEST_DAY") or str(today)
    if not day.isdecimal():
        raise ValueError("SHOAL_TEST_DAY is a number of days since 1970")
    left = None if mode.seconds is None else mode.seconds - seconds_before
    return Run(name, tuple(arguments[1:]) or mode.parts, int(day), Deadline(left),
               time.monotonic() - seconds_before)


def prepare_process(mode: Mode, day: int):
    """Sets what the tests and the builds of a mode see, and what a signal does."""
    os.environ["SHOAL_TEST_DAY"] = str(day)
    os.environ.pop("SHOAL_TEST_BREADTH", None)
    if mode.breadth:
        os.environ["SHOAL_TEST_BREADTH"] = mode.breadth
    if Path("/usr/local/cuda/bin/nvcc").exists():
        os.environ["PATH"] += ":/usr/local/cuda/bin"
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    sys.stdout.reconfigure(errors="backslashreplace")


def main(seconds_before: float, arguments: list[str]) -> int:
    try:
        run = start(arguments, seconds_before)
    except ValueError as error:
        print(f"test: {error}", file=sys.stderr)
        return 64
    prepare_process(run.mode, run.day)
    shutil.rmtree(run_tests.KEPT, ignore_errors=True)
    print(f"The seed is {run.day}. The same run again: {same_run(run)}", flush=True)
    try:
        do_parts(run)
    except OutOfTime as end:
        run.running = end.running or [run.step]
    except KeyboardInterrupt as signalled:
        run.failed.append(PartFailed(f"interrupted ({signalled or 'SIGINT'}) at: {run.step}"))
    return 0 if last_words(run) else 1


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
