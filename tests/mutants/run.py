"""Requires that the tests notice damage: run.py [--only KIND] [PATCH...]   (default: every patch of this folder)

The tests that the patches name are first built and run in a copy of the tree (build/mutants/tree)
without any patch, where they must be green. Then each patch is applied there alone, its tests are
built and run again, and at least one of them must go red. Exit 1 if a patch survives, does not
apply, does not build, or names tests that are not green without it. README.md has the format.
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "scripts"))
import sanitizer_reports  # noqa: E402

KINDS = {"race", "leak", "wrong bit", "lost wake-up", "deadline", "exit code", "recovery", "drawn"}
PRESETS = {"release", "asan", "tsan"}
# What scripts/test --all leaves out of its runs under a sanitizer; of the release build it runs everything.
LEFT_OUT = {"release": [], "asan": ["--label-exclude", "^(real|lint|release)$"], "tsan": ["--label-exclude", "^(real|lint|release)$"]}
HEADER = re.compile(r"^(kind|preset|expect): *(.+?) *$")


class Unusable(Exception):
    """A patch that shows nothing: the message says what is wrong with it."""


@dataclass
class Mutant:
    path: Path
    kind: str
    preset: str
    expect: str  # a regular expression of CTest names

    @property
    def name(self) -> str:
        return self.path.stem


def read_mutant(path: Path) -> Mutant:
    """The header is everything before the first line of the diff."""
    fields = {}
    for line in path.read_text().splitlines():
        if line.startswith(("diff ", "--- ")):
            break
        if match := HEADER.match(line):
            fields[match[1]] = match[2]
    missing = [name for name in ("kind", "preset", "expect") if name not in fields]
    if missing:
        raise Unusable(f"its header has no {', '.join(missing)}")
    if fields["kind"] not in KINDS:
        raise Unusable(f"kind {fields['kind']!r} is none of {', '.join(sorted(KINDS))}")
    if fields["preset"] not in PRESETS:
        raise Unusable(f"preset {fields['preset']!r} is none of {', '.join(sorted(PRESETS))}")
    return Mutant(path, **fields)


class Tree:
    """A copy of the tree that patches may damage, with one build directory for each preset."""

    def __init__(self, root: Path, folder: Path):
        self.root, self.folder = root, folder

    def build_of(self, preset: str) -> Path:
        return self.folder / "build" / preset

    def sync(self) -> None:
        """Makes the copy equal to the tree. Files that did not change keep their times, so that only
        what a patch had changed is compiled again."""
        listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                                cwd=self.root, capture_output=True, check=True).stdout.decode()
        wanted = {name for name in listed.split("\0") if name and (self.root / name).is_file()}
        for name in wanted:
            source, copy = self.root / name, self.folder / name
            if copy.is_file() and copy.read_bytes() == source.read_bytes():
                continue
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)
        for entry in self.folder.iterdir():
            if entry.name == "build":
                continue
            for copy in entry.rglob("*") if entry.is_dir() else [entry]:
                if copy.is_file() and copy.relative_to(self.folder).as_posix() not in wanted:
                    copy.unlink()

    def apply(self, patch: Path) -> None:
        # The copy lies inside the repository; without the ceiling git would skip paths outside its own root.
        ceiling = {**os.environ, "GIT_CEILING_DIRECTORIES": str(self.folder.parent)}
        done = subprocess.run(["git", "apply", "-C0", str(patch)], cwd=self.folder, env=ceiling,
                              capture_output=True, text=True)
        if done.returncode != 0:
            raise Unusable(f"does not apply: {done.stderr.strip()}")

    def tests(self, preset: str, expect: str) -> list[dict]:
        """What CTest knows of the tests whose names match."""
        shown = subprocess.run(["ctest", "--test-dir", str(self.build_of(preset)), "--show-only=json-v1", "-R", expect,
                                *LEFT_OUT[preset]], capture_output=True, text=True, check=True).stdout
        return json.loads(shown)["tests"]

    def configure(self, preset: str) -> None:
        """A configured build directory, which is what knows the tests' names."""
        self.run(["cmake", "--preset", preset], "cannot be configured")

    def targets(self, preset: str, tests: list[dict]) -> list[str]:
        """What these tests run: their programs, and what their environment points at."""
        build, found = self.build_of(preset), set()
        for test in tests:
            words = list(test.get("command", []))
            for item in test.get("properties", []):
                if item["name"] == "ENVIRONMENT":
                    words += [setting.partition("=")[2] for setting in item["value"]]
            found |= {os.path.relpath(word, build) for word in words if word.startswith(f"{build}/")}
        return sorted(found)

    def build(self, preset: str, tests: list[dict]) -> None:
        """Builds what the tests run. The preset is configured already, so only CMake's own check is made."""
        if targets := self.targets(preset, tests):
            self.run(["cmake", "--build", str(self.build_of(preset)), "--parallel", str(os.cpu_count()),
                      "--target", *targets], "does not build")

    def run(self, command: list[str], otherwise: str) -> None:
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True)
        if done.returncode != 0:
            raise Unusable(f"{otherwise}:\n{(done.stdout + done.stderr)[-2000:]}")

    def red(self, preset: str, expect: str, *arguments: str) -> list[str]:
        """The names of the tests that fail, or in which a sanitizer reports something. As the file
        of a report knows them, because the process of the report may not be the one that CTest saw."""
        prefix, build = [], self.build_of(preset)
        sanitizer_reports.clear(build)
        if preset == "tsan" and subprocess.run(["setarch", "--addr-no-randomize", "true"],
                                               stderr=subprocess.DEVNULL).returncode == 0:
            prefix = ["setarch", "--addr-no-randomize"]
        # One failure is enough, also within a program.
        environment = {**os.environ, "GTEST_FAIL_FAST": "1"}
        output = subprocess.run([*prefix, "ctest", "--test-dir", str(build), "-R", expect,
                                 *LEFT_OUT[preset], "--no-tests=error", "--parallel", "2", *arguments],
                                env=environment, capture_output=True, text=True).stdout
        failed = re.findall(r"^\s*\d+ - (\S+) \((?!Skipped|Disabled).*\)$", output, re.MULTILINE)
        return failed + sorted(set(sanitizer_reports.collect(build)) - set(failed))


