"""The rules of the tree that no compiler checks: structure.py [ROOT]. Prints every violation, and
exits with 1 if there is one.

Rules: includes point down the layers (docs/architecture.md, section 3), are written from the root
and make no cycle between folders; CMake's DEPS are what the includes need (cmake_targets.py); files
and functions keep their budgets (budgets.py); headers have #pragma once and nothing includes a .cc;
a .cc has a header of its own name, except in the folders of TABLES; every *_test.cc and *_fuzz.cc
is named in its folder's CMakeLists.txt; the documentation lists every folder of the layers and no
others; no code decides by an error's place or wording; no test overwrites a sanitizer's options;
where threads or ranks meet without a lock, a comment argues each memory order; no answer is computed
by the C library's exp, sin and the like; names are snake_case; folder READMEs have at most 28 lines; no message has a number beside a noun in
the plural (plurals.py); no file contains paths of a certain machine or forgotten to-do marks.
"""
import re
import sys
from pathlib import Path

import budgets
import cmake_targets
import plurals

# The layers: a floor, and for a folder with rooms a step on that floor. A folder may include
# itself, every folder on a lower floor, the rooms of its own family on a lower step, and the
# folders that ALSO names.
LAYERS = {
    "runtime/base": 1,
    "runtime/memory": 2, "runtime/device": 2, "kernels": 2,
    "kernels/cuda": 3, "runtime/control": 3,
    "runtime/comm": 3.1, "runtime/comm/slots": 3.2, "runtime/comm/tcp": 3.2,
    "runtime/comm/device": 3.2,
    "runtime/transport/facts": 4.1, "runtime/transport/needs": 4.2, "runtime/transport/rungs": 4.3,
    "runtime/transport": 4.4,
    "runtime/engine": 4, "models": 4,
    "runtime/rank": 5, "runtime/worker": 5, "runtime/supervisor": 5,
    "server/net": 6.1, "server/serving": 6.1, "server/shmtest": 6.1, "server/metrics": 6.15,
    "server/intake": 6.15,
    "server/grpc/connections": 6.17, "server/grpc": 6.2, "server/http": 6.2, "server/cli": 6.2,
    "server/facades": 6.25,
    "server/host": 6.3,
    "server/commands": 6.4, "server/tools": 6.45, "server": 6.5,
    "bench": 7, "examples": 7, "tests": 8,
}
# The model is one kind of work that a rank does.
ALSO = {"runtime/worker": {"runtime/rank"}}
# Generated code, and the folders that may include it.
GENERATED = {
    "google_rpc.pb.h": {"server/grpc"}, "shoal/": {"server/grpc"},
    "openengine/": {"server/grpc", "server/grpc/connections", "server/commands"},
    "kserve/": {"server/facades"}, "vllm/": {"server/facades"},
}
# The headers of gRPC, and the folders and files that may include them.
GRPC = ("grpcpp/", "grpc/")
GRPC_USERS = {
    "server/grpc", "server/grpc/connections", "server/facades", "tests",
    "server/commands/client_command.cc", "server/commands/client_channel.h",
    "server/commands/client_channel.cc",
}
# Folders whose sources are members of a table, with the header that declares them. If `only` is not
# empty, it matches the names that are members.
TABLES = {
    "kernels/reference": ("kernels/reference/ops.h", ""),
    "kernels/cpu": ("kernels/cpu/ops.h", ""),
    "kernels/cuda": ("kernels/cuda/entries.h", ""),
    "runtime/transport/rungs": ("runtime/transport/rungs/rungs.h", r"\w+_rung"),
    "server/grpc": ("server/grpc/services.h", r"\w+_service"),
    # The man page, JSON and a script for each shell. All are made from the table.
    "server/cli": ("server/cli/command_table.h", r"man_page|help_json|\w+_completion"),
    "server/commands": ("server/commands/commands.h", r"\w+_command"),
}
# Programs, whose main() needs no header.
PROGRAMS = re.compile(r"^(server/main\.cc|server/tools/(\w+_main|static_libc)\.cc|bench/.*|examples/.*|tests/.*)$")
SOURCES = {".h", ".cc", ".cu", ".cuh"}
TEXTS = SOURCES | {".py", ".sh", ".md", ".txt", ".cmake", ".proto", ".yaml", ".service", ".json",
                   ""}
