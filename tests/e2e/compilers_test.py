"""The bits of the arithmetic and of whole models depend neither on the compiler nor on its options.

Each way compiles the kernels, the rotary tables and the sampler into one program, which must give
the fingerprint, and a model on one rank into another, whose logits must have the committed hashes,
and whose tokens and logprobs must be those of the program under test. Every run tries one way, by
the seed of the day, and a long one all.
"""
import json
import os
import platform
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import breadth
import harness
from bits_cases import BitsCase, drawn, hash_of

# -march=haswell lets the compiler use FMA instructions everywhere, of which it must make none by
# itself. (It is not -march=native, by which the set for AVX2 would become one for AVX-512.) -O3
# vectorises more.
WAYS = [("g++", "-O3 -march=haswell"), ("clang++-14", "-O2"), ("g++", "-O1"),
        ("clang++-14", "-O3 -march=haswell"), ("g++-13", "-O2"), ("clang++-14", "-O1"),
        ("g++", "-O2 -march=haswell")]
WAYS = [way for way in WAYS if shutil.which(way[0]) and
        ("haswell" not in way[1] or platform.machine() == "x86_64")]
MODELS = ["llama3-gqa-tied-sharded", "mistral-window"]
PROMPT_TOKENS = 90


def npy(logits: bytes, columns: int) -> bytes:
    """The file that `shoal logits` writes of them (server/commands/npy.h)."""
    shape = f"({len(logits) // 4 // columns}, {columns})"
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
    text = text.ljust(-(-(len(text) + 11) // 64) * 64 - 11) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + logits


class Compilers(unittest.TestCase):
    def run_quietly(self, *command, **popen) -> str:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **popen)
        self.assertEqual(done.returncode, 0, (done.stdout + done.stderr)[-3000:])
        return done.stdout

    def build(self, folder: str, compiler: str, options: str):
        self.run_quietly("cmake", "-S", harness.ROOT / "tests" / "compilers", "-B", folder,
                         "-G", "Ninja", f"-DCMAKE_CXX_COMPILER={compiler}", f"-DCMAKE_CXX_FLAGS={options}",
                         f"-DSHOAL_KERNEL_OPTIMIZATION={options.split()[0]}", "-DSHOAL_UNITY=ON")
        self.run_quietly("cmake", "--build", folder, "--target", "fingerprint", "model")

    def check_fingerprints(self, folder: str):
        lines = self.run_quietly(Path(folder) / "fingerprint").splitlines()
        self.assertEqual([line.split()[0] for line in lines], harness.kernel_sets())

    def check_model(self, folder: str, model: BitsCase, kernels: str):
        # The answers' ends and texts are the scheduler's and the tokenizer's, which are not there.
        requests = [request for request in model.mixed_requests()
                    if "prompt_ids" in request and "ignore_eos" in request]
        wanted = {"logits_of": model.prompt_ids()[:PROMPT_TOKENS], "requests": requests}
        logits = Path(folder) / "logits"
        out = self.run_quietly(Path(folder) / "model", model.folder, kernels, logits,
                               input=json.dumps(wanted))
        self.assertEqual(hash_of(npy(logits.read_bytes(), model.config["vocab_size"])),
                         model.hashes()["logits"])
        self.assertEqual(drawn(json.loads(out)),
                         drawn(harness.generate_jsonl(model.folder, requests)))

    def test_every_bit(self):
        ways = WAYS if breadth.FULL else [WAYS[breadth.day() % len(WAYS)]]
        for compiler, options in ways:
            with tempfile.TemporaryDirectory() as folder:
                self.build(folder, compiler, options)
                with self.subTest(compiler=compiler, options=options, what="fingerprint"):
                    self.check_fingerprints(folder)
                for model in map(BitsCase, MODELS):
                    for kernels in harness.kernel_sets():
                        with self.subTest(compiler=compiler, options=options, what=model.name,
                                          kernels=kernels):
                            self.check_model(folder, model, kernels)


if __name__ == "__main__":
    os.environ.setdefault("CCACHE_BASEDIR", str(harness.ROOT))
    harness.main()
