"""The bits of the arithmetic depend neither on the compiler nor on its options.

Each way compiles the kernels, the rotary tables and the sampler, and the program that comes of it
must give the fingerprint. Every run tries one way, by the seed of the day, and a long one all.
"""
import os
import platform
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import breadth
import harness

# -march=haswell lets the compiler use FMA instructions everywhere, of which it must make none by
# itself. (It is not -march=native, by which the set for AVX2 would become one for AVX-512.) -O3
# vectorises more.
WAYS = [("g++", "-O3 -march=haswell"), ("clang++-14", "-O2"), ("g++", "-O1"),
        ("clang++-14", "-O3 -march=haswell"), ("g++-13", "-O2"), ("clang++-14", "-O1"),
        ("g++", "-O2 -march=haswell")]
WAYS = [way for way in WAYS if shutil.which(way[0]) and
        ("haswell" not in way[1] or platform.machine() == "x86_64")]


class Compilers(unittest.TestCase):
    def fingerprints(self, compiler: str, options: str) -> str:
        with tempfile.TemporaryDirectory() as build:
            for command in (
                    ["cmake", "-S", harness.ROOT / "tests" / "compilers", "-B", build,
                     "-G", "Ninja", f"-DCMAKE_CXX_COMPILER={compiler}", f"-DCMAKE_CXX_FLAGS={options}",
                     f"-DSHOAL_KERNEL_OPTIMIZATION={options.split()[0]}", "-DSHOAL_UNITY=ON"],
                    ["cmake", "--build", build, "--target", "fingerprint"]):
                done = subprocess.run(command, capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, (done.stdout + done.stderr)[-3000:])
            done = subprocess.run([Path(build) / "fingerprint"], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            return done.stdout

    def test_fingerprints(self):
        ways = WAYS if breadth.FULL else [WAYS[breadth.day() % len(WAYS)]]
        for compiler, options in ways:
            with self.subTest(compiler=compiler, options=options):
                lines = self.fingerprints(compiler, options).splitlines()
                self.assertEqual([line.split()[0] for line in lines], harness.kernel_sets())


if __name__ == "__main__":
    os.environ.setdefault("CCACHE_BASEDIR", str(harness.ROOT))
    harness.main()
