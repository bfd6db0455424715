"""What the tree promises and no compiler checks: structure.py [ROOT]. Prints every violation, exits 1 if there is one.

Rules: includes point down the layers (docs/architecture.md, section 3) and are written from the root; headers have
#pragma once and nothing includes a .cc; every *_test.cc and *_fuzz.cc is named in its folder's CMakeLists.txt; names are
snake_case; folder READMEs have at most 20 lines; no machine's paths, no left-over marks.
"""
import re
import sys
from pathlib import Path

# The layers. A folder may include itself, every folder with a smaller number, and what ALSO names.
LAYERS = {
    "runtime/base": 1, "runtime/memory": 2, "runtime/device": 2, "kernels": 2, "kernels/cuda": 3, "runtime/comm": 3, "runtime/control": 3,
    "runtime/transport": 4, "runtime/engine": 4, "models": 4, "runtime/worker": 5, "runtime/supervisor": 5, "server": 6,
    "bench": 7, "tests": 8,
}
# Generated code, by the one folder that may see it.
GENERATED = {"control.pb.h": {"runtime/control"}, "google_rpc.pb.h": {"server"}, "openengine/": {"server"}, "shoal/": {"server"}}
SOURCES = {".h", ".cc", ".cu", ".cuh"}
TEXTS = SOURCES | {".py", ".sh", ".md", ".txt", ".cmake", ".proto", ".yaml", ".service", ".json", ""}
MAX_README_LINES = 20
# Spelled so that this file does not match itself.
FORBIDDEN = [(re.compile(p), why) for p, why in (
    (r"(?<![\w.])/(?:wor[k]|far[m])/", "a path of one machine"),
    (r"\b(?:TOD[O]|FIXM[E]|XX[X])\b", "a left-over mark"),
)]
INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]', re.MULTILINE)
NAME = re.compile(r"[a-z0-9_]+\.[a-z]+")
# Names that other programs fix.
FIXED_NAMES = {"CMakeLists.txt", "CMakePresets.json", "README.md", "LICENSE", "Dockerfile", "NOTICE"}


def layer_of(path: str) -> tuple[str, int] | None:
    """The longest folder of LAYERS that holds `path`, and its number."""
    folders = [f for f in LAYERS if path.startswith(f + "/")]
    folder = max(folders, key=len, default=None)
    return (folder, LAYERS[folder]) if folder else None


def check_include(path: str, quote: str, target: str, root: Path) -> str | None:
    here, there = layer_of(path), layer_of(target)
    if target.startswith("../") or target.endswith(".cc"):
        return f'includes "{target}": includes are headers, written from the root'
    for prefix, folders in GENERATED.items():
        if target.startswith(prefix):
            if here and here[0] not in folders | {"tests"}:
                return f'includes generated "{target}", which only {", ".join(sorted(folders))} may see'
            return None
    if there is None:
        if quote == '"' and not (root / target).exists():
            return f'includes "{target}", which is not in the tree: includes are written from the root'
        return None
    if here and here[0] != there[0] and there[1] >= here[1]:
        return f'includes "{target}": {here[0]} is layer {here[1]}, {there[0]} is layer {there[1]}'
    return None


def check_source(path: str, text: str, root: Path) -> list[str]:
    found = []
    if path.endswith((".h", ".cuh")) and "#pragma once" not in text:
        found.append("has no #pragma once")
    for quote, target in INCLUDE.findall(text):
        problem = check_include(path, quote, target, root)
        if problem:
            found.append(problem)
    return found


def check_registered(file: Path, root: Path) -> list[str]:
    """A test file that no CMakeLists.txt names compiles nowhere and passes always."""
    lists = file.parent / "CMakeLists.txt"
    if lists.exists() and re.search(rf"\b{file.stem}\b", lists.read_text()):
        # The list itself must be reached: from tests/CMakeLists.txt, or from its parent's add_subdirectory.
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
    if file.suffix in SOURCES | {".py", ".proto"} and file.name not in FIXED_NAMES and not NAME.fullmatch(file.name):
        found.append("is not named in snake_case")
    if file.suffix not in TEXTS or "tests/data/" in path:
        return found
    text = file.read_text(errors="replace")
    if file.suffix in SOURCES:
        found += check_source(path, text, root)
    if path.startswith("tests/") and file.name.endswith(("_test.cc", "_fuzz.cc", "_test.py")):
        found += check_registered(file, root)
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
    """Every file of the project: not what git ignores, whether or not git is there."""
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
    violations = [f"{f.relative_to(root)}: {problem}" for f in files for problem in check_file(f, root)]
    for folder in LAYERS:
        if not (root / folder / "README.md").exists() and (root / folder).is_dir():
            violations.append(f"{folder}: has no README.md")
    print("\n".join(violations) if violations else f"{len(files)} files keep the rules")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
