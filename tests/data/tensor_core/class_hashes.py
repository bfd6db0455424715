"""Writes runtime/device/class_hashes.h, by which a rank finds out the class of its device's tensor
cores, from what the judge says ({sm80,sm90}_{bf16,tf32}.bin in this folder, which make.py writes):

    python3 tests/data/tensor_core/class_hashes.py

judge_test compares the header with these files.
"""
import struct
from pathlib import Path

HERE = Path(__file__).resolve().parent
HEADER = HERE.parents[2] / "runtime" / "device" / "class_hashes.h"
HASHES, TILES, RESULTS = 1000, 32, 128  # of a file, of the header, of a tile
TEXT = """#pragma once
#include "runtime/device/tensor_core_class.h"

// Written by tests/data/tensor_core/class_hashes.py.
namespace shoal {

%s
}  // namespace shoal
"""


def hash_of(file: Path) -> int:
    """FNV-1a over the results of the first tiles, as words."""
    data = file.read_bytes()
    value = 0xcbf29ce484222325
    for word in struct.unpack_from(f"<{TILES * RESULTS}I", data, HASHES * 8):
        value = (value ^ word) * 0x100000001b3 % 2**64
    return value


def main() -> None:
    lines = ""
    for name in ("sm80", "sm90"):
        bf16, tf32 = (hash_of(HERE / f"{name}_{factors}.bin") for factors in ("bf16", "tf32"))
        lines += (f"inline constexpr TensorCoreHashes k{name.capitalize()}Hashes"
                  f"{{0x{bf16:016x}, 0x{tf32:016x}}};\n")
    HEADER.write_text(TEXT % lines)


if __name__ == "__main__":
    main()
