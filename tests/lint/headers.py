"""Every header compiles alone: headers.py BUILD_DIR [ROOT]. Prints what does not compile, exits 1 if there is one.

A header that leans on its includer's includes breaks whoever includes it next. Flags come from BUILD_DIR's
compile_commands.json; a result is kept, by the hash of everything that was read, until one of those files changes.
"""
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDERS = ("runtime", "kernels", "models", "server", "bench", "tests")
# Of a command: what says where headers are and which language it is. The rest (optimisation, output) does not matter.
KEPT = re.compile(r"-(I|isystem|D|std=|f|m|pthread)")
TWO_WORDS = {"-I", "-isystem", "-D"}


def flags_by_folder(build: Path) -> dict[str, list[str]]:
    """Folder of a source file -> the flags that matter for its headers; "" -> of any file (the last)."""
    flags: dict[str, list[str]] = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if not entry["file"].endswith(".cc") or str(build) in entry["file"]:
            continue
        kept, words = [], iter(shlex.split(entry["command"]))
        for word in words:
            if word in TWO_WORDS:
                kept += [word, next(words)]
            elif KEPT.match(word) and not word.startswith("-fsanitize"):
                kept.append(word)
        compiler = "g++" if "clang" not in entry["command"].split()[0] else "clang++-14"
        folder = str(Path(entry["file"]).parent)
        # Of several targets in one folder, the one that sees most.
        flags[folder] = max(flags.get(folder, []), [compiler, *kept], key=len)
        flags[""] = max(flags.get("", []), [compiler, *kept], key=len)
    return flags


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
    """The compiler's complaint, or nothing. Included twice: #pragma once is there and works."""
    name = header.relative_to(root).as_posix()
    record = cache / (name.replace("/", "_") + ".json")
    # Instruction sets are chosen per object; a header must be readable in any of them.
    command = [*flags, "-Wall", "-Wextra", "-fsyntax-only", "-x", "c++", "-MMD", "-MF", str(record) + ".d", "-"]
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
    flags = flags_by_folder(build)
    cache = build / "lint_headers"
    cache.mkdir(exist_ok=True)
    headers = [h for folder in FOLDERS for h in sorted((root / folder).rglob("*.h"))]
    # Headers of the CUDA module that name CUDA's types compile with nvcc alone.
    headers = [h for h in headers if "cuda_runtime" not in h.read_text()]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        complaints = list(filter(None, pool.map(lambda h: compile_alone(h, root, flags_for(h, flags), cache), headers)))
    print("\n".join(complaints) if complaints else f"{len(headers)} headers compile alone")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
