"""Every path that CONTRIBUTING.md names must exist: contributing_paths.py ROOT. Prints those that
do not, and exits with 1 if there are any.

A path is a text in backticks that has a slash, and ends in a slash or an extension. NAME in it
means any name.
"""
import re
import sys
from pathlib import Path

PATH = re.compile(r"`((?:[\w.-]+/)+(?:[\w-]+\.[\w.]+)?)`")


def main() -> int:
    root = Path(sys.argv[1])
    paths = sorted(set(PATH.findall((root / "CONTRIBUTING.md").read_text())))
    if len(paths) < 30:
        print(f"CONTRIBUTING.md names only {len(paths)} paths: is it read rightly?")
        return 1
    missing = [path for path in paths if not any(root.glob(path.rstrip("/").replace("NAME", "*")))]
    for path in missing:
        print(f"CONTRIBUTING.md names {path}, which does not exist")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
