"""check_table.py is green for what the table has and red for what it lacks, and says what to enter:
check_table_test.py COMPILER. The libraries are stand-ins, which this test compiles."""
import contextlib
import io
import json
import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import check_table
import stand_in
from stand_in import Shape

COMPILER = sys.argv.pop() if len(sys.argv) > 1 else "g++"
# A table with two rows for one minor version, as the program's has.
TABLE = {"nccl_releases": [
    {"minor": 29, "last_patch": 3, "pool_bytes": 1000, "pool_file_bytes": 1000},
    {"minor": 29, "last_patch": 7, "pool_bytes": 2000, "pool_file_bytes": 2004},
    {"minor": 30, "last_patch": 7, "pool_bytes": 3000, "pool_file_bytes": 3004},
]}


class Libraries(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def library(self, version: str, size: int) -> Path:
        return stand_in.build(COMPILER, self.folder,
                              Shape(create=str(size), version=f"{version}+cuda13.0"))

    def run_main(self, *arguments) -> tuple[int, str]:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            code = check_table.main([str(one) for one in arguments])
        return code, printed.getvalue()


class Check(Libraries):
    def against(self, table: dict, *libraries: Path) -> tuple[int, str]:
        file = self.folder / "table.json"
        file.write_text(json.dumps(table))
        return self.run_main("--table", file, *libraries)

    def test_what_the_table_has_is_green(self):
        for version, size in (("2.29.7", 2000), ("2.29.4", 2000), ("2.30.3", 3000)):
            code, text = self.against(TABLE, self.library(version, size))
            self.assertEqual((code, text.count("RED")), (0, 0), text)
            self.assertIn(f"NCCL {version} for CUDA 13: a pool of {size} B in a file of {size + 4} B",
                          text)

    def test_what_the_table_lacks_is_red_with_the_numbers_to_enter(self):
        for version, words in (("2.32.3", "minor 32, last patch 3"),
                               ("2.30.8", "minor 30, last patch 8")):
            code, text = self.against(TABLE, self.library(version, 68420264))
            self.assertEqual(code, 1)
            self.assertIn(f"RED: the table ends at 2.30.7 and lacks NCCL {version}; enter in "
                          f"{check_table.TABLE_SOURCE}: {words}, a pool of 68420264 B in a file of "
                          "68420268 B", text)

    def test_another_size_is_red(self):
        for version, size in (("2.29.7", 2008), ("2.29.3", 1000)):  # the second has no count
            code, text = self.against(TABLE, self.library(version, size))
            self.assertEqual(code, 1)
            self.assertIn(f"for NCCL {version}; correct it in", text)
            self.assertIn(f"a pool of {size} B in a file of {size + 4} B", text)

    def test_one_red_library_among_others(self):
        good = self.library("2.30.7", 3000)
        bad = self.folder / "empty.so"
        bad.write_bytes(b"")
        code, text = self.against(TABLE, bad, self.folder / "absent.so", good)
        self.assertEqual((code, text.count("RED")), (1, 2))
        self.assertIn(f"{good}: NCCL 2.30.7", text)

    def test_no_library_is_no_verdict(self):
        with mock.patch.object(check_table, "libraries_here", return_value=[]):
            code, text = self.run_main()
        self.assertEqual(code, check_table.SKIPPED)
        self.assertIn("skipped: there is no libnccl.so.2 here", text)

    def test_the_source_that_is_to_be_changed_is_there(self):
        self.assertTrue((check_table.ROOT / check_table.TABLE_SOURCE).is_file())


@unittest.skipUnless("SHOAL" in os.environ, "needs the program")
class Program(Libraries):
    """The table of the program itself, with sizes that were read out of NVIDIA's libraries."""

    def test_it_has_the_releases_that_were_read(self):
        for version, size in (("2.19.3", 4194656), ("2.28.9", 34210176), ("2.31.2", 34210184),
                              ("2.32.3", 68420264)):
            code, text = self.run_main(self.library(version, size))
            self.assertEqual(code, 0, text)

    def test_a_release_that_nobody_has_entered_is_red(self):
        code, text = self.run_main(self.library("2.99.1", 68420264))
        self.assertEqual(code, 1)
        self.assertIn("lacks NCCL 2.99.1", text)


if __name__ == "__main__":
    unittest.main()
