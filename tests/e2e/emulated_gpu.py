"""How tests run the program on emulated devices (tests/emulator)."""
import os
import unittest.mock
from pathlib import Path

import harness

FAKES = Path(harness.SHOAL).parent / "fakes"
MODULE = FAKES / "libemulated_cuda_module.so"
ON_DEVICES = ("--device", "cuda", "--cuda-module", MODULE, "--nccl-library",
              FAKES / "libfake_nccl.so", "--cublas-library", FAKES / "libfake_cublaslt.so",
              "--threads-per-rank", 1)


def emulated(**settings):
    """Sets EMULATED_GPU_<NAME>. All devices reach each other, unless PEERS says otherwise."""
    settings = {"PEERS": "all", **settings}
    return unittest.mock.patch.dict(
        os.environ, {f"EMULATED_GPU_{name}": str(value) for name, value in settings.items()})


def uuid_of(device: int) -> str:
    """The UUID of an emulated device."""
    return f"GPU-656d756c-6174-6564-2047-50550000{device:04x}"


def gpu(device: int) -> str:
    """What messages call an emulated device."""
    return f"GPU {device} ({uuid_of(device)}, Emulated GPU)"
