"""Draws mutants by chance: draw.py --seed N [--count K] [--in FOLDER...] [--out FOLDER]

The default is ten mutants of all folders of the program, written to this folder.

Picks an operator, then a place where it fits, each with equal chance, until K changed sources still
compile. Writes them as patches of the kind `drawn`; the same seed and tree give the same patches.
Needs the compile database that scripts/tidy makes.
"""
import argparse
import difflib
import json
import random
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDERS = ("runtime", "kernels", "models", "server")


def replaced(pattern: str, by) -> callable:
    """line -> the lines that come from replacing each match alone. `by` is a text or a function of the match."""
    compiled = re.compile(pattern)

    def variants(line: str) -> list[str]:
        found = []
        for match in compiled.finditer(line):
            new = by(match) if callable(by) else match.expand(by)
            found.append(line[: match.start()] + new + line[match.end():])
        return found
    return variants


def swapped(first: str, second: str):
    return lambda match: second if match[0] == first else first


def other_comparison(match: re.Match) -> str:
    return {" < ": " <= ", " <= ": " < ", " > ": " >= ", " >= ": " > "}[match[0]]


def weaker_order(match: re.Match) -> str:
    return "memory_order_relaxed"


# Name -> line -> the lines it can become. Each is a slip that a person makes.
OPERATORS = {
    "negate_condition": replaced(r"\bif \((?!constexpr)([^;{}]*)\) (?=\{|return|break|continue)", r"if (!(\1)) "),
    "equal_or_not": replaced(r" [=!]= ", swapped(" == ", " != ")),
    "and_or": replaced(r" (?:&&|\|\|) (?!.*requires)", swapped(" && ", " || ")),
    "off_by_one": replaced(r" (?:<=?|>=?) (?=[a-z0-9_(])", other_comparison),
    "plus_minus": replaced(r"(?<=[\w)\]]) [+-] (?=[\w(])", swapped(" + ", " - ")),
    "one_more": replaced(r"(?<=[ (=])(\d+)(?=[;,) ])", lambda match: str(int(match[1]) + 1)),
    "min_max": replaced(r"\bstd::(?:min|max)\b", swapped("std::min", "std::max")),
    "drop_statement": replaced(r"^( +)(?!return|break|continue|using|delete|throw|co_)[a-z_][\w.>-]*\([^{}]*\);$", r"\1;"),
    "drop_assignment": replaced(r"^( +)[a-z_][\w.]*(?:\[[^]]*\])? [-+|&]?= [^{}]*;$", r"\1;"),
    "drop_return": replaced(r"^( +)(?:if \([^{}]*\) )?return\b[^{}]*;$", r"\1;"),
    "memory_order": replaced(r"\bmemory_order_(?:acquire|release|acq_rel|seq_cst)\b", weaker_order),
    "deadline": replaced(r"\b(?:milliseconds|seconds|microseconds)[({]([^(){}]+)[)}]",
                         lambda match: match[0].replace(match[1], f"{match[1]} * 100")),
    "swap_arguments": replaced(r"(?<=\w\()([a-z_][\w.]*), ([a-z_][\w.]*)(?=[,)])", r"\2, \1"),
}
# An x86 processor hides a weaker memory order: ThreadSanitizer sees it.
PRESETS = {"memory_order": "tsan"}
# Not code that runs: comments, preprocessor lines, declarations of names.
SKIPPED = re.compile(r"^\s*(//|#|using |namespace |static_assert|template)")


@dataclass(frozen=True)
class Site:
    path: str  # from the root
    number: int  # of the line, from 0
    line: str  # what it becomes


def sites(root: Path, paths: list[str]) -> dict[str, list[Site]]:
    """Operator -> every place where it fits."""
    found = {name: [] for name in OPERATORS}
    for path in paths:
        for number, line in enumerate((root / path).read_text().splitlines()):
            code, _, _ = line.partition(" //")
            if SKIPPED.match(line):
                continue
            for name, variants in OPERATORS.items():
                found[name] += [Site(path, number, new + line[len(code):]) for new in variants(code) if new != code]
    return found


