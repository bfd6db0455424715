"""Every test whose verdict depends on time must have the label `clock`: clock.py BUILD_DIR [ROOT].
Prints those that have not, with what shows it, tests whose source it does not find, names in
tests/tables.cmake that no test has, and limits of tests/e2e that only end a hang and are not made of
harness.GUARD. Exits with 1 if there are any.

A test depends on time if its source sleeps, stops a process, or has a time-out below ten seconds.
The headers of tests/ that it includes, the sources beside them of the same name, and the helpers
that it imports count as its source, and of a script only the classes that the test names, if it
names some. A line is excepted by a comment on it or above it: `no deadline:` and why.
"""
import json
import os
import re
import subprocess
import sys
from pathlib import Path

SHORT_S = 10
NUMBER = r"([\d.][\d.']*)"
# A deadline of gRPC, or a wait of the standard library.
WAIT = r"(?:\.|->)(?:set_deadline|wait_for|wait_until)\("
# Without a number: always. With one: if it is below SHORT_S, after the factor.
CPP = (
    (r"\bsleep_(?:for|until)\(|\b(?:usleep|nanosleep|clock_nanosleep|setitimer)\(", 1),
    (rf"(?<![\w.>])(?:sleep|alarm)\({NUMBER}\)", 1),
    (rf"\bpoll\([^;]*?, {NUMBER}\)", 1e-3),
    (r"\bSIGT?STO?P\b", 1),
    (rf"\bafter_s\({NUMBER}\)", 1),
    (rf"\bafter_ms\({NUMBER}\)", 1e-3),
    (rf"{WAIT}[^;]*?\bmilliseconds\({NUMBER}\)", 1e-3),
    (rf"{WAIT}[^;]*?\bseconds\({NUMBER}\)", 1),
    (rf"{WAIT}(?![^;]*(?:kGuard|\b(?:milliseconds|seconds|minutes)\(\d))", 1),
    (rf"\b(?:k\w*Ms|\w*(?:timeout|deadline)_ms) = {NUMBER};", 1e-3),
    (rf"\b(?:k\w*Seconds|\w*(?:timeout|deadline)_s) = {NUMBER};", 1),
    (rf"_L[TE]\(\w*(?:seconds_since|took|waited|elapsed)\w*(?:\([^()]*\))?, {NUMBER}[,)]", 1),
)
PYTHON = (
    (rf"\bsleep(?:\(|\s|\", \"){NUMBER}(?![\w.])", 1),
    (r"\btime\.sleep\((?=[^\d)])", 1),
    (r"\bSIGT?STO?P\b|-STOP\b|\bsetitimer\(|\bharness\.(?:stopped|kill_unseen)\(", 1),
    (rf"[Tt]imeout(?:=|\(|\", \"?){NUMBER}(?![\w.]| \*)", 1),
    (rf"\.(?:wait|join|result)\({NUMBER}\)|\balarm\({NUMBER}\)", 1),
    (rf"\bselect\.select\(.*, {NUMBER}\)", 1),
    (rf"\bguard={NUMBER}(?![\w.]| \*)|\bcreate_connection\(.*, {NUMBER}\)", 1),
    (rf"\.assertLess(?:Equal)?\((?:min\()?(?:time\.monotonic|took|slowest)[^,]*, {NUMBER}[,) ]", 1),
)
EXCEPTED = re.compile(r"(?://|#) no deadline: \w")
# A limit that is a number of ten seconds or more only ends a hang. harness.GUARD is the one number
# for that, which a sanitizer and an emulator raise. These scripts wait for a compiler or for packages.
LONG_LIMIT = re.compile(r"(?:(?<!\w)(?:timeout|guard)=|\.(?:settimeout|wait|join|result)\()"
                        rf"{NUMBER}(?![\w.]| ?\*)")
WAIT_FOR_BUILDS = {"gpu_check_test.py", "lift_test.py", "package_test.py"}
# Their waits end a test that hangs, after a minute, and their one poll is within such a wait.
HELPERS = {"tests/e2e/harness.py", "tests/guard.h"}
SCRIPTS = {".py", ".sh", ""}
SCRIPT_COMMENT = re.compile(r'(?<!["\w])"""(?:.|\n)*?"""|^\s*#[^\n]*', re.MULTILINE)
CPP_COMMENT = re.compile(r"//[^\n]*")


def signs(path: str, text: str) -> list[str]:
    """The places of a source that show that it depends on time, each with its first line."""
    def keep_lines(match: re.Match) -> str:
        return "\n" * match[0].count("\n")
    script = Path(path).suffix in SCRIPTS
    lines = text.split("\n")
    code = (SCRIPT_COMMENT if script else CPP_COMMENT).sub(keep_lines, text)
    found = set()
    for pattern, factor in PYTHON if script else CPP:
        for match in re.finditer(pattern, code):
            first, last = (code.count("\n", 0, end) for end in match.span())
            if any(EXCEPTED.search(near) for near in lines[max(first - 1, 0):last + 1]):
                continue
            number = next(filter(None, match.groups()), "")
            if not match.re.groups or \
                    0 < float(number.replace("'", "").rstrip(".")) * factor < SHORT_S:
                found.add((first + 1, code.split("\n")[first].strip()))
    return [f"{path}:{number}: {line}" for number, line in sorted(found)]


