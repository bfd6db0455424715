"""Writes what the judge says about tensor cores: {sm80,sm90}_{bf16,tf32}.bin in this folder.

The judge is Microsoft's MMA-Sim (arXiv 2511.10909), whose authors compared it with hardware bit by
bit. Its version counts: others treat zeros differently. It is run by hand, takes some minutes, and
needs nothing of Shoal:

    python3 -m venv judge && judge/bin/pip install mmasim==2.1.1 torch==2.9.0 numpy
    judge/bin/python make.py

Each file has, as little-endian words: a hash of 64 bits for every 100 of 100,000 tiles, then the
results of the first 200 tiles, 16 rows of 8 float32 each. A tile is sum + a * b as in mma.m16n8k16
(bfloat16) or mma.m16n8k8 (tf32). runtime/device/judged_tiles.h has the same rules for what the
inputs of a tile are, and judge_test holds the emulated tensor core to these files.
"""
import sys
import types
from pathlib import Path

import numpy as np
import torch

# It serves float64 alone, and would compile C++.
sys.modules["mmasim.arithmetic.fma"] = types.ModuleType("mmasim.arithmetic.fma")
from mmasim.nv_ptx import MMA  # noqa: E402

TILES, TILES_OF_HASH, WHOLE_TILES = 100_000, 100, 200
ROWS, COLUMNS, FACTORS = 16, 8, 16
WORDS = (ROWS + COLUMNS) * FACTORS + ROWS * COLUMNS
AT_ONCE = 2000
# Of a, b and sum: the least exponent and how many there are, and how many of 256 numbers are zero,
# infinite and NaN.
RECIPES = [
    ((120, 12, 0, 0, 0), (120, 12, 0, 0, 0), (118, 16, 0, 0, 0)),  # usual
    ((20, 165, 0, 0, 0), (20, 165, 0, 0, 0), (0, 240, 0, 0, 0)),   # wide
    (None, None, None),                                            # few values
    ((110, 30, 0, 0, 0), (110, 30, 0, 0, 0), (90, 70, 0, 0, 0)),   # pairs
    ((40, 21, 128, 0, 0), (40, 21, 0, 0, 0), (0, 3, 192, 0, 0)),   # tiny
    ((0, 3, 0, 0, 0), (90, 40, 0, 0, 0), (0, 3, 64, 0, 0)),        # subnormal
    ((185, 6, 0, 0, 0), (185, 6, 0, 0, 0), (250, 5, 0, 0, 0)),     # huge
    ((60, 130, 8, 4, 0), (60, 130, 8, 4, 0), (60, 130, 8, 4, 0)),  # infinite
    ((60, 130, 0, 1, 3), (60, 130, 0, 1, 3), (60, 130, 0, 1, 3)),  # NaN
]
PAIRS = 3
FEW_VALUES = np.array([0x3f800000, 0x3f810000, 0x40000000, 0x5f000000, 0x33000000, 0x32800000,
                       0x00010000, 0x00000000], np.uint64)
U64 = np.uint64


def random_words(i: np.ndarray) -> np.ndarray:
    """Numbers i of splitmix64."""
    word = U64(0x5ca1ab1e) + (i + U64(1)) * U64(0x9e3779b97f4a7c15)
    word = (word ^ word >> U64(30)) * U64(0xbf58476d1ce4e5b9)
    word = (word ^ word >> U64(27)) * U64(0x94d049bb133111eb)
    return word ^ word >> U64(31)


def numbers(recipe: tuple | None, word: np.ndarray) -> np.ndarray:
    """Float32 by their bits, one for each word."""
    sign = word >> U64(63) << U64(31)
    choice = word >> U64(20) & U64(0xfffff)
    if recipe is None:
        return (sign | FEW_VALUES[choice % U64(8)]).astype(np.uint32)
    least, count, zeros, infinities, nans = map(U64, recipe)
    fraction = word >> U64(40) & U64(0x7fffff)
    chance = word & U64(0xff)
    from_top = U64(255) - chance
    payload = np.where(word >> U64(8) & U64(1), fraction, fraction & U64(0x1fff))
    bits = np.select(
        [chance < zeros, from_top < infinities, from_top < infinities + nans],
        [U64(0) * word, U64(0) * word + U64(0x7f800000), U64(0x7f800000) | payload],
        (least + choice % count) << U64(23) | fraction)
    return (sign | bits).astype(np.uint32)


