"""What x86-64 code passes to the functions that it calls, as far as that follows from the code.

objdump (binutils) gives the instructions of one function. Each register and stack slot is followed
through all of its ways: it holds a constant, an argument of the function plus a constant, or
something unknown. Where ways meet, only what they agree on is known.
"""
import dataclasses
import re
import struct
import subprocess

from elf_file import ElfFile, Unreadable

# Registers of the first six integer arguments (System V ABI), and all that a call may change.
ARGUMENTS = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
CALL_CLOBBERS = ("rax", *ARGUMENTS, "r10", "r11")


@dataclasses.dataclass(frozen=True)
class Constant:
    value: int


@dataclasses.dataclass(frozen=True)
class Argument:
    index: int  # of the function whose code this is, counted from 0
    plus: int = 0


@dataclasses.dataclass(frozen=True)
class Frame:
    """An address on the stack, counted from the stack pointer at the function's entry."""
    offset: int


Value = Constant | Argument | Frame
# By the name of a 64-bit register, or by the offset of a slot as Frame counts it. What is not in
# it is unknown.
State = dict[str | int, Value]


@dataclasses.dataclass(frozen=True)
class Instruction:
    address: int
    mnemonic: str
    operands: tuple[str, ...]
    target: int | None  # of a jump or call, or of an address within the library
    callee: str | None  # the name of an imported function

    @property
    def is_call(self) -> bool:
        return self.mnemonic == "call"

    @property
    def is_jump(self) -> bool:
        return self.mnemonic.startswith("j")

    @property
    def is_filler(self) -> bool:
        return self.mnemonic.startswith("nop") or \
            (self.mnemonic, self.operands) == ("xchg", ("%ax", "%ax"))


LINE = re.compile(r"^\s*([0-9a-f]+):\t(?:(?:bnd|notrack|lock|rep|repz|repnz|data16|cs|rex\.W)\s+)*"
                  r"(\S+)\s*([^#<]*)(?:#\s*([0-9a-f]+)\s*)?(?:<([^>]*)>)?")
IMPORTED = re.compile(r"^(\w+?)(?:64)?@")


def parse_line(line: str) -> Instruction | None:
    match = LINE.match(line)
    if not match:
        return None
    address, mnemonic, operands, comment, symbol = match.groups()
    words = tuple(re.split(r",(?![^(]*\))", operands.strip())) if operands.strip() else ()
    direct = len(words) == 1 and re.fullmatch("[0-9a-f]+", words[0])
    branches = mnemonic == "call" or mnemonic.startswith("j")
    target = words[0] if branches and direct else comment
    imported = IMPORTED.match(symbol) if branches and symbol else None
    return Instruction(int(address, 16), mnemonic, words, int(target, 16) if target else None,
                       imported[1] if imported else None)