MAX_README_LINES = 28
# Written so that this file does not match itself.
FORBIDDEN = [(re.compile(p), why) for p, why in (
    (r"(?<![\w.])/(?:wor[k]|far[m])/", "a path of one machine"),
    (r"\b(?:TOD[O]|FIXM[E]|XX[X])\b", "a left-over mark"),
)]
# A Cause's `where` and an error's message are for people. Code that looks into them changes what it
# does when a file moves or a sentence is reworded.
DECIDES_BY_TEXT = re.compile(
    r"\bwhere\.(?:starts_with|ends_with|find|rfind|compare|substr)\(|\bwhere\s*[!=]=\s*\""
    r"|\bmessage\(\)\.(?:starts_with|ends_with|find|rfind|compare|substr)\(")
# Files in which threads or ranks share memory by atomics alone. A wrong memory order goes unnoticed
# on x86 and is an error on Arm (docs/arm.md). So wherever one of these files names a memory_order,
# a comment says why that order is enough: on the same line, or at most ARGUED_LINES lines above.
WITHOUT_LOCK = {"runtime/base/thread_pool.cc", "runtime/comm/slot_flags.cc",
                "runtime/comm/slot_flags.h", "runtime/comm/slots/cma_slots.cc"}
ARGUED_LINES = 4
# The C library rounds these differently from version to version and from processor to processor
# (runtime/base/ieee_math.h, exp() of each kernel set). Templates of chats write text, not answers.
# Without std:: a name of OWN_MATH may be our own function, unless the letter of a type follows.
OWN_MATH = "exp|log|pow|sin|cos"
OTHER_MATH = ("exp2|expm1|log2|log10|log1p|tan|sincos|asin|acos|atan|atan2|sinh|cosh|tanh|cbrt|hypot"
              "|erf|erfc|tgamma|lgamma")
LIBRARY_MATH = re.compile(
    rf"(?:\bstd::|(?<![\w:])::|__builtin_)(?:{OWN_MATH}|{OTHER_MATH})[fl]?\("
    rf"|(?<![\w:.>])(?:(?:{OWN_MATH})[fl]|(?:{OTHER_MATH})[fl]?)\(")
COMPUTES = ("kernels/reference/", "kernels/cpu/", "models/", "runtime/base/", "runtime/comm/",
            "runtime/worker/")
# CTest names the file for reports there. A test may set LSAN_OPTIONS, which is read after them.
SANITIZERS_OPTIONS = re.compile(r"\b[AT]SAN_OPTIONS=")
INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]', re.MULTILINE)
NAME = re.compile(r"[a-z0-9_]+\.[a-z]+")
# Names that other programs require.
FIXED_NAMES = {"CMakeLists.txt", "CMakePresets.json", "README.md", "LICENSE", "Dockerfile",
               "NOTICE"}


def layer_of(path: str) -> tuple[str, float] | None:
    """The longest folder of LAYERS that contains `path`, and its number."""
    folders = [f for f in LAYERS if path.startswith(f + "/")]
    folder = max(folders, key=len, default=None)
    return (folder, LAYERS[folder]) if folder else None


def family_of(folder: str) -> str:
    """The folder whose rooms are on one floor.

    It is the topmost folder of LAYERS above `folder` that is on the same floor.
    """
    above = [f for f in LAYERS if (folder + "/").startswith(f + "/")
             and int(LAYERS[f]) == int(LAYERS[folder])]
    return min(above, key=len)


def may_include(here: tuple[str, float], there: tuple[str, float]) -> bool:
    if here[0] == there[0] or there[0] in ALSO.get(here[0], ()):
        return True
    if int(here[1]) != int(there[1]):
        return int(there[1]) < int(here[1])
    return family_of(here[0]) == family_of(there[0]) and there[1] < here[1]


def check_include(path: str, quote: str, target: str, root: Path) -> str | None:
    here, there = layer_of(path), layer_of(target)
    if target.startswith("../") or target.endswith(".cc"):
        return f'includes "{target}": includes are headers, written from the root'
    for prefix, folders in GENERATED.items():
        if target.startswith(prefix):
            if here and here[0] not in folders | {"tests"}:
                return (f'includes generated "{target}", '
                        f'which only {", ".join(sorted(folders))} may see')
            return None
    if target.startswith(GRPC) and here and not {here[0], path} & GRPC_USERS:
        return f'includes <{target}>, which only {", ".join(sorted(GRPC_USERS))} may see'
    if there is None:
        if quote == '"' and not (root / target).exists():
            return (f'includes "{target}", which is not in the tree: '
                    'includes are written from the root')
        return None
    if here and not may_include(here, there):
        return f'includes "{target}": {here[0]} is layer {here[1]}, {there[0]} is layer {there[1]}'
    return None


