"""Reads out of a libnccl.so.2 how large the proxy-ops pool is, by the code that creates it.

NCCL's pool is a shared memory segment (src/proxy.cc), and all segments are created by one function,
ncclShmOpen. It is the function that refers to the text of its own warning and hands one of its
arguments to fallocate or ftruncate: this argument is the size. A function that passes its own
argument on is followed to its callers. What is left are calls that pass a constant. The pool is the
only one that proxy.cc passes, once to create it and once to attach to that of another rank.

No number is looked for. What does not have this shape is an error.
"""
import dataclasses
import functools
import re
from pathlib import Path

import machine_code
from elf_file import ElfFile, Unreadable
from machine_code import ARGUMENTS, Argument, Constant, Instruction, State

WARNING = rb"Error while %s shared memory segment "
VERSION = rb"NCCL version (\d+)\.(\d+)\.(\d+)\+cuda(\d+)\.\d+\0"
PROXY_SOURCE = re.compile(r"(.*/)?proxy\.cc")
# Which argument is the length of the file, by the name of the function that makes it so long.
LENGTH_ARGUMENT = {"fallocate": 3, "posix_fallocate": 2, "ftruncate": 1}


@dataclasses.dataclass(frozen=True)
class Pool:
    version: tuple[int, int, int]
    cuda: int  # major version
    pool_bytes: int  # as NCCL asks for it, and prints it
    file_bytes: int  # the file in /dev/shm: with the count of its users, if there is one


@dataclasses.dataclass(frozen=True)
class Maker:
    """A function that creates a segment, whose size in bytes is one of its arguments."""
    start: int
    argument: int
    plus: int = 0  # what it adds to the argument


@dataclasses.dataclass(frozen=True)
class Call:
    caller: int  # the first address of the function
    pool_bytes: int


class Library:
    def __init__(self, path: Path):
        self.elf = ElfFile(path)

    @functools.cache
    def code(self, start: int) -> list[Instruction]:
        return machine_code.disassemble(self.elf, *self.elf.function_of(start))

    @functools.cache
    def states(self, start: int) -> dict[int, State]:
        return machine_code.states_before(self.code(start))

    def version(self) -> tuple[tuple[int, int, int], int]:
        """Version of NCCL, and of CUDA its major one, from the line that NCCL prints itself."""
        found = {tuple(map(int, match.groups()))
                 for _, match in self.elf.find_strings(VERSION)}
        if len(found) != 1:
            raise Unreadable(f"it names {len(found)} versions of NCCL in the form of NCCL's own line")
        major, minor, patch, cuda = found.pop()
        return (major, minor, patch), cuda

    def functions_that_mention(self, text: bytes) -> set[int]:
        """First addresses of the functions that compute the address of such a text."""
        starts = set()
        for address, _ in self.elf.find_strings(re.escape(text)):
            candidates = {self.elf.function_of(at)[0]
                          for at in machine_code.find_references(self.elf, address)}
            starts |= {start for start in candidates
                       if any(one.target == address for one in self.code(start))}
        return starts

    def creator(self) -> tuple[Maker, int]:
        """ncclShmOpen, and by how many bytes the file is longer than the size."""
        found = set()
        for start in self.functions_that_mention(WARNING):
            for one in self.code(start):
                if one.callee in LENGTH_ARGUMENT:
                    register = ARGUMENTS[LENGTH_ARGUMENT[one.callee]]
                    found.add((start, self.states(start)[one.address].get(register)))
        if len(found) != 1:
            raise Unreadable(f"the function that creates segments is not clear: {len(found)} "
                             "functions or lengths fit")
        start, length = found.pop()
        if not isinstance(length, Argument):
            raise Unreadable("the length of a segment's file is not an argument plus a constant")
        return Maker(start, length.index), length.plus

    def calls_of(self, start: int) -> list[tuple[int, int]]:
        """The calls of a function: the first address of the caller, and the call's own."""
        found = []
        for address in machine_code.find_branches(self.elf, start):
            caller, _ = self.elf.function_of(address)
            if caller != start and any(one.address == address and one.target == start
                                       for one in self.code(caller)):
                found.append((caller, address))
        return found

    def constant_calls(self, creator: Maker) -> list[Call]:
        """The calls, also through functions that pass their argument on, with a constant size."""
        calls, waiting, seen = [], [creator], {creator}
        while waiting:
            maker = waiting.pop()
            for caller, address in self.calls_of(maker.start):
                match self.states(caller)[address].get(ARGUMENTS[maker.argument]):
                    case Constant(value):
                        calls.append(Call(caller, value + maker.plus))
                    case Argument(index, plus):
                        outer = Maker(caller, index, maker.plus + plus)
                        waiting += {outer} - seen
                        seen.add(outer)
        return calls

    def is_of_proxy(self, start: int) -> bool:
        """Whether a function names proxy.cc, as each does whose errors say where they arose."""
        texts = {self.elf.string_at(one.target) for one in self.code(start) if one.target}
        return any(text and PROXY_SOURCE.fullmatch(text) for text in texts)


def read_pool(path: Path) -> Pool:
    """Throws Unreadable if the library does not have the expected shape."""
    library = Library(path)
    version, cuda = library.version()
    creator, count_bytes = library.creator()
    calls = [call for call in library.constant_calls(creator) if library.is_of_proxy(call.caller)]
    sizes = {call.pool_bytes for call in calls}
    if len(sizes) != 1:
        raise Unreadable(f"proxy.cc creates segments of {len(sizes)} constant sizes instead of one")
    if len(calls) < 2:
        raise Unreadable("only one call has the constant size, and none attaches with it")
    size = sizes.pop()
    return Pool(version, cuda, size, size + count_bytes)
