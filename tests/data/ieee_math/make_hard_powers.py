"""Writes hard_powers.txt: exponentials that a small error rounds to the wrong float.

It takes some seconds and is run by hand: python3 make_hard_powers.py. Each line has the bits of a
float x and those of exp(x), rounded to float correctly. There are two kinds of arguments. Where
exp(x) lies within 10^-6 ulp of the middle between two floats, an error of 2^-44 is seen; values
within 10^-8 ulp are left out, because two ulp of a double may decide them wrongly. And all floats
next to the ends of the range: where exp(x) becomes infinite, subnormal and zero.
"""
import decimal
import math
from fractions import Fraction
from pathlib import Path

import numpy as np

decimal.getcontext().prec = 60
SMALLEST = -149  # the exponent of the least float
INFINITE = 0x7F800000
DRAWN = 40_000_000
NEAR, TOO_NEAR = 1e-6, 1e-8


def exact(x: np.float32) -> Fraction:
    """exp(x), far closer than TOO_NEAR."""
    return Fraction(decimal.Decimal(float(x)).exp())


def rounded(value: Fraction) -> tuple[int, float]:
    """The bits of the nearest float, and how many ulp the middle of two is away."""
    exponent = math.floor(math.log2(value)) if value > Fraction(1, 2**1000) else -1000
    exponent += (value >= Fraction(2) ** (exponent + 1)) - (value < Fraction(2) ** exponent)
    ulp = max(exponent - 23, SMALLEST)
    units = value / Fraction(2) ** ulp
    kept = math.floor(units)
    from_middle = units - kept - Fraction(1, 2)
    kept += from_middle > 0
    # A kept value of 2^24 is the next power of two, whose bits are the next ones.
    bits = ((ulp - SMALLEST) << 23) + kept
    return min(bits, INFINITE), abs(float(from_middle))


def drawn() -> np.ndarray:
    """Arguments whose exponentials lie next to the middle of two floats."""
    draw = np.random.RandomState(1)  # whose numbers do not change with numpy's version
    x = (draw.random_sample(DRAWN) * 192.7 - 103.97).astype(np.float32)
    powers = np.exp(x.astype(np.float64))
    ulp = np.maximum(np.frexp(powers)[1] - 24, SMALLEST)
    units = np.ldexp(powers, -ulp)
    return x[np.abs(units - np.floor(units) - 0.5) < 2 * NEAR]


def around(x: float) -> list[np.float32]:
    """The eight floats on each side of x, and the nearest."""
    found = [np.float32(x)]
    for direction in (-np.inf, np.inf):
        at = found[0]
        for _ in range(8):
            at = np.nextafter(at, np.float32(direction), dtype=np.float32)
            found.append(at)
    return found


def main():
    ends = [value * math.log(2) for value in (128, 127, -126, -148, -149, -150)]
    lines = set()
    for x in [*drawn(), *(x for end in ends for x in around(end))]:
        bits, from_middle = rounded(exact(x))
        if from_middle > TOO_NEAR:
            lines.add(f"{x.view(np.uint32):08x} {bits:08x}")
    Path(__file__).with_name("hard_powers.txt").write_text("\n".join(sorted(lines)) + "\n")


if __name__ == "__main__":
    main()
