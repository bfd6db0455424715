"""Runs tests with CTest and judges them, for scripts/test (run_parts.py).

A test that failed beside others is repeated alone. If it then passes, it is *unsteady*: it is
named, the output of its first failure is kept, and scripts/test stays green. A defect that shows
only now and then must not hold up every other change, but nobody may overlook it either. What a
sanitizer reported is never forgiven.
"""
import collections
import contextlib
import dataclasses
import enum
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
import uuid
import xml.etree.ElementTree as xml
from pathlib import Path

import sanitizer_reports

# If this many tests fail, nothing is repeated: the change is wrong, or the machine is unusable.
TOO_MANY = 5
TRIES, IN_A_ROW = 4, 2  # of a test that is repeated
# Comparisons of bits, and the rules of the tree. Nothing but a defect makes these fail.
FINAL_LABELS = {"bits", "conformance", "lint"}
SHOWN_LINES = 40
KEPT = Path("build/first_failures")
# In the environment of all that this run starts, and of all that this starts.
MARK = f"SHOAL_CHECK={uuid.uuid4()}"
START = re.compile(r"^\s*Start\s+\d+: (.+?)\s*$")
END = re.compile(r"^\s*\d+/\d+ Test\s+#\d+: (.+?) \.{2,}(.*)$")
# A part of what the last test printed is enough for a person, and the end of it says most.
OUTPUT = ("--output-on-failure", "--test-output-size-failed", str(2**22),
          "--test-output-truncation", "middle")


class OutOfTime(Exception):
    """The run's time is over. `running` had not ended, and `outcomes` are the tests that had."""

    def __init__(self, running: list[str]):
        super().__init__(", ".join(running))
        self.running = running
        self.outcomes: list[Outcome] = []


class Deadline:
    def __init__(self, seconds: float | None):
        self.end = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float | None:
        return None if self.end is None else max(self.end - time.monotonic(), 0)


class Result(enum.Enum):
    PASSED = "Passed"
    FAILED = "Failed"
    TIMED_OUT = "Timeout"
    SKIPPED = "Skipped"
    NOT_RUN = "Not Run"

    @property
    def bad(self) -> bool:
        return self not in (Result.PASSED, Result.SKIPPED)


@dataclasses.dataclass
class Phase:
    """One call of CTest. `arguments` choose the tests."""
    name: str
    build: Path
    jobs: int = 1
    arguments: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()  # a command that starts CTest
    most_seconds: float | None = None  # no test may be allowed more


@dataclasses.dataclass
class Outcome:
    name: str
    result: Result
    output: str = ""
    labels: frozenset[str] = frozenset()
    sanitizer: bool = False  # one of its processes wrote a sanitizer's report


@dataclasses.dataclass
class Failure:
    """A test that failed first. `kept` is the file with the output of that failure."""
    phase: Phase
    first: Outcome
    kept: Path
    history: str = ""  # what happened to it afterwards

    @property
    def name(self) -> str:
        return f"{self.first.name} ({self.phase.build.name})"


@dataclasses.dataclass
class Verdict:
    passed: int = 0
    skipped: int = 0
    failed: list[Failure] = dataclasses.field(default_factory=list)
    unsteady: list[Failure] = dataclasses.field(default_factory=list)
    errors: list[str] = dataclasses.field(default_factory=list)  # of CTest itself


def ours() -> list[int]:
    """The living processes that this one has started, also those whose parent has ended."""
    parents, marked = {}, set()
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):  # it has just ended, or is somebody else's
            state, parent = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:2]
            if state not in b"ZX":
                parents[pid] = int(parent)
                if MARK.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    marked.add(pid)
    found = [os.getpid(), *sorted(marked)]
    for one in found:  # grows
        found += [pid for pid, parent in parents.items() if parent == one and pid not in found]
    return found[1:]


def end_ours():
    """Kills them. What hangs in the kernel is left behind."""
    for _ in range(100):
        if not (left := ours()):
            return
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def stream(command: list, deadline: Deadline, running: list[str], on_line=None) -> int:
    """Runs a command, prints its output and gives each line to on_line. Returns the exit code."""
    with subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                          env=dict([*os.environ.items(), MARK.split("=")])) as child:
        try:
            read_lines(child, deadline, on_line or (lambda _: None))
            return child.wait(deadline.left())
        except (OutOfTime, subprocess.TimeoutExpired):
            end_ours()
            raise OutOfTime(list(running)) from None
        except BaseException:
            end_ours()
            raise


def read_lines(child: subprocess.Popen, deadline: Deadline, on_line):
    """Prints what the child prints until it has ended, also if one of its own children, which goes
    on, keeps the pipe. Lines are cut after 4 KiB."""
    rest = b""
    while True:
        left = deadline.left()
        ready = select.select([child.stdout], [], [], 1 if left is None else min(1, left))[0]
        if ready:
            if not (block := os.read(child.stdout.fileno(), 65536)):
                return
            sys.stdout.buffer.write(block)
            sys.stdout.flush()
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                on_line(line[:4096].decode(errors="replace"))
            rest = rest[:4096]
        elif child.poll() is not None:
            return
        if left == 0:
            raise OutOfTime([])


