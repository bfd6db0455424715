"""What the sanitizers of a build have reported. Each test of a sanitized build, and every process
that it starts, writes reports to files of the test's name (log_path in cmake/shoal_targets.cmake):
what a process printed may be lost or look the same, and an exit code may be swallowed.
"""
import contextlib
import re
import shutil
from pathlib import Path

SHOWN_LINES = 60
# What says nothing of the program: the end of a sanitizer that finds no memory for itself, as in a
# child whose memory a test has limited, and LeakSanitizer's line about a thread that ended while it
# looked at the stacks, without whose registers it goes on.
NO_REPORT = re.compile(r"[=\s]*(ERROR: Failed to mmap\s*"
                       r"|(==\d+==Unable to get registers from thread \d+\.\s*)+)")


def folder_of(build: Path) -> Path:
    return build / "reports"


def clear(build: Path):
    """Makes the folder empty. Everybody may write there, because some tests become other users."""
    shutil.rmtree(folder_of(build), ignore_errors=True)
    folder_of(build).mkdir()
    folder_of(build).chmod(0o1777)


def first_lines(file: Path) -> str:
    """Empty: the file is no report."""
    with contextlib.suppress(OSError), open(file, errors="replace") as opened:
        text = "".join(line for _, line in zip(range(SHOWN_LINES), opened))
        return "" if NO_REPORT.fullmatch(text) else f"a sanitizer's report, {file}:\n{text}"
    return f"a sanitizer's report that cannot be read, {file}\n"


def collect(build: Path) -> dict[str, str]:
    """The first lines of all reports by the name of the test, in which a slash is two underscores
    and the number of the process follows."""
    found: dict[str, str] = {}
    for file in sorted(folder_of(build).iterdir()):
        if text := first_lines(file):
            test = file.name.rpartition(".")[0].replace("__", "/")
            found[test] = found.get(test, "") + text
    return found