class Compiler:
    """Whether a changed file still compiles, by the command of a build of the tree."""

    def __init__(self, root: Path, build: Path):
        self.root = root
        entries = json.loads((build / "compile_commands.json").read_text())
        self.entries = {}
        for entry in entries:
            file = Path(entry["file"])
            if file.is_relative_to(root):
                self.entries.setdefault(file.relative_to(root).as_posix(), entry)

    def unit_of(self, path: str) -> str | None:
        """The source to compile for a change of this file: itself, or one that includes the header."""
        if path in self.entries:
            return path
        include = f'#include "{path}"'
        sources = [name for name in sorted(self.entries) if name.startswith(FOLDERS)]
        return next((name for name in sources if include in (self.root / name).read_text()), None)

    def compiles(self, path: str, text: str) -> bool:
        unit = self.unit_of(path)
        if unit is None:
            return False
        entry = self.entries[unit]
        words = shlex.split(entry["command"])
        # Without the compiler's launcher, and without what writes files.
        start = next(i for i, word in enumerate(words) if re.search(r"(\+\+|cc)(-\d+)?$", word) and "ccache" not in word)
        words = words[start:]
        del words[words.index("-o"):words.index("-o") + 2]
        with tempfile.TemporaryDirectory() as overlay:
            changed = Path(overlay) / path
            changed.parent.mkdir(parents=True)
            changed.write_text(text)
            source = Path(overlay) / unit
            if not source.exists():
                source.parent.mkdir(parents=True, exist_ok=True)
                source.write_text((self.root / unit).read_text())
            words = [str(source) if word == entry["file"] else word for word in words]
            done = subprocess.run([words[0], f"-I{overlay}", *words[1:], "-fsyntax-only"],
                                  cwd=entry["directory"], capture_output=True)
        return done.returncode == 0


def tests_of(path: str) -> str:
    """The tests nearest to a source: of its folder, and the whole program's."""
    folder = re.escape(path.rsplit("/", 1)[0])
    return f"^({folder}/|conformance/|e2e/)"


def patch(root: Path, site: Site, header: str) -> tuple[str, str]:
    """The changed text and the patch that makes it."""
    old = (root / site.path).read_text().splitlines(keepends=True)
    new = list(old)
    new[site.number] = site.line + "\n"
    diff = difflib.unified_diff(old, new, f"a/{site.path}", f"b/{site.path}", n=1)
    return "".join(new), header + "".join(diff)


def draw(root: Path, compiler: Compiler, seed: int, count: int, folders=FOLDERS):
    """Yields (name, patch); fewer than `count` if the tree has no more places."""
    listed = subprocess.run(["git", "ls-files", *folders], cwd=root, capture_output=True, text=True, check=True).stdout
    found = sites(root, sorted(path for path in listed.splitlines() if path.endswith((".cc", ".h"))))
    chance = random.Random(seed)
    drawn, used = 0, set()
    while drawn < count and any(found.values()):
        operator = chance.choice([name for name in OPERATORS if found[name]])
        site = found[operator].pop(chance.randrange(len(found[operator])))
        if (site.path, site.number) in used:
            continue
        header = (f"Drawn by draw.py --seed {seed}: {operator} in {site.path}:{site.number + 1}\n"
                  f"kind: drawn\npreset: {PRESETS.get(operator, 'release')}\nexpect: {tests_of(site.path)}\n\n")
        text, whole = patch(root, site, header)
        if not compiler.compiles(site.path, text):
            continue
        used.add((site.path, site.number))
        drawn += 1
        yield f"drawn_{seed}_{drawn:02}_{operator}", whole


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--in", dest="folders", nargs="+", metavar="FOLDER", default=FOLDERS)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--root", type=Path, default=HERE.parents[1], help="the tree (default: this one)")
    parser.add_argument("--build", type=Path, help="whose compile database to use (default: build/tidy)")
    options = parser.parse_args()
    root = options.root.resolve()
    compiler = Compiler(root, (options.build or root / "build" / "tidy").resolve())
    options.out.mkdir(parents=True, exist_ok=True)
    drawn = 0
    for name, text in draw(root, compiler, options.seed, options.count,
                           options.folders):
        (options.out / f"{name}.patch").write_text(text)
        print(f"{name}.patch: {text.splitlines()[0].partition(': ')[2]}", flush=True)
        drawn += 1
    if drawn < options.count:
        print(f"draw: only {drawn} mutants compile", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
