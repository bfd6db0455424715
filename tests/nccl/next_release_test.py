"""A table that ends at 2.30 lacks NVIDIA's own newer libraries, and the size to enter is the one in their
machine code. It tries every libnccl.so.2 that is here. Exit code 77: none of them is newer than that."""
import contextlib
import io
import json
import re
import sys
import tempfile
import unittest
from pathlib import Path

import check_table
from elf_file import Unreadable
from pool_size import read_pool

LIBRARIES = check_table.libraries_here()
LAST_MINOR = 30
# At the calls in the machine code, and sizeof(ncclProxyOpsPool) in the debugging information.
READ_BY_HAND = {"2.31.2": 34210184, "2.32.3": 68420264}


def may_be_newer(library: Path) -> bool:
    """Whether it is newer than the last row that is kept, or cannot be read."""
    try:
        return read_pool(library).version[1] > LAST_MINOR
    except (Unreadable, OSError):
        return True


class NextRelease(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        rows = json.loads(check_table.table_of_program())["nccl_releases"]
        self.table = Path(folder.name) / "table.json"
        self.table.write_text(json.dumps(
            {"nccl_releases": [row for row in rows if row["minor"] <= LAST_MINOR]}))

    def test_what_the_table_lacks_is_red_with_the_size_in_the_library(self):
        for library in LIBRARIES:
            with self.subTest(library=library):
                with contextlib.redirect_stdout(io.StringIO()) as printed:
                    code = check_table.main(["--table", str(self.table), str(library)])
                text = printed.getvalue()
                found = re.search(r": NCCL (\S+) for CUDA \d+: a pool of (\d+) B", text)
                self.assertIsNotNone(found, text)
                version, size = found.groups()
                _, minor, patch = version.split(".")
                self.assertEqual(int(size), READ_BY_HAND.get(version, int(size)))
                newer = int(minor) > LAST_MINOR
                self.assertEqual(code, 1 if newer else 0, text)
                red = (f"RED: the table ends at 2.30.7 and lacks NCCL {version}; enter in "
                       f"{check_table.TABLE_SOURCE}: minor {minor}, last patch {patch}, a pool of "
                       f"{size} B in a file of {int(size) + 4} B")
                self.assertEqual(red in text, newer, text)


if __name__ == "__main__":
    if not any(map(may_be_newer, LIBRARIES)):
        print(f"skipped: no libnccl.so.2 here is newer than {check_table.MAJOR}.{LAST_MINOR}; "
              "scripts/check-nccl --download gets the newest")
        sys.exit(check_table.SKIPPED)
    unittest.main()
