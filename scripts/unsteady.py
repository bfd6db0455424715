"""The register of unsteady tests, tests/UNSTEADY.md: reads it, and says what it leaves unforgiven.

    python3 scripts/unsteady.py BUILD    prints what is wrong with its form, and those of its tests
                                         that CTest does not have in that build; then ends with 1
"""
import dataclasses
import datetime
import re
import sys
from pathlib import Path

import run_tests

PAGE = Path(__file__).resolve().parents[1] / "tests/UNSTEADY.md"
HEAD = ["Test", "Seen", "What was seen", "Suspected race", "Mended in"]
NAME = re.compile(r"[a-z0-9_]+(/[\w.-]+)+")
COMMIT = re.compile(r"[0-9a-f]{7,40}")
# Tests that a release build lacks: of the fuzz targets, under an emulator, and of the CUDA module.
ELSEWHERE = re.compile(r"(?:fuzz|e2e/same_bits/emulated|gpu|kernels/cuda)/.+|e2e/package_arm64")
MOST_DAYS_OPEN = 14


@dataclasses.dataclass(frozen=True)
class Row:
    test: str  # the name of CTest
    seen: datetime.date
    what: str
    race: str
    mended: str  # the commit; empty: it is open

    def days_open(self, today: datetime.date) -> int:
        return 0 if self.mended else (today - self.seen).days


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]


def row_of(line: str) -> Row:
    """ValueError: the line does not have the form of a row."""
    found = cells(line)
    if len(found) != len(HEAD):
        raise ValueError(f"has {len(found)} columns, not {len(HEAD)}")
    test, seen, what, race, mended = found
    if not NAME.fullmatch(test):
        raise ValueError(f"{test!r} is not the name of a test")
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", seen):
        raise ValueError(f"{seen!r} is not a date like 2026-11-24")
    if not what or not race:
        raise ValueError("says not what was seen, or which race is suspected")
    if mended and not COMMIT.fullmatch(mended):
        raise ValueError(f"{mended!r} is not a commit; nothing stands there while it is open")
    return Row(test, datetime.date.fromisoformat(seen), what, race, mended)


def read(text: str) -> tuple[list[Row], list[str]]:
    """The rows of the page, and what is wrong with its form."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1)
             if line.startswith("|")]
    if len(lines) < 2 or cells(lines[0][1]) != HEAD:
        return [], [f"the register has no table with the columns {', '.join(HEAD)}"]
    rows, problems = [], []
    for number, line in lines[2:]:
        try:
            rows.append(row_of(line))
        except ValueError as error:
            problems.append(f"line {number}: {error}")
    return rows, problems


def unknown(rows: list[Row], names: set[str]) -> list[str]:
    """What is wrong with the tests of the rows: none of these names is theirs. A row of a test that
    got another name forgives nothing, and nobody is told that the test came again."""
    return [f"CTest has no test {test}"
            for test in dict.fromkeys(row.test for row in rows)
            if test not in names and not ELSEWHERE.fullmatch(test)]


def overdue(rows: list[Row], today: datetime.date) -> list[str]:
    """The tests that the register itself makes red, each with the reason."""
    found = [f"{row.test} is open since {row.seen}, for more than {MOST_DAYS_OPEN} days"
             for row in rows if row.days_open(today) > MOST_DAYS_OPEN]
    found += [f"{row.test} was seen on {row.seen}, which has not come yet"
              for row in rows if row.seen > today]
    mended = {row.test: row.mended for row in rows if row.mended}
    return found + [f"{row.test} was mended in {mended[row.test]} and came again"
                    for row in rows if not row.mended and row.test in mended]


def unforgiven(rows: list[Row], test: str) -> str:
    """Why a test that was unsteady in this run is not forgiven; empty: it has an open row."""
    its = [row for row in rows if row.test == test]
    if any(not row.mended for row in its):
        return ""
    if its:
        return f"it was mended in {its[-1].mended} and came again"
    return "it has no open row in tests/UNSTEADY.md"


def main(build: Path) -> int:
    rows, problems = read(PAGE.read_text())
    problems += unknown(rows, set(run_tests.listed(run_tests.Phase("", build))))
    for problem in problems:
        print(f"tests/UNSTEADY.md: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