def disassemble(elf: ElfFile, start: int, stop: int) -> list[Instruction]:
    done = subprocess.run(["objdump", "--disassemble", "--no-show-raw-insn", "--section=.text",
                           f"--start-address={start:#x}", f"--stop-address={stop:#x}", elf.path],
                          capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise Unreadable(f"objdump: {done.stderr.strip()}")
    return [one for one in map(parse_line, done.stdout.splitlines()) if one]


def find_branches(elf: ElfFile, target: int) -> list[int]:
    """Addresses of bytes that look like a direct call of or jump to the target."""
    return [at for at in find_relative(elf, b"[\xe8\xe9]", 1, target)]


def find_references(elf: ElfFile, target: int) -> list[int]:
    """Addresses of bytes that look like an instruction which computes the target's address."""
    return find_relative(elf, b"\x8d[\x05\x0d\x15\x1d\x25\x2d\x35\x3d]", 2, target)


def find_relative(elf: ElfFile, opcode: bytes, length: int, target: int) -> list[int]:
    """Matches of the opcode after which 4 bytes lead to the target, from the address behind them."""
    text = elf.section(".text")
    found = []
    for match in re.finditer(b"(?s)(?=" + opcode + b")", text.data[:-length - 4]):
        at = match.start() + length
        distance, = struct.unpack_from("<i", text.data, at)
        if text.address + at + 4 + distance == target:
            found.append(text.address + match.start())
    return found


def full_name(register: str) -> str | None:
    """eax -> rax, r8d -> r8; None for what is narrower than 32 bits or no integer register."""
    register = register.removeprefix("%")
    if re.fullmatch(r"e[a-d]x|e[sd]i|e[sb]p", register):
        return "r" + register[1:]
    if re.fullmatch(r"r([a-d]x|[sd]i|[sb]p)|r\d+", register):
        return register
    wide = re.fullmatch(r"(r\d+)d", register)
    return wide[1] if wide else None


NARROW = {"al": "rax", "ah": "rax", "bl": "rbx", "bh": "rbx", "cl": "rcx", "ch": "rcx",
          "dl": "rdx", "dh": "rdx", "sil": "rsi", "dil": "rdi", "bpl": "rbp", "spl": "rsp",
          "ax": "rax", "bx": "rbx", "cx": "rcx", "dx": "rdx", "si": "rsi", "di": "rdi",
          "bp": "rbp", "sp": "rsp"}


def place_of(operand: str, state: State) -> str | int | None:
    """The register or stack slot that an operand names; None for other memory and for numbers."""
    if operand.startswith("%"):
        name = operand[1:]
        part = re.fullmatch(r"(r\d+)[bw]", name)
        return full_name(operand) or NARROW.get(name) or (part[1] if part else None)
    address = address_of(operand, state)
    return address.offset if isinstance(address, Frame) else None


def address_of(operand: str, state: State) -> Value | None:
    """What 0x8(%rsp) points to, or what lea computes from it."""
    match = re.fullmatch(r"(-?0x[0-9a-f]+|)\((%\w+)\)", operand)
    base = state.get(full_name(match[2]) or "") if match else None
    return moved(base, int(match[1] or "0", 16)) if base else None


def moved(value: Value | None, by: int) -> Value | None:
    match value:
        case Constant(number):
            return Constant(number + by)
        case Argument(index, plus):
            return Argument(index, plus + by)
        case Frame(offset):
            return Frame(offset + by)
    return None


def immediate(operand: str) -> int | None:
    return int(operand[1:], 16) if re.fullmatch(r"\$-?0x[0-9a-f]+", operand) else None


def value_of(operand: str, state: State) -> Value | None:
    number = immediate(operand)
    if number is not None:
        return Constant(number)
    if operand.startswith("%") and not full_name(operand):
        return None  # a part of a register
    place = place_of(operand, state)
    return None if place is None else state.get(place)


def store(state: State, place: str | int | None, value: Value | None, width: int = 8):
    """Puts a value into a register or a slot. What it overlaps becomes unknown."""
    if isinstance(place, int):
        for other in [other for other in state if isinstance(other, int)]:
            if place - 8 < other < place + width:
                del state[other]
    if place is not None:
        state.pop(place, None)
        if value is not None:
            state[place] = value


MOVES = ("mov", "movq", "movl", "movabs", "movslq")
# They write registers that they do not name, or more than their last operand.
IMPLICIT = re.compile(r"(mul|imul|div|idiv|xchg|xadd)[bwlq]?|cmpxchg\w*|c[lqw]t[dlqo]|rdtscp?|cpuid|"
                      r"syscall|(movs|stos|lods|scas|cmps)[bwlq]?|leave")
READ_ONLY = re.compile(r"(cmp|test|bt)[bwlq]?|v?u?comis[sd]|nop[wl]?|j\w+|endbr64|prefetch\w*")
# The bytes that a store is assumed to write if its instruction is not one of MOVES. No instruction
# writes more.
WIDEST_STORE = 64


def step(instruction: Instruction, before: State) -> State:
    """The state after an instruction."""
    state = dict(before)
    mnemonic, operands = instruction.mnemonic, instruction.operands
    if instruction.is_call:
        for register in CALL_CLOBBERS:
            state.pop(register, None)
    elif mnemonic.startswith(("push", "pop")):
        step_stack(mnemonic, operands, state)
    elif IMPLICIT.fullmatch(mnemonic):
        for place in (*CALL_CLOBBERS, "rbx", *(place_of(one, before) for one in operands)):
            store(state, place, None)
    elif operands and not READ_ONLY.fullmatch(mnemonic):
        store(state, place_of(operands[-1], before), result_of(mnemonic, operands, before),
              8 if mnemonic in MOVES else WIDEST_STORE)
    return state


def step_stack(mnemonic: str, operands: tuple[str, ...], state: State):
    top = state.get("rsp")
    if not isinstance(top, Frame):
        return
    if mnemonic.startswith("push"):
        state["rsp"] = Frame(top.offset - 8)
        value = value_of(operands[0], state) if operands else None
        store(state, top.offset - 8, value)
    else:
        place = place_of(operands[0], state) if operands else None
        store(state, place, state.get(top.offset))
        state["rsp"] = Frame(top.offset + 8)


def result_of(mnemonic: str, operands: tuple[str, ...], state: State) -> Value | None:
    """What an instruction writes into its last operand."""
    if len(operands) != 2:
        return None
    source, destination = operands
    if mnemonic in MOVES:
        return value_of(source, state)
    if mnemonic == "lea":
        return address_of(source, state)
    if mnemonic.startswith("xor") and source == destination and full_name(source):
        return Constant(0)
    number = immediate(source)
    if number is not None and mnemonic.startswith(("add", "sub")):
        return moved(value_of(destination, state), -number if mnemonic[0] == "s" else number)
    return None


def agreed(one: State, other: State) -> State:
    return {place: value for place, value in one.items() if other.get(place) == value}


def states_before(code: list[Instruction]) -> dict[int, State]:
    """What is known before each instruction, by its address."""
    first = follow(code, lowest_shared=None)
    addresses = [frame_address(one, first.get(one.address, {})) for one in code]
    shared = [address.offset for address in addresses if address]
    return follow(code, min(shared, default=None))


def frame_address(instruction: Instruction, state: State) -> Frame | None:
    """The address within the stack that an instruction puts where other functions may get it."""
    if instruction.mnemonic == "lea":
        result = address_of(instruction.operands[0], state)
    elif instruction.mnemonic == "mov" and instruction.operands[0] == "%rsp":
        result = state.get("rsp")
    else:
        result = None
    return result if isinstance(result, Frame) else None


def follow(code: list[Instruction], lowest_shared: int | None) -> dict[int, State]:
    """As states_before, if others have addresses of the stack from this offset on. What is there
    may change at any time, and counts as unknown."""
    by_address = {one.address: i for i, one in enumerate(code)}
    known: dict[int, State] = {}

    def spread(start: int, entry: State):
        waiting = [(start, entry)]
        while waiting:
            index, incoming = waiting.pop()
            here = code[index]
            state = agreed(known[here.address], incoming) if here.address in known else incoming
            if known.get(here.address) == state:
                continue
            known[here.address] = state
            after = {place: value for place, value in step(here, state).items()
                     if not isinstance(place, int) or lowest_shared is None
                     or place < lowest_shared}
            waiting.extend((following, after) for following in successors(code, index, by_address))

    spread(0, {**{name: Argument(i) for i, name in enumerate(ARGUMENTS)}, "rsp": Frame(0)})
    # What is reached through a table of addresses or by an exception: nothing is known there. No
    # way leads to what only fills the space before the next jump's target.
    for index, one in enumerate(code):
        if one.address not in known and not one.is_filler:
            spread(index, {})
    return known


def successors(code: list[Instruction], index: int, by_address: dict[int, int]) -> list[int]:
    here = code[index]
    following = []
    if here.is_jump and here.target in by_address:
        following.append(by_address[here.target])
    ends = here.mnemonic.startswith(("jmp", "ret", "ud2", "hlt"))
    if not ends and index + 1 < len(code):
        following.append(index + 1)
    return following
