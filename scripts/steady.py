"""Runs the tests of scripts/test again and again on a machine that others disturb, and prints which
failed at first: steady.py [ROUNDS]. scripts/steady says what for, and builds them.
"""
import collections
import contextlib
import dataclasses
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import run_parts
import run_tests
import stalls
from run_tests import Deadline, OutOfTime, Phase, Verdict

ROUNDS, BUSY = 10, 2
FIRST_FAILURES_IN_TEN = 2
KEPT = Path("build/steady")
# Ends with the process that started it.
SPIN = "import os\nhere = os.getppid()\nwhile os.getppid() == here: sum(range(10**6))"


@dataclasses.dataclass
class Tally:
    rounds: int = 0
    stalls: int = 0
    first: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    red: collections.Counter = dataclasses.field(default_factory=collections.Counter)

    def add(self, verdict: Verdict):
        self.rounds += 1
        self.first.update(failure.first.name for failure in verdict.failed + verdict.unsteady)
        self.red.update([*(failure.first.name for failure in verdict.failed), *verdict.errors])

    def verdict(self) -> str:
        """Empty: the tests are steady."""
        if self.red:
            return "a test was red"
        if not self.stalls:
            return "nothing stood still, so that this proves nothing"
        if 10 * self.first.total() > FIRST_FAILURES_IN_TEN * self.rounds:
            return "too many tests failed at first"
        return ""

    def table(self) -> str:
        """A table for tests/TIMES.md, with what failed most often first."""
        names = sorted(self.first | self.red, key=lambda name: (-self.first[name], name))
        rows = [f"| {name} | {self.first[name]} | {self.red[name]} |" for name in names]
        return "\n".join([f"| Test, of {self.rounds} rounds | First failures | Red |",
                          "|---|--:|--:|", *rows,
                          f"| **all** | **{self.first.total()}** | **{self.red.total()}** |"])


@contextlib.contextmanager
def disturbed(every: float = 20, busy: int = BUSY):
    """Gives the stalls that disturb what is started with their prefix."""
    freezer = stalls.new_freezer()
    print("steady: the run stands still by " +
          (f"the freezer {freezer.folder}" if freezer else "real-time processes"), flush=True)
    beside = stalls.Stalls(every, freezer)
    spinning = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(busy)]
    over = threading.Event()

    def watch():
        while not over.wait(0.2):
            beside.alive()
    watching = threading.Thread(target=watch, daemon=True)
    try:
        watching.start()
        yield beside
    finally:
        for process in spinning:
            process.kill()
            process.wait()
        over.set()
        watching.join()
        beside.end()


def run_rounds(phases: list[Phase], rounds: int, seconds: float | None, kept: Path,
               beside: stalls.Stalls) -> Tally:
    """Each round is what scripts/test does with the phases."""
    phases = [dataclasses.replace(phase, prefix=beside.prefix()) for phase in phases]
    tally = Tally()
    for number in range(1, rounds + 1):
        run_tests.KEPT = kept / str(number)
        verdict = Verdict()
        try:
            run_tests.run_phases(phases, Deadline(seconds), verdict)
        except OutOfTime as end:
            verdict.errors.append(f"the time is over: {', '.join(end.running)}")
        if not beside.alive():  # also if the time was over, which ends all processes
            verdict.errors.append("the stalls have ended")
        tally.add(verdict)
        print(f"\n{tally.table()}", flush=True)
        if verdict.errors:
            break
    return tally


def main(arguments: list[str]) -> int:
    mode = run_parts.MODES[run_parts.GATE]
    run_parts.prepare_process(mode, 0)
    shutil.rmtree(KEPT, ignore_errors=True)
    with disturbed() as beside:
        tally = run_rounds(run_parts.of_the_release_build(mode, mode.without),
                           int(arguments[0]) if arguments else ROUNDS, mode.seconds, KEPT, beside)
    tally.stalls = beside.count
    wrong = tally.verdict()
    print(f"steady: {f'no: {wrong}' if wrong else f'yes, with {tally.stalls} stalls'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
