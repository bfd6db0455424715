"""Compares the program's table of NCCL releases with libraries: check_table.py [--table FILE] [LIBRARY...]

The table is what `shoal doctor --needs --json` prints, or a file of this form. The program is $SHOAL,
or build/release/shoal. Without a LIBRARY: every libnccl.so.2 that is here, which are those that
scripts/check-nccl has downloaded, those that the loader knows, and those in the folders where NCCL
and CUDA are usually installed. None is downloaded.

Exit code 0: the table has them all, with their sizes. 1: it lacks one or differs from one, and the
numbers to enter are printed; or one could not be read. 77: there is no library.
"""
import argparse
import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from elf_file import Unreadable
from pool_size import Pool, read_pool

ROOT = Path(__file__).resolve().parents[2]
TABLE_SOURCE = "runtime/transport/needs/nccl_releases.cc"
USUAL_PLACES = ("usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/local/lib", "usr/local/cuda*/lib*",
                "usr/local/cuda*/targets/*/lib")
MAJOR = 2  # of every release in the table
SKIPPED = 77  # CTest counts this exit code as skipped


@dataclasses.dataclass(frozen=True)
class Release:
    """A row of the table. It holds from the row before it up to this patch of the minor version."""
    minor: int
    last_patch: int
    pool_bytes: int
    pool_file_bytes: int

    @property
    def name(self) -> str:
        return f"{MAJOR}.{self.minor}.{self.last_patch}"


def read_table(text: str) -> list[Release]:
    fields = [field.name for field in dataclasses.fields(Release)]
    return [Release(*(int(row[field]) for field in fields))
            for row in json.loads(text)["nccl_releases"]]


def table_of_program() -> str:
    program = os.environ.get("SHOAL", str(ROOT / "build" / "release" / "shoal"))
    return subprocess.run([program, "doctor", "--needs", "--json"], check=True, text=True,
                          stdout=subprocess.PIPE).stdout


def libraries_here() -> list[Path]:
    """Every libnccl.so.2 of this machine, each once."""
    known = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout
    found = [*(ROOT / "build" / "nccl").glob("*/libnccl.so.2"),
             *map(Path, re.findall(r"libnccl\.so\.2 \(.*\) => (\S+)", known))]
    for place in USUAL_PLACES:
        found += Path("/").glob(f"{place}/libnccl.so.2")
    return sorted({path.resolve() for path in found if path.exists()})


def row_of(table: list[Release], version: tuple[int, int, int]) -> Release | None:
    major, minor, patch = version
    rows = [row for row in table
            if major == MAJOR and row.minor == minor and row.last_patch >= patch]
    return min(rows, key=lambda row: row.last_patch, default=None)


def complaint_about(pool: Pool, table: list[Release]) -> str | None:
    """What the table lacks for this library, with the numbers to enter."""
    name = ".".join(map(str, pool.version))
    to_enter = f"a pool of {pool.pool_bytes} B in a file of {pool.file_bytes} B"
    row = row_of(table, pool.version)
    if row is None:
        newest = max(table, key=lambda one: (one.minor, one.last_patch))
        return (f"the table ends at {newest.name} and lacks NCCL {name}; enter in {TABLE_SOURCE}: "
                f"minor {pool.version[1]}, last patch {pool.version[2]}, {to_enter}")
    if (row.pool_bytes, row.pool_file_bytes) != (pool.pool_bytes, pool.file_bytes):
        return (f"the table says a pool of {row.pool_bytes} B in a file of {row.pool_file_bytes} B "
                f"for NCCL {name}; correct it in {TABLE_SOURCE}: {to_enter}")
    return None


def check(path: Path, table: list[Release]) -> bool:
    """Prints what was found out about a library. Returns whether the table has it."""
    try:
        pool = read_pool(path)
    except (Unreadable, OSError) as error:
        print(f"RED: {path}: cannot be read: {error}")
        return False
    name = ".".join(map(str, pool.version))
    print(f"{path}: NCCL {name} for CUDA {pool.cuda}: a pool of {pool.pool_bytes} B in a file of "
          f"{pool.file_bytes} B")
    complaint = complaint_about(pool, table)
    if complaint:
        print(f"RED: {complaint}")
    return complaint is None


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--table", type=Path, metavar="FILE")
    parser.add_argument("libraries", type=Path, nargs="*", metavar="LIBRARY")
    options = parser.parse_args(arguments)
    libraries = options.libraries or libraries_here()
    if not libraries:
        print("skipped: there is no libnccl.so.2 here; scripts/check-nccl --download gets the newest")
        return SKIPPED
    table = read_table(options.table.read_text() if options.table else table_of_program())
    return 0 if all([check(path, table) for path in libraries]) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