def check_orders(path: str, text: str) -> list[str]:
    """Memory orders that no comment argues."""
    if path not in WITHOUT_LOCK:
        return []
    lines = text.splitlines()
    return [f"line {number + 1}: no comment in the {ARGUED_LINES} lines above argues this memory order"
            for number, line in enumerate(lines) if "memory_order_" in line.partition("//")[0]
            and not any("//" in near for near in lines[max(number - ARGUED_LINES, 0):number + 1])]


def check_source(path: str, text: str, root: Path) -> list[str]:
    found = check_orders(path, text)
    if path.startswith(COMPUTES) and not path.startswith("models/chat_template/") and \
            (match := LIBRARY_MATH.search(budgets.blank(text))):
        found.append(f"{match[0]!r}: the C library's result depends on its version; use "
                     "runtime/base/ieee_math.h or the kernels' own exp()")
    if path.startswith(("runtime/", "server/")) and (match := DECIDES_BY_TEXT.search(text)):
        found.append(f"{match[0]!r}: an error's place or wording decides; use its code, "
                     "fault or field")
    if path.endswith((".h", ".cuh")) and "#pragma once" not in text:
        found.append("has no #pragma once")
    for quote, target in INCLUDE.findall(text):
        problem = check_include(path, quote, target, root)
        if problem:
            found.append(problem)
    return found


def folder_graph(root: Path, files: list[Path]) -> dict[str, set[str]]:
    """The map from each folder to the folders that its files include."""
    graph: dict[str, set[str]] = {}
    for file in files:
        path = file.relative_to(root).as_posix()
        if file.suffix not in SOURCES or path.startswith("tests/") or "/" not in path:
            continue
        here = path.rpartition("/")[0]
        for _, target in INCLUDE.findall(file.read_text(errors="replace")):
            if (root / target).exists() and "/" in target:
                graph.setdefault(here, set()).add(target.rpartition("/")[0])
    return graph


def find_cycle(graph: dict[str, set[str]]) -> list[str]:
    """A path from a folder back to itself, or [] if there is none."""
    done: set[str] = set()

    def walk(folder: str, way: list[str]) -> list[str]:
        if folder in way:
            return way[way.index(folder):] + [folder]
        if folder in done:
            return []
        for other in sorted(graph.get(folder, ())):
            cycle = walk(other, way + [folder]) if other != folder else []
            if cycle:
                return cycle
        done.add(folder)
        return []

    return next((cycle for folder in sorted(graph) if (cycle := walk(folder, []))), [])


def check_cycles(root: Path, files: list[Path]) -> list[str]:
    """Looks for cycles at several depths, such as runtime/comm with all its rooms as one folder.

    The top level is left out, because runtime/ has layers inside, and models and kernels are
    between them.
    """
    graph = folder_graph(root, files)
    found = []
    for depth in (2, 3, 4):
        def seen(folder: str) -> str:
            return "/".join(folder.split("/")[:depth])
        coarse: dict[str, set[str]] = {}
        for here, others in graph.items():
            coarse.setdefault(seen(here), set()).update(seen(other) for other in others)
        cycle = find_cycle(coarse)
        if cycle:
            found.append(f"folders include each other: {' -> '.join(cycle)}")
            break
    return found


def check_own_header(path: str, root: Path) -> str | None:
    folder, _, name = path.rpartition("/")
    stem = name.rpartition(".")[0]
    if PROGRAMS.match(path) or any((root / folder / f"{stem}{suffix}").exists()
                                   for suffix in (".h", ".cuh")):
        return None
    header, only = TABLES.get(folder, ("", ""))
    if header and (root / header).exists() and (not only or re.fullmatch(only, stem)):
        return None
    return "has no header of its own name, and is no member of a table (TABLES)"


