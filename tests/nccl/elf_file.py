"""Reads a shared library for x86-64 as a file: its sections, its strings, and where its functions
begin. Nothing of it is loaded or run, and no symbols are needed."""
import bisect
import dataclasses
import re
import struct
from pathlib import Path


class Unreadable(Exception):
    """The file lacks something that the reader needs. The text says what is missing."""


@dataclasses.dataclass(frozen=True)
class Section:
    name: str
    address: int
    data: bytes

    @property
    def end(self) -> int:
        return self.address + len(self.data)


NOBITS = 8  # sh_type of a section that takes no place in the file
ALLOCATED = 2  # sh_flags: is in memory when the library is loaded
X86_64 = 62  # e_machine
# Pointer encodings of .eh_frame_hdr (Linux Standard Base, 10.6): the table of functions has pairs
# of 4-byte numbers, counted from the section's own address.
COUNT_IS_4_BYTES, FROM_SECTION_SIGNED_4_BYTES = 0x03, 0x3B


class ElfFile:
    def __init__(self, path: Path):
        self.path = path
        # The machine code for devices is most of such a library, so that only parts are read.
        with path.open("rb") as file:
            self.sections = {section.name: section for section in read_sections(file)}
        self.function_starts = read_function_starts(self.section(".eh_frame_hdr"))

    def section(self, name: str) -> Section:
        if name not in self.sections:
            raise Unreadable(f"it has no section {name}")
        return self.sections[name]

    def function_of(self, address: int) -> tuple[int, int]:
        """The first address of the function that contains this one, and that of the next function."""
        after = bisect.bisect_right(self.function_starts, address)
        if after == 0:
            raise Unreadable(f"no function begins before {address:#x}")
        end = self.section(".text").end
        if after < len(self.function_starts):
            end = min(end, self.function_starts[after])
        return self.function_starts[after - 1], end

    def string_at(self, address: int) -> str | None:
        """The text from here to its zero; None if this is no read-only data."""
        rodata = self.section(".rodata")
        if not rodata.address <= address < rodata.end:
            return None
        text, _, _ = rodata.data[address - rodata.address:].partition(b"\0")
        return text.decode(errors="replace")

    def find_strings(self, pattern: bytes) -> list[tuple[int, re.Match]]:
        """Address and match of every place in the read-only data."""
        rodata = self.section(".rodata")
        return [(rodata.address + match.start(), match)
                for match in re.finditer(pattern, rodata.data)]


def read_sections(file) -> list[Section]:
    """The sections that may be needed: code, read-only data, and the table of functions."""
    head = file.read(64)
    if len(head) < 64 or head[:4] != b"\x7fELF":
        raise Unreadable("it is no ELF file")
    machine, = struct.unpack_from("<H", head, 18)
    if head[4:6] != b"\x02\x01" or machine != X86_64:
        raise Unreadable("it is not for x86-64")
    table, = struct.unpack_from("<Q", head, 40)
    entry_size, count, names_index = struct.unpack_from("<HHH", head, 58)
    rows = [struct.unpack("<IIQQQQIIQQ", at(file, table + i * entry_size, 64))
            for i in range(count)]
    if names_index >= count:
        raise Unreadable("it has no names of sections")
    names = at(file, rows[names_index][4], rows[names_index][5])
    sections = []
    for name_at, kind, flags, address, offset, size, *_ in rows:
        name = names[name_at:].partition(b"\0")[0].decode(errors="replace")
        if name in (".text", ".rodata", ".eh_frame_hdr") and kind != NOBITS and flags & ALLOCATED:
            sections.append(Section(name, address, at(file, offset, size)))
    return sections


def at(file, offset: int, size: int) -> bytes:
    file.seek(offset)
    data = file.read(size)
    if len(data) != size:
        raise Unreadable("the file ends too early")
    return data


def read_function_starts(header: Section) -> list[int]:
    """The addresses of all functions, in order, from the table by which exceptions find them."""
    version, _, count_encoding, table_encoding = header.data[:4]
    if (version, count_encoding, table_encoding) != \
            (1, COUNT_IS_4_BYTES, FROM_SECTION_SIGNED_4_BYTES):
        raise Unreadable("the table of functions in .eh_frame_hdr has an unknown form")
    count, = struct.unpack_from("<I", header.data, 8)
    return sorted(header.address + start
                  for start, _ in struct.iter_unpack("<ii", header.data[12:12 + 8 * count]))
