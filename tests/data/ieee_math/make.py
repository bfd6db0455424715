"""Writes correctly_rounded.txt: what sine, cosine and exponential are, for 10^6 arguments.

It needs mpmath (PyPI), takes some minutes, and is run by hand: python3 make.py. Line i of the file
is about arguments 1000 i to 1000 i + 999 of tests/runtime/base/ieee_math_test.cc, which makes the
same arguments: for each function a hash of its values, each rounded to float correctly. A value
that lies within 10^-5 ulp of the middle between two floats counts as 0 in the hash, and the lines
at the end of the file ("tie FUNCTION INDEX") name it, because no double is exact enough to decide.
"""
import struct
import sys
from pathlib import Path

from mpmath import mp, mpf

mp.prec = 140
COUNT, BLOCK = 1_000_000, 1000
MASK = (1 << 64) - 1


class Numbers:
    """The same numbers as in the test: a linear congruential generator (Knuth's MMIX)."""

    def __init__(self, seed: int):
        self.state = seed

    def next(self) -> int:
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) & MASK
        return self.state >> 32


def float32(x: float) -> float:
    return struct.unpack("<f", struct.pack("<f", x))[0]


def angle(numbers: Numbers, index: int) -> float:
    a, b = numbers.next(), numbers.next()
    if index % 4 == 0:  # any size from 2^-24 to 2^26
        return (-1) ** (a & 1) * float32((1 + (b >> 9) * 2.0**-23) * 2.0 ** (a // 2 % 50 - 24))
    if index % 4 == 1:  # a position times a frequency
        return float32(float32(float(a % 10_000_000)) * ((b >> 8) * 2.0**-24))
    if index % 4 == 2:  # next to a multiple of pi/2, where sine or cosine nearly vanish
        return float32(float(a % (1 << 25)) * 1.5707963267948966)
    return float32(float(a % 10_000_000))


def power(numbers: Numbers, index: int) -> float:
    a = numbers.next()
    unit = (a >> 8) * 2.0**-23 - 1.0
    return float32(unit * (87.0 if index % 2 == 0 else 1.0))


def rounded(value: mpf) -> tuple[int, bool]:
    """The bits of the nearest float, and whether the value is next to the middle of two."""
    sign, man, exp, bits = value._mpf_
    if man == 0:
        return 0, False
    shift = bits - 24
    if shift <= 0:
        return struct.unpack("<I", struct.pack("<f", float(value)))[0], False
    kept, rest = man >> shift, man & ((1 << shift) - 1)
    half = 1 << (shift - 1)
    tie = abs(rest - half) * 100_000 < (1 << shift)
    kept += rest > half
    return struct.unpack("<I", struct.pack("<f", (-1) ** sign * float(kept) *
                                           2.0 ** (exp + shift)))[0], tie


def main():
    angles, powers = Numbers(1), Numbers(2)
    lines, ties = [], []
    for begin in range(0, COUNT, BLOCK):
        hashes = {"sin": 0xcbf29ce484222325, "cos": 0xcbf29ce484222325, "exp": 0xcbf29ce484222325}
        for index in range(begin, begin + BLOCK):
            x = mpf(angle(angles, index))
            sine, cosine = mp.sin(x), mp.cos(x)
            for name, value in (("sin", sine), ("cos", cosine),
                                ("exp", mp.exp(mpf(power(powers, index))))):
                bits, tie = rounded(value)
                if tie:
                    ties.append(f"tie {name} {index}")
                    bits = 0
                hashes[name] = ((hashes[name] ^ bits) * 0x100000001b3) & MASK
        lines.append(" ".join(f"{value >> 32:08x}" for value in hashes.values()))
        if begin % 50_000 == 0:
            print(begin, file=sys.stderr)
    Path(__file__).with_name("correctly_rounded.txt").write_text("\n".join(lines + ties) + "\n")


main()