def check_documented(root: Path) -> list[str]:
    """The folders that section 3 of docs/architecture.md lists must be those of the tree and of
    LAYERS.
    """
    document = root / "docs" / "architecture.md"
    if not document.exists():
        return []
    section = re.search(r"^## 3\..*?(?=^## |\Z)", document.read_text(), re.MULTILINE | re.DOTALL)
    block = re.search(r"^```\n(.*?)^```", section[0] if section else "", re.MULTILINE | re.DOTALL)
    if not block:
        return ["docs/architecture.md: section 3 has no list of folders"]
    named = set(re.findall(r"^\s*([\w/]+)/(?=\s)", block[1], re.MULTILINE))
    found = [f"docs/architecture.md: section 3 names {folder}/, which is not in the tree"
             for folder in sorted(named) if not (root / folder).is_dir()]
    found += [f"docs/architecture.md: section 3 does not name {folder}/"
              for folder in LAYERS if (root / folder).is_dir() and folder not in named]
    return found


def check_registered(file: Path, root: Path) -> list[str]:
    """A test file that no CMakeLists.txt names is never compiled, so it would seem to pass always.
    """
    lists = file.parent / "CMakeLists.txt"
    if lists.exists() and re.search(rf"\b{file.stem}\b", lists.read_text()):
        # The CMakeLists.txt itself must be reached: from tests/CMakeLists.txt, or from its parent's
        # add_subdirectory.
        folder = file.parent.relative_to(root / "tests").as_posix()
        top = (root / "tests" / "CMakeLists.txt").read_text()
        parent = file.parent.parent / "CMakeLists.txt"
        if re.search(rf"(^|[\s(]){re.escape(folder)}([\s)]|$)", top, re.MULTILINE):
            return []
        if parent.exists() and f"add_subdirectory({file.parent.name})" in parent.read_text():
            return []
        return [f"is registered in {folder}/CMakeLists.txt, which nothing adds"]
    return ["is a test that its folder's CMakeLists.txt does not register"]


def check_file(file: Path, root: Path) -> list[str]:
    path = file.relative_to(root).as_posix()
    found = []
    if file.suffix in SOURCES | {
            ".py", ".proto"} and file.name not in FIXED_NAMES and not NAME.fullmatch(file.name):
        found.append("is not named in snake_case")
    if file.suffix not in TEXTS or "tests/data/" in path:
        return found
    text = file.read_text(errors="replace")
    if file.suffix in SOURCES:
        found += check_source(path, text, root)
    if file.suffix in {".cc", ".cu"}:
        problem = check_own_header(path, root)
        if problem:
            found.append(problem)
    if file.suffix in SOURCES:
        found += plurals.check_plurals(path, text)
    if file.suffix in SOURCES | {".py"}:
        found += budgets.check_budgets(path, text)
    if path.startswith("tests/") and file.name.endswith(("_test.cc", "_fuzz.cc", "_test.py")):
        found += check_registered(file, root)
    if path.startswith("tests/") and (match := SANITIZERS_OPTIONS.search(text)):
        found.append(f"{match[0]}: overwrites the sanitizer's options that CTest has set")
    if file.name == "README.md" and file.parent != root and "demo" not in path:
        lines = len(text.splitlines())
        if lines > MAX_README_LINES:
            found.append(f"has {lines} lines; a folder's README has at most {MAX_README_LINES}")
    for pattern, why in FORBIDDEN:
        match = pattern.search(text)
        if match:
            line = text.count("\n", 0, match.start()) + 1
            found.append(f"line {line}: {match[0]!r}: {why}")
    return found


def tree(root: Path) -> list[Path]:
    """Every file of the project, without those that git ignores. Works with and without git."""
    skipped = {".git", "build", "__pycache__", ".cache", ".venv", "smollm2"}
    files = []
    for entry in sorted(root.iterdir()):
        if entry.name in skipped or entry.is_symlink():
            continue
        files += tree(entry) if entry.is_dir() else [entry]
    return files


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    files = tree(root)
    violations = [f"{f.relative_to(root)}: {problem}" for f in files
                  for problem in check_file(f, root)]
    for folder in LAYERS:
        if not (root / folder / "README.md").exists() and (root / folder).is_dir():
            violations.append(f"{folder}: has no README.md")
    violations += check_cycles(root, files) + check_documented(root) + \
                               cmake_targets.check_libraries(root)
    texts = {f.relative_to(root).as_posix(): f.read_text(errors="replace")
             for f in files if f.suffix in SOURCES}
    violations += budgets.stale_exceptions(texts) + plurals.stale_plurals(texts)
    violations += budgets.check_rooms(texts)
    print("\n".join(violations) if violations else f"{len(files)} files keep the rules")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
