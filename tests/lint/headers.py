"""Every header must compile alone: headers.py BUILD_DIR [ROOT]. Prints what does not compile, and
exits with 1 if there is any.

A header that relies on the includes of its includer breaks the next file that includes it. If a
source includes the header before everything else, scripts/tidy shows that the header compiles
alone, because clang-tidy reads each source of the libraries alone. The other headers are compiled
here. Flags come from BUILD_DIR's compile_commands.json. A result is kept under the hash of
everything that was read, until one of those files changes. With SHOAL_TEST_BREADTH=pairs it compiles
the third of them whose day it is (tests/breadth.h).
"""
import hashlib
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDERS = ("runtime", "kernels", "models", "server", "bench", "tests")
TIDY_FOLDERS = ("runtime", "kernels", "models", "server")  # as in scripts/tidy
# Headers of vectors that other processors have.
OTHER_VECTORS = ({"kernels/cpu/vec_neon.h"} if platform.machine() == "x86_64" else
                 {"kernels/cpu/vec_x86.h", "kernels/cpu/vec_avx2.h", "kernels/cpu/vec_avx512.h",
                  "tests/kernels/trapped_dot_product.h"})
# The parts of a command that say where headers are and which language it is. The rest
# (optimisation, output) does not matter.
KEPT = re.compile(r"-(I|isystem|D|std=|f|m|pthread)")
TWO_WORDS = {"-I", "-isystem", "-D"}


def flags_by_folder(build: Path, root: Path) -> dict[str, list[str]]:
    """The map from the folder of a source file to the flags that matter for its headers.

    "" is any other folder, with the longest list of flags.
    """
    flags: dict[str, list[str]] = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        file = Path(entry["file"])
        if file.name.startswith("unity_"):
            # FOLDER/CMakeFiles/TARGET.dir/Unity/unity_0_cxx.cxx of the build
            folder = str(root / file.parents[3].relative_to(build))
        elif file.suffix == ".cc" and not file.is_relative_to(build):
            folder = str(file.parent)
        else:
            continue
        kept, words = [], iter(shlex.split(entry["command"]))
        for word in words:
            if word in TWO_WORDS:
                kept += [word, next(words)]
            elif KEPT.match(word) and not word.startswith("-fsanitize"):
                kept.append(word)
        compiler = "g++" if "clang" not in entry["command"].split()[0] else "clang++-14"
        # If a folder has several targets, use the one with the most flags.
        flags[folder] = max(flags.get(folder, []), [compiler, *kept], key=len)
        flags[""] = max(flags.get("", []), [compiler, *kept], key=len)
    return flags


def shown_by_tidy(root: Path) -> set[str]:
    """Headers that are the first include of a source that scripts/tidy checks."""
    shown = set()
    for folder in TIDY_FOLDERS:
        for file in (root / folder).rglob("*.cc"):
            # The first include of either kind. A definition before it would not count, because the
            # header could depend on it.
            first = re.search(r'^\s*#\s*(include\s+)?(.*)$', file.read_text(), re.MULTILINE)
            if first and first[1] and first[2].startswith('"'):
                shown.add(first[2].strip('"'))
    return shown


def flags_for(header: Path, flags: dict[str, list[str]]) -> list[str]:
    for folder in header.parents:
        if str(folder) in flags:
            return flags[str(folder)]
    return flags[""]


def digest(command: list[str], files: list[str]) -> str:
    sum_ = hashlib.sha256(" ".join(command).encode())
    for name in files:
        sum_.update(Path(name).read_bytes() if os.path.exists(name) else b"absent")
    return sum_.hexdigest()


def compile_alone(header: Path, root: Path, flags: list[str], cache: Path) -> str:
    """The compiler's error text, or "".

    The header is included twice, to check that #pragma once is there and works.
    """
    name = header.relative_to(root).as_posix()
    record = cache / (name.replace("/", "_") + ".json")
    # Instruction sets are chosen per object, so a header must be readable with any of them.
    command = [*flags, "-Wall", "-Wextra", "-fsyntax-only", "-x", "c++", "-MMD", "-MF",
               str(record) + ".d", "-"]
    if record.exists():
        known = json.loads(record.read_text())
        if known["digest"] == digest(command, known["files"]):
            return ""
    text = f'#include "{name}"\n#include "{name}"\n'
    result = subprocess.run(command, input=text, capture_output=True, text=True, cwd=root)
    if result.returncode != 0:
        return f"{name} does not compile alone:\n{result.stderr[:1500]}"
    needs = Path(str(record) + ".d").read_text().replace("\\\n", " ").split(":", 1)[1].split()
    files = [f if os.path.isabs(f) else str(root / f) for f in needs if f != "-"]
    record.write_text(json.dumps({"digest": digest(command, files), "files": files}))
    return ""


def main() -> int:
    build = Path(sys.argv[1]).resolve()
    root = Path(sys.argv[2] if len(sys.argv) > 2 else ".").resolve()
    flags = flags_by_folder(build, root)
    cache = build / "lint_headers"
    cache.mkdir(exist_ok=True)
    headers = [h for folder in FOLDERS for h in sorted((root / folder).rglob("*.h"))]
    shown = shown_by_tidy(root)
    # Headers of the CUDA module that use CUDA's types compile with nvcc only.
    headers = [h for h in headers if "cuda_runtime" not in h.read_text()]
    total = len(headers)
    headers = [h for h in headers
               if h.relative_to(root).as_posix() not in shown | OTHER_VECTORS]
    untried = []
    if os.environ.get("SHOAL_TEST_BREADTH") == "pairs":
        day = int(os.environ.get("SHOAL_TEST_DAY", "0"))
        untried = [h for number, h in enumerate(headers) if number % 3 != day % 3]
        headers = [h for h in headers if h not in untried]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        complaints = list(filter(
            None, pool.map(lambda h: compile_alone(h, root, flags_for(h, flags), cache), headers)))
    print("\n".join(complaints) if complaints else
          f"{len(headers)} of {total} headers compile alone; {len(untried)} are left to another day, "
          f"and the rest to clang-tidy")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