@dataclass
class Ready:
    """A preset's tests as they are without a patch, or why nothing can be said of them."""
    red: set[str]
    problem: str = ""


def make_ready(tree: Tree, preset: str, expects: set[str]) -> Ready:
    """Builds and runs the tests that any patch of this preset names, each of them once."""
    try:
        tree.sync()
        tree.configure(preset)
        tests = {test["name"]: test for expect in expects for test in tree.tests(preset, expect)}
        tree.build(preset, list(tests.values()))
    except Unusable as problem:
        return Ready(set(), f"without any patch the tree {problem}")
    # By their names, because CTest refuses an expression with more than a few parentheses.
    these = "|".join(f"^{re.escape(name)}$" for name in sorted(tests))
    red = tree.red(preset, these) if tests else []
    # A test with deadlines may fail beside others that keep every processor busy.
    return Ready({name for name in red if tree.red(preset, f"^{re.escape(name)}$")})


def caught_by(tree: Tree, mutant: Mutant, ready: Ready) -> tuple[str | None, int]:
    """The test that notices the damage, and how many were asked."""
    if ready.problem:
        raise Unusable(ready.problem)
    tests = tree.tests(mutant.preset, mutant.expect)
    if not tests:
        raise Unusable(f"scripts/test --all runs no test named like {mutant.expect} with {mutant.preset}")
    if broken := sorted(ready.red & {test["name"] for test in tests}):
        raise Unusable(f"{broken[0]} fails without the patch")
    tree.apply(mutant.path)
    tree.build(mutant.preset, tests)
    red = tree.red(mutant.preset, mutant.expect, "--stop-on-failure")
    return (red[0] if red else None), len(tests)


def check(tree: Tree, mutant: Mutant, ready: Ready) -> tuple[bool, str]:
    """Whether the damage was noticed, and what is to be said of it."""
    try:
        test, asked = caught_by(tree, mutant, ready)
    except Unusable as problem:
        return False, f"unusable: {problem}"
    finally:
        tree.sync()
    if test is None:
        return False, f"SURVIVED: {asked} tests named like {mutant.expect} are green ({mutant.preset})"
    return True, f"{mutant.kind}: caught by {test} ({mutant.preset})"


def read_all(patches: list[Path]) -> tuple[list[Mutant], int]:
    """The patches whose header can be read, by preset, and the number of the others."""
    mutants, unreadable = [], 0
    for path in patches:
        try:
            mutants.append(read_mutant(path))
        except Unusable as problem:
            print(f"{path.stem}: unusable: {problem}", flush=True)
            unreadable += 1
    return sorted(mutants, key=lambda mutant: mutant.preset), unreadable


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("patches", nargs="*", type=Path, metavar="PATCH")
    parser.add_argument("--root", type=Path, default=HERE.parents[1], help="the tree (default: this one)")
    parser.add_argument("--only", metavar="KIND", help="only patches of this kind")
    options = parser.parse_args()

    root = options.root.resolve()
    patches = [path.resolve() for path in options.patches] or sorted((root / "tests/mutants").glob("*.patch"))
    if options.only:
        patches = [path for path in patches if re.search(rf"^kind: *{options.only}$", path.read_text(), re.MULTILINE)]
    if not patches:
        print("mutants: there is no such patch", file=sys.stderr)
        return 1
    began = time.monotonic()
    tree = Tree(root, root / "build" / "mutants" / "tree")
    tree.folder.mkdir(parents=True, exist_ok=True)
    mutants, survivors = read_all(patches)
    ready: dict[str, Ready] = {}
    for mutant in mutants:
        if mutant.preset not in ready:
            expects = {other.expect for other in mutants if other.preset == mutant.preset}
            ready[mutant.preset] = make_ready(tree, mutant.preset, expects)
            print(f"{mutant.preset}: the tests without a patch, {time.monotonic() - began:.0f} s", flush=True)
        since = time.monotonic()
        caught, text = check(tree, mutant, ready[mutant.preset])
        survivors += not caught
        print(f"{mutant.name}: {text}, {time.monotonic() - since:.0f} s", flush=True)
    print(f"{len(patches) - survivors} of {len(patches)} mutants were caught, {time.monotonic() - began:.0f} s")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