def sources(path: str, root: Path, seen: set[str]) -> set[str]:
    """The source, and the sources of tests/ that it includes or imports. A script of another test
    is imported for its functions only: its classes are run by a test of their own."""
    if path in seen or path in HELPERS or not (root / path).is_file():
        return seen
    seen.add(path)
    text = (root / path).read_text()
    if path.endswith(".py"):
        names = re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE)
        others = [f"{path.rpartition('/')[0]}/{name}.py" for name in names
                  if not name.endswith("_test")]
    else:
        headers = re.findall(r'^#include "(tests/[^"]+)"', text, re.MULTILINE)
        others = [*headers, *(header.removesuffix(".h") + ".cc" for header in headers)]
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


def of_program(program: Path, root: Path) -> list[str]:
    """The sources that the CMakeLists.txt of a program names for it. `program` is its path in the
    build folder."""
    lists = root / program.parent / "CMakeLists.txt"
    call = re.search(rf"\b(?:add_executable|shoal_test_program)\({re.escape(program.name)}\s"
                     r"([^)]*)\)", lists.read_text() if lists.is_file() else "")
    return [(program.parent / word).as_posix() for word in (call[1] if call else "").split()
            if re.fullmatch(r"[\w/]+\.cc", word)]


def sources_of(test: dict, build: Path, root: Path) -> dict[str, list[str]]:
    """The sources that a test of CTest runs, with the arguments of each."""
    own = f"tests/{test['name']}.cc"
    found: dict[str, list[str]] = {own: []} if (root / own).is_file() else {}
    words = test.get("command", [])
    for place, word in enumerate(words):
        path = Path(os.path.normpath(word))
        if path.is_relative_to(build):
            found |= {source: [] for source in of_program(path.relative_to(build), root)}
        elif path.is_relative_to(root) and not path.is_relative_to(root / "build") and \
                path.is_file() and path.suffix in {".py", ".cmake", ""}:
            found[path.relative_to(root).as_posix()] = words[place + 1:]
    return found


def signs_of(own: dict[str, list[str]], root: Path) -> list[str]:
    """What shows that a test with these sources depends on time."""
    seen: set[str] = set()
    for path in own:
        sources(path, root, seen)
    return [sign for path in sorted(seen)
            for sign in signs(path, of_classes((root / path).read_text(), own.get(path, [])))]


def problems(tests: list[dict], build: Path, root: Path) -> list[str]:
    found = []
    for test in tests:
        labels = next((entry["value"] for entry in test.get("properties", [])
                       if entry["name"] == "LABELS"), [])
        if {"clock", "lint"} & set(labels):
            continue
        if not (own := sources_of(test, build, root)):
            found.append(f"{test['name']}: its source is not found: it is tests/NAME.cc, a script, "
                         "or named for its program in the CMakeLists.txt of the program's folder")
        elif seen := signs_of(own, root):
            found.append(f"{test['name']} needs the label clock (SHOAL_CLOCK_TESTS in "
                         "tests/tables.cmake), because of\n"
                         + "\n".join("    " + sign for sign in seen))
    return found


def expanded(pattern: str) -> set[str]:
    """The pattern once for each way to choose between the alternatives of its groups."""
    if not (group := re.search(r"\(([^()]*)\)", pattern)):
        return {pattern}
    return set().union(*(expanded(pattern[:group.start()] + choice + pattern[group.end():])
                         for choice in group[1].split("|")))


def unknown_names(tables: str, names: list[str]) -> list[str]:
    """What the tables say of tests that CTest does not have. A test that gets another name would
    lose its label or its place silently."""
    found = []
    for table, entries in re.findall(r'^set\((\w+)((?:\s+(?:"[^"]*"|[^\s()"]+))*)\)',
                                     re.sub(r"#[^\n]*", "", tables), re.MULTILINE):
        for entry in re.findall(r'"([^"]*)"|([^\s"]+)', entries):
            for one in sorted(expanded(entry[0] or entry[1].partition("=")[0])):
                if not any(re.fullmatch(one, name) for name in names):
                    found.append(f"tests/tables.cmake: {table}: no test has the name {one}")
    return found


def own_guards(root: Path) -> list[str]:
    """Limits of tests/e2e that are numbers of their own."""
    found = []
    for script in sorted((root / "tests/e2e").glob("*.py")):
        if script.name in WAIT_FOR_BUILDS:
            continue
        for number, line in enumerate(script.read_text().split("\n"), 1):
            found += [f"{script.relative_to(root)}:{number}: {match[0]}: write a multiple of "
                      "harness.GUARD" for match in LONG_LIMIT.finditer(line)
                      if float(match[1].rstrip(".")) >= SHORT_S and not EXCEPTED.search(line)]
    return found


def main() -> int:
    build = Path(sys.argv[1]).resolve()
    root = Path(sys.argv[2] if len(sys.argv) > 2 else ".").resolve()
    shown = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"],
                           capture_output=True, check=True, text=True)
    tests = json.loads(shown.stdout)["tests"]
    found = problems(tests, build, root) + own_guards(root) + unknown_names(
        (root / "tests/tables.cmake").read_text(), [test["name"] for test in tests])
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
