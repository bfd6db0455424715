"""pool_size.py reads the size of the pool out of code, and nothing that only looks like it:
pool_size_test.py COMPILER. The libraries are stand-ins, which this test compiles."""
import sys
import tempfile
import unittest
from pathlib import Path

import stand_in
from elf_file import Unreadable
from pool_size import Pool, read_pool
from stand_in import Shape

COMPILER = sys.argv.pop() if len(sys.argv) > 1 else "g++"


class Libraries(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def read(self, shape: Shape, *flags: str) -> Pool:
        return read_pool(stand_in.build(COMPILER, self.folder, shape, *flags))

    def assert_unreadable(self, why: str, shape: Shape, *flags: str):
        with self.assertRaisesRegex(Unreadable, why):
            self.read(shape, *flags)


class Found(Libraries):
    def test_the_size_and_the_file_of_every_signature(self):
        for size in ("12345", "0x7654321"):
            for names_path_size, wrapped in ((False, False), (True, False), (True, True)):
                shape = Shape(create=size, names_path_size=names_path_size, wrapped=wrapped)
                with self.subTest(shape=shape):
                    self.assertEqual(self.read(shape),
                                     Pool((2, 99, 1), 13, int(size, 0), int(size, 0) + 4))

    def test_a_stripped_library(self):
        self.assertEqual(self.read(Shape(wrapped=True), "-s").pool_bytes, 12345)

    def test_files_that_ftruncate_makes_long_and_that_have_no_count(self):
        shape = Shape(lengthen="ftruncate(fd, length)", count_bytes=0, names_path_size=False)
        self.assertEqual(self.read(shape), Pool((2, 99, 1), 13, 12345, 12345))

    def test_the_version_is_the_librarys_own(self):
        pool = self.read(Shape(version="2.27.10+cuda12.9"))
        self.assertEqual((pool.version, pool.cuda), ((2, 27, 10), 12))

    def test_other_sources_may_have_any_sizes(self):
        for other in ("99999", "state->size", "12345"):
            self.assertEqual(self.read(Shape(other=other)).pool_bytes, 12345)


class Unclear(Libraries):
    """Where the size does not follow from the code there is an error, and never a guess."""

    def test_a_size_of_run_time(self):
        self.assert_unreadable("0 constant sizes", Shape(create="state->size"))

    def test_a_size_that_depends_on_the_way(self):
        self.assert_unreadable("0 constant sizes", Shape(create="(state->wide ? 8000 : 4000)"))

    def test_two_sizes(self):
        self.assert_unreadable("2 constant sizes", Shape(attach="54321"))

    def test_a_variable_that_somebody_else_may_change(self):
        self.assert_unreadable("only one call", Shape(change='sscanf(suffix, "%zu", &size)'))

    def test_nobody_attaches(self):
        self.assert_unreadable("only one call", Shape(attach="state->size"))

    def test_no_segment_of_proxy_cc(self):
        self.assert_unreadable("0 constant sizes", Shape(proxy_source="gin_proxy.cc"))

    def test_no_function_that_creates_segments(self):
        self.assert_unreadable("0 functions or lengths", Shape(lengthen="lseek(fd, length, 0)"))

    def test_a_length_that_is_not_the_size(self):
        self.assert_unreadable("not an argument", Shape(lengthen="ftruncate(fd, length * 3)"))

    def test_no_version(self):
        self.assert_unreadable("0 versions", Shape(version="unknown"))


class NoLibrary(Libraries):
    def test_what_is_no_library_for_this_processor(self):
        library = stand_in.build(COMPILER, self.folder, Shape())
        whole = library.read_bytes()
        for content, why in ((b"", "no ELF file"), (b"#!/bin/sh\n" * 10, "no ELF file"),
                             (whole[:18] + b"\xb7\0" + whole[20:], "not for x86-64"),
                             (whole[:len(whole) // 2], "ends too early")):
            library.write_bytes(content)
            with self.assertRaisesRegex(Unreadable, why):
                read_pool(library)


if __name__ == "__main__":
    unittest.main()