def listed(phase: Phase) -> dict[str, dict]:
    """The properties of the tests that the phase chooses, by name."""
    shown = subprocess.run(["ctest", "--test-dir", phase.build, "--show-only=json-v1",
                            *phase.arguments], capture_output=True, check=True, timeout=60)
    return {test["name"]: {entry["name"]: entry["value"] for entry in test.get("properties", [])}
            for test in json.loads(shown.stdout)["tests"]}


class Told:
    """What CTest's output says while it runs: enough to name what was running when it was ended.
    What a test printed may look the same, so that the verdict comes from CTest's report."""

    def __init__(self, names):
        self.names = set(names)
        self.running: list[str] = []
        self.results: dict[str, Result] = {}
        self.outputs: dict[str, collections.deque[str]] = {}  # of those that failed
        self.last: str | None = None  # whose output follows

    def line(self, line: str):
        if (match := START.match(line)) and match[1] in self.names - set(self.running):
            self.running.append(match[1])
            self.last = None
        elif (match := END.match(line)) and match[1] in self.running:
            name = match[1]
            self.running.remove(name)
            self.results[name] = next((result for result in Result if result.value in match[2]),
                                      Result.FAILED)
            self.last = name if self.results[name].bad else None
            self.outputs[name] = collections.deque(maxlen=1000)
        elif self.last:
            self.outputs[self.last].append(line)

    def outcomes(self) -> dict[str, Outcome]:
        return {name: Outcome(name, result, "\n".join(self.outputs[name]))
                for name, result in self.results.items()}


def reported(junit: Path, told: Told) -> dict[str, Outcome]:
    """The outcomes in CTest's report. Only its output tells a hang from another failure."""
    text = re.sub(r"[^\t\n\r -\ud7ff\ue000-\ufffd]", "?",
                  junit.read_text(encoding="utf-8", errors="replace"))
    outcomes: dict[str, Outcome] = {}
    for case in xml.fromstring(text.encode()).iter("testcase"):
        name, skipped = case.get("name", ""), case.find("skipped")
        if case.get("status") == "run":
            result = Result.PASSED
        elif case.get("status") == "disabled" or (
                skipped is not None and skipped.get("message", "").startswith("SKIP_")):
            result = Result.SKIPPED
        elif skipped is not None:
            result = Result.NOT_RUN
        else:
            hung = told.results.get(name) == Result.TIMED_OUT
            result = Result.TIMED_OUT if hung else Result.FAILED
        if name in outcomes:
            raise ValueError(f"two tests have the name {name}")
        outcomes[name] = Outcome(name, result, case.findtext("system-out") or "")
    return outcomes


def run_ctest(phase: Phase, properties: dict[str, dict], deadline: Deadline,
              verdict: Verdict) -> list[Outcome]:
    """Runs the phase's tests once, in the order of a fresh build folder: what CTest remembers of
    earlier runs would put other tests beside each other."""
    temporary = phase.build / "Testing/Temporary"
    for memory in ("CTestCostData.txt", "LastTestsFailed.log"):
        (temporary / memory).unlink(missing_ok=True)
    junit = (phase.build / "tests.xml").resolve()
    junit.unlink(missing_ok=True)
    sanitizer_reports.clear(phase.build)
    told = Told(properties)

    def completed(outcomes: dict[str, Outcome]) -> list[Outcome]:
        for outcome in outcomes.values():
            outcome.labels = frozenset(properties.get(outcome.name, {}).get("LABELS", []))
        add_sanitizers(phase, outcomes, verdict)
        return list(outcomes.values())

    try:
        code = stream([*phase.prefix, "ctest", "--test-dir", phase.build, *OUTPUT,
                       "--no-tests=error", "--parallel", phase.jobs, "--output-junit", junit,
                       *phase.arguments], deadline, told.running, told.line)
    except OutOfTime as end:
        end.outcomes = completed(told.outcomes())
        raise
    try:
        outcomes = reported(junit, told)
    except (OSError, ValueError, xml.ParseError) as error:
        verdict.errors.append(f"CTest itself ({phase.name}): its report: {error}")
        outcomes = told.outcomes()
    if code not in (0, 8) or (code == 8) != any(one.result.bad for one in outcomes.values()) or \
            set(outcomes) != set(properties):
        verdict.errors.append(f"CTest itself ({phase.name}): exit code {code}, "
                              f"{len(outcomes)} of {len(properties)} tests")
    return completed(outcomes)


def add_sanitizers(phase: Phase, outcomes: dict[str, Outcome], verdict: Verdict):
    """A test has failed if one of its processes wrote a sanitizer's report, also if it passed."""
    for name, report in sanitizer_reports.collect(phase.build).items():
        if outcome := outcomes.get(name):
            outcome.result = Result.FAILED
            outcome.output += f"\n{report}"
            outcome.sanitizer = True
        else:
            verdict.errors.append(f"{name} ({phase.name}), which did not end: {report}")


