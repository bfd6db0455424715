"""Every test whose verdict depends on time must have the label `clock`: clock.py BUILD_DIR [ROOT].
Prints those that have not, with what shows it, and exits with 1 if there are any.

A test depends on time if its source sleeps, stops a process, or has a time-out below ten seconds.
The headers and helpers of tests/ that it includes or imports count as its source, and of a script
only the classes that the test names, if it names some. A line is excepted by a comment on it or
above it: `no deadline:` and why.
"""
import json
import re
import subprocess
import sys
from pathlib import Path

SHORT_S = 10
NUMBER = r"([\d.][\d.']*)"
# Without a number: always. With one: if it is below SHORT_S, after the factor.
CPP = (
    (r"\bstd::this_thread::sleep_(?:for|until)\(|\b(?:usleep|nanosleep)\(", 1),
    (rf"(?<![\w.>])sleep\({NUMBER}\)", 1),
    (r"\bSIGSTOP\b", 1),
    (rf"\bafter_s\({NUMBER}\)", 1),
    (rf"\bafter_ms\({NUMBER}\)", 1e-3),
    (rf"\b(?:k\w*Ms|\w*(?:timeout|deadline)_ms) = {NUMBER};", 1e-3),
    (rf"\b(?:k\w*Seconds|\w*(?:timeout|deadline)_s) = {NUMBER};", 1),
    (rf"_L[TE]\(\w*(?:seconds_since|took|waited|elapsed)\w*(?:\([^()]*\))?, {NUMBER}[,)]", 1),
)
PYTHON = (
    (rf"\bsleep(?:\(|\s|\", \"){NUMBER}(?![\w.])", 1),
    (r"\btime\.sleep\((?=[^\d)])", 1),
    (r"\bSIGSTOP\b|-STOP\b|\bharness\.(?:stopped|kill_unseen)\(", 1),
    (rf"[Tt]imeout(?:=|\(|\", \"?){NUMBER}(?![\w.]| \*)", 1),
    (rf"\.wait\({NUMBER}\)", 1),
    (rf"\.assertLess(?:Equal)?\((?:min\()?(?:time\.monotonic|took|slowest)[^,]*, {NUMBER}[,) ]", 1),
)
EXCEPTED = re.compile(r"(?://|#) no deadline: \w")
# Their waits end a test that hangs, after a minute, and their one poll is within such a wait.
HELPERS = {"tests/e2e/harness.py", "tests/guard.h"}
COMMENT = {".py": re.compile(r'(?<!["\w])"""(?:.|\n)*?"""|^\s*#[^\n]*', re.MULTILINE)}
CPP_COMMENT = re.compile(r"//[^\n]*")


def signs(path: str, text: str) -> list[str]:
    """The lines of a source that show that it depends on time, each with its place."""
    def keep_lines(match: re.Match) -> str:
        return "\n" * match[0].count("\n")
    lines = text.splitlines()
    code = COMMENT.get(Path(path).suffix, CPP_COMMENT).sub(keep_lines, text)
    found = []
    for number, line in enumerate(code.splitlines()):
        if any(EXCEPTED.search(near) for near in lines[max(number - 1, 0):number + 1]):
            continue
        for pattern, factor in PYTHON if path.endswith(".py") else CPP:
            for match in re.finditer(pattern, line):
                if not match.re.groups or \
                        0 < float(match[1].replace("'", "").rstrip(".")) * factor < SHORT_S:
                    found.append(f"{path}:{number + 1}: {line.strip()}")
    return list(dict.fromkeys(found))


def sources(path: str, root: Path, seen: set[str]) -> set[str]:
    """The source, and those of tests/ that it includes or imports. Of another test's script only
    functions are used, and its classes are run by a test of their own."""
    if path in seen or path in HELPERS or not (root / path).is_file():
        return seen
    seen.add(path)
    text = (root / path).read_text()
    if path.endswith(".py"):
        names = re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE)
        others = [f"{path.rpartition('/')[0]}/{name}.py" for name in names
                  if not name.endswith("_test")]
    else:
        others = re.findall(r'^#include "(tests/[^"]+)"', text, re.MULTILINE)
    for other in others:
        sources(other, root, seen)
    return seen


def of_classes(text: str, words: list[str]) -> str:
    """The script without the classes that `words`, its arguments, leave out. They name classes as
    unittest does, or in small letters with dashes."""
    blocks = re.split(r"^(?=class |\S)", text, flags=re.MULTILINE)
    bases = {match[1]: match[2] for block in blocks
             if (match := re.match(r"class (\w+)\(([\w.]+)\):", block))}
    chosen = {name for name in bases for word in words
              if name.lower() == word.replace("-", "").lower()}
    for name in list(chosen):
        while (name := bases.get(name, "")) in bases:
            chosen.add(name)
    if not chosen:
        return text
    return "".join(block if not (match := re.match(r"class (\w+)", block)) or match[1] in chosen
                   else "\n" * block.count("\n") for block in blocks)


def source_of(test: dict, root: Path) -> tuple[str, list[str]] | None:
    """The source that a test of CTest runs, and its arguments. None: it is none of tests/."""
    words = test.get("command", [])
    for place, word in enumerate(words):
        if word.endswith(".py"):
            script = Path(word).resolve()
            return (script.relative_to(root).as_posix(), words[place + 1:]) \
                if script.is_relative_to(root) else None
    path = f"tests/{test['name']}.cc"
    return (path, []) if (root / path).is_file() else None


def signs_of_test(test: dict, root: Path) -> list[str]:
    """What shows that a test of CTest depends on time."""
    if not (found := source_of(test, root)):
        return []
    path, words = found
    return [sign for other in sorted(sources(path, root, set()))
            for sign in signs(other, of_classes((root / other).read_text(),
                                                words if other == path else []))]


def problems(tests: list[dict], root: Path) -> list[str]:
    found = []
    for test in tests:
        labels = next((entry["value"] for entry in test.get("properties", [])
                       if entry["name"] == "LABELS"), [])
        if not {"clock", "lint"} & set(labels) and (seen := signs_of_test(test, root)):
            found.append(f"{test['name']} needs the label clock (SHOAL_CLOCK_TESTS in "
                         "tests/tables.cmake), because of\n"
                         + "\n".join("    " + sign for sign in seen))
    return found


def main() -> int:
    root = Path(sys.argv[2] if len(sys.argv) > 2 else ".").resolve()
    shown = subprocess.run(["ctest", "--test-dir", sys.argv[1], "--show-only=json-v1"],
                           capture_output=True, check=True, text=True)
    found = problems(json.loads(shown.stdout)["tests"], root)
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