def inputs(tiles: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """a by rows, b by columns and the sums of tiles that are of one kind."""
    kind = int(tiles[0]) % len(RECIPES)
    words = random_words(tiles[:, None] * U64(WORDS) + np.arange(WORDS, dtype=U64))
    of_a, of_b, of_sum = np.split(words, [ROWS * FACTORS, (ROWS + COLUMNS) * FACTORS], axis=1)
    a, b, c = (numbers(recipe, word) for recipe, word in zip(RECIPES[kind], (of_a, of_b, of_sum)))
    if kind == PAIRS:
        flip = np.where((of_a[:, 1::2] & U64(0xff)) < U64(64), 0x10000, 0).astype(np.uint32)
        a[:, 1::2] = a[:, ::2] ^ flip
        b[:, 1::2] = b[:, ::2] ^ np.uint32(0x80000000)
    return (a.reshape(-1, ROWS, FACTORS), b.reshape(-1, COLUMNS, FACTORS),
            c.reshape(-1, ROWS, COLUMNS))


def float32(bits: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(bits.view(np.int32).copy()).view(torch.float32)


def factors(bits: np.ndarray, name: str) -> torch.Tensor:
    if name == "tf32":
        return float32(bits[..., :FACTORS // 2])
    halves = (bits >> 16).astype(np.uint16).view(np.int16)
    return torch.from_numpy(halves).view(torch.bfloat16)


def judged(judge: MMA, name: str, tiles: np.ndarray) -> np.ndarray:
    """The results of tiles of one kind, as bits: [tiles][16][8]."""
    a, b, c = inputs(tiles)
    shape = (len(tiles), ROWS, COLUMNS, FACTORS if name == "bf16" else FACTORS // 2)
    result = judge.dpa(factors(a, name)[:, :, None, :].expand(shape),
                       factors(b, name)[:, None, :, :].expand(shape), float32(c))
    return result.view(torch.int32).numpy().view(np.uint32)


def hashes(results: np.ndarray) -> np.ndarray:
    words = results.reshape(TILES // TILES_OF_HASH, -1).astype(U64)
    hash_ = np.full(len(words), 0xcbf29ce484222325, U64)
    for column in words.T:
        hash_ = (hash_ ^ column) * U64(0x100000001b3)
    return hash_


def main() -> None:
    torch.set_num_threads(1)
    for generation, name, arch, shape in (
            ("sm80", "bf16", "Ampere", "m16n8k16.f32.bf16.bf16.f32"),
            ("sm80", "tf32", "Ampere", "m16n8k8.f32.tf32.tf32.f32"),
            ("sm90", "bf16", "Hopper", "m16n8k16.f32.bf16.bf16.f32"),
            ("sm90", "tf32", "Hopper", "m16n8k8.f32.tf32.tf32.f32")):
        judge = MMA(arch, shape)
        results = np.empty((TILES, ROWS, COLUMNS), np.uint32)
        for kind in range(len(RECIPES)):
            of_kind = np.arange(kind, TILES, len(RECIPES), dtype=U64)
            for first in range(0, len(of_kind), AT_ONCE):
                tiles = of_kind[first:first + AT_ONCE]
                results[tiles.astype(np.int64)] = judged(judge, name, tiles)
        path = Path(__file__).with_name(f"{generation}_{name}.bin")
        path.write_bytes(hashes(results).astype("<u8").tobytes()
                         + results[:WHOLE_TILES].astype("<u4").tobytes())
        print(path.name, path.stat().st_size, flush=True)


if __name__ == "__main__":
    with np.errstate(over="ignore"):
        main()