def check_timeouts(phase: Phase, properties: dict[str, dict], verdict: Verdict):
    if phase.most_seconds is None:
        return
    for name, its in properties.items():
        if not 0 < float(its.get("TIMEOUT", 0)) <= phase.most_seconds:
            verdict.errors.append(
                f"the TIMEOUT of {name} is not at most {phase.most_seconds:.0f} s")


def check_sanitizer_options(properties: dict[str, dict], verdict: Verdict):
    """If any of the tests has a sanitizer's options, all must have them: without them a test's
    reports go nowhere."""
    without = [name for name, its in properties.items() if not any(
        re.match("[AT]SAN_OPTIONS=", entry) for entry in its.get("ENVIRONMENT", []))]
    if len(without) < len(properties):
        verdict.errors += [f"{name} has no options of the sanitizer (shoal_sanitizer_options)"
                           for name in without]


def keep(phase: Phase, outcome: Outcome) -> Path:
    """Writes down what a failed test printed. Returns the file."""
    path = KEPT / phase.build.name / (outcome.name.replace("/", "__") + ".log")
    with contextlib.suppress(OSError):  # a full disk must not hide the verdict
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{outcome.name}: {outcome.result.value}\n{outcome.output}",
                        encoding="utf-8", errors="replace")
    return path


def passes_alone(failure: Failure, deadline: Deadline, verdict: Verdict) -> bool:
    """Repeats a test with nothing beside it. It must pass twice in a row, within four tries. One
    that hung is tried once, because a hang takes minutes."""
    hung = failure.first.result == Result.TIMED_OUT
    tries, wanted = (1, 1) if hung else (TRIES, IN_A_ROW)
    name = re.sub(r"([^\w/ -])", r"\\\1", failure.first.name)
    alone = dataclasses.replace(failure.phase, jobs=1, arguments=("-R", f"^{name}$"))
    properties = listed(alone)  # with the fixtures that it needs
    history, in_a_row = [], 0
    for _ in range(tries):
        outcomes = run_ctest(alone, properties, deadline, verdict)
        result = next((outcome.result for outcome in outcomes
                       if outcome.name == failure.first.name), Result.NOT_RUN)
        history.append(result.value)
        passes = result == Result.PASSED and not any(one.result.bad for one in outcomes)
        in_a_row = in_a_row + 1 if passes else 0
        a_report = any(one.sanitizer for one in outcomes)
        if in_a_row == wanted or result == Result.TIMED_OUT or a_report:
            break
    failure.history = "alone: " + ", ".join(history)
    return in_a_row == wanted


def why_not(failure: Failure, count: int, verdict: Verdict) -> str:
    """Why a test is not repeated; empty: it is."""
    if count >= TOO_MANY:
        return f"{count} tests failed"
    if verdict.errors:
        return "CTest itself failed"
    if failure.first.result == Result.NOT_RUN:
        return "it cannot be started"
    if failure.first.sanitizer:
        return "of a sanitizer's report"
    final = sorted(failure.first.labels & FINAL_LABELS)
    return f"of its label {final[0]}" if final else ""


def second_chances(failures: list[Failure], deadline: Deadline, verdict: Verdict):
    """Says of each test that failed whether it is unsteady or has failed."""
    verdict.failed += failures  # until they have passed, also if the time ends meanwhile
    for failure in failures:
        if why := why_not(failure, len(failures), verdict):
            failure.history = f"not repeated, because {why}"
            continue
        print(f"\n-- again, alone: {failure.name}", flush=True)
        if passes_alone(failure, deadline, verdict):
            verdict.failed.remove(failure)
            verdict.unsteady.append(failure)


def run_phases(phases: list[Phase], deadline: Deadline, verdict: Verdict, begin=print):
    """Runs all phases, then repeats what failed, and adds what it finds to the verdict, also if it
    raises: OutOfTime, or what shows that CTest cannot be run."""
    failures: list[Failure] = []

    def count(phase: Phase, outcomes: list[Outcome]):
        for outcome in outcomes:
            verdict.passed += outcome.result == Result.PASSED
            verdict.skipped += outcome.result == Result.SKIPPED
            if outcome.result.bad:
                failures.append(Failure(phase, outcome, keep(phase, outcome)))

    try:
        for phase in phases:
            begin(phase.name)
            properties = listed(phase)
            check_timeouts(phase, properties, verdict)
            check_sanitizer_options(properties, verdict)
            try:
                count(phase, run_ctest(phase, properties, deadline, verdict))
            except OutOfTime as end:
                count(phase, end.outcomes)
                raise
    except BaseException:
        verdict.failed += failures
        raise
    second_chances(failures, deadline, verdict)


def last_lines(lines: list[str]) -> str:
    return "\n".join("    " + line for line in lines[-SHOWN_LINES:])
