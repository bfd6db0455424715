"""What scripts/gpu-check needs on a machine that has a GPU and nothing of Shoal's packages.

No GPU is needed here: the tree for a bare machine is configured and built, and a build that fails
is a stand-in for CMake.
"""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from harness import GUARD, ROOT

NVCC = shutil.which("nvcc", path=f"{os.environ['PATH']}:/usr/local/cuda/bin")


class CaseWithFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)


class FailedBuild(CaseWithFolder):
    def gpu_check(self, *steps: str) -> subprocess.CompletedProcess:
        """Runs the script with a cmake that fails."""
        cmake = self.folder / "cmake"
        cmake.write_text("#!/bin/sh\necho 'CMake Error: no such generator' >&2\nexit 1\n")
        cmake.chmod(0o755)
        environment = {**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}",
                       "BUILD_DIR": str(self.folder / "build")}
        return subprocess.run([ROOT / "scripts/gpu-check", *steps], env=environment, timeout=GUARD,
                              capture_output=True, text=True, stdin=subprocess.DEVNULL)

    def test_it_ends_the_check_and_its_log_is_named(self):
        for steps in ((), ("build", "facts")):
            done = self.gpu_check(*steps)
            self.assertEqual(done.returncode, 1, done.stdout)
            log = self.folder / "build/logs/build.log"
            self.assertIn(f"nothing else was tried: {log} has the error", done.stdout)
            self.assertIn("no such generator", log.read_text())
            everything = log.with_name("gpu-check.log").read_text()
            self.assertIn("no such generator", everything)
            self.assertRegex(everything, r"(?s)\n== build\n.*\n== summary, .*nothing else was tried")
            self.assertNotIn("== facts", done.stdout)


class OnlyADriver(CaseWithFolder):
    """A machine that has no nvcc, but the program from a package."""

    def test_what_needs_the_build_is_skipped_and_the_rest_is_tried(self):
        (self.folder / "bin").mkdir()
        program = self.folder / "bin/shoal"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        hide = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
                'for at in /usr/local/cuda; do [ ! -d $at ] || mount -t tmpfs none $at/; done; exec "$@"',
                "sh"]
        if subprocess.run([*hide, "true"], capture_output=True).returncode != 0:
            self.skipTest("no mount in a namespace of its own here")
        path = ":".join(folder for folder in os.environ["PATH"].split(":")
                        if not (Path(folder) / "nvcc").exists())
        done = subprocess.run([*hide, ROOT / "scripts/gpu-check", "--package", self.folder, "build",
                               "kernels"], timeout=GUARD, capture_output=True, text=True,
                              env={**os.environ, "PATH": path,
                                   "BUILD_DIR": str(self.folder / "build")},
                              stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 77, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"build +\d+ s  SKIPPED: skipped: no nvcc")
        self.assertRegex(done.stdout, "kernels +0 s  SKIPPED: it needs the step build")


class WholeCheck(CaseWithFolder):
    def test_what_has_no_time_left_fails_and_all_is_in_one_log(self):
        done = subprocess.run([ROOT / "scripts/gpu-check"], timeout=GUARD, capture_output=True,
                              text=True, stdin=subprocess.DEVNULL,
                              env={**os.environ, "BUILD_DIR": str(self.folder),
                                   "GPU_CHECK_SECONDS": "0"})
        self.assertEqual(done.returncode, 1, done.stdout)
        for step in ("build", "arith", "kernels", "model", "serve", "library", "memcheck",
                     "racecheck"):
            self.assertRegex(done.stdout, f"(?m)^{step} +0 s  NOT TRIED: the time")
        self.assertNotIn("speed", done.stdout)
        self.assertEqual((self.folder / "logs/gpu-check.log").read_text(), done.stdout)


class LibraryStep(CaseWithFolder):
    """gpu_test and the program are stand-ins that print what the real ones would."""
    PRODUCTS = ("a GPU, sm_90, cuBLASLt 13.1.1, bfloat16, medians, turns: 9\n"
                "| tinyllama-1.1b | layer | 1792 | 2 | 3 | 0.67 |\n"
                "| tinyllama-1.1b | layer | 2048 | 1800.0 | 1000.0 | 1.80 |\n"
                "a GPU, sm_90, cuBLASLt 13.1.1, float32, medians, turns: 9\n"
                "| tinyllama-1.1b | layer | 2048 | 1.0 | 1.0 | 1.00 |\n")

    def stand_in(self, name: str, out: str, err: str = "") -> Path:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\nprintf '{err}' >&2\ncat << 'END'\n{out}END\n")
        file.chmod(0o755)
        return file

    def run_step(self, seconds: float, err: str) -> subprocess.CompletedProcess:
        self.stand_in("build/gpu_test", self.PRODUCTS)
        self.stand_in("bin/shoal", f'{{"seconds": {seconds}}}\n',
                      err + " a step of 2048 rows took 7 launches of own kernels")
        (self.folder / "models/tinyllama-1.1b").mkdir(parents=True, exist_ok=True)
        (self.folder / "models/tinyllama-1.1b/model.safetensors").touch()
        return subprocess.run([ROOT / "scripts/gpu-check", "--package", self.folder, "library"],
                              timeout=GUARD, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL,
                              env={**os.environ, "PATH": f"/usr/bin:{os.environ['PATH']}",
                                   "BUILD_DIR": str(self.folder / "build"),
                                   "CUBLAS_LIBRARY": "l.so",
                                   "MODELS": str(self.folder / "models")})

    def test_a_step_of_2048_rows_may_take_little_more_than_its_products(self):
        by_library = "cuBLASLt 13.1.1 at l.so computes products of 128 rows and more"
        for seconds, err, code, words in ((0.0242, by_library, 0, "ok .*24.2 ms, 1.10 of the 22.0 ms"),
                                          (0.0264, by_library, 1, "FAIL .* 1.20 of the 22.0 ms"),
                                          (0.0242, "", 1, "FAIL .*NO library computed them")):
            with self.subTest(words):
                done = self.run_step(seconds, err)
                self.assertEqual(done.returncode, code, done.stdout)
                self.assertRegex(done.stdout, words)
                self.assertIn("| tinyllama-1.1b | layer | 1792 |", done.stdout)


class SpeedWithoutGpu(unittest.TestCase):
    def test_it_says_that_nothing_was_measured(self):
        """No device is visible, also on a machine that has one. The program is not there, because
        nothing is to be started."""
        done = subprocess.run([sys.executable, ROOT / "bench/gpu/model_speed.py", "/nonexistent/shoal"],
                              env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, timeout=GUARD,
                              capture_output=True, text=True, stdin=subprocess.DEVNULL)
        self.assertEqual((done.returncode, done.stderr), (77, ""))
        self.assertRegex(done.stdout, "^model_speed: SKIPPED, NOTHING WAS MEASURED: no GPU: .+\n$")


class Bare(CaseWithFolder):
    def cmake(self, *words):
        done = subprocess.run(["cmake", *map(str, words)], capture_output=True, text=True,
                              timeout=900, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}")

    def test_the_tree_of_a_bare_machine_builds(self):
        """With the CUDA module it takes minutes, so its build is only prepared here; the module's
        own build is a part of every build where nvcc is."""
        launcher = [f"-DCMAKE_{language}_COMPILER_LAUNCHER=ccache" for language in ("CXX", "CUDA")
                    if shutil.which("ccache")]
        self.cmake("-S", ROOT / "tests/gpu", "-B", self.folder, "-DSHOAL_CUDA=OFF",
                   "-DCMAKE_BUILD_TYPE=Debug", *launcher)
        self.cmake("--build", self.folder, "--parallel", 2)
        for program in ("gpu_test", "gpu_machine_facts", "bench/gpu/gpu_collectives"):
            self.assertTrue((self.folder / program).is_file(), program)

    @unittest.skipUnless(NVCC, "no nvcc")
    def test_it_is_configured_with_the_module(self):
        self.cmake("-S", ROOT / "tests/gpu", "-B", self.folder, f"-DCMAKE_CUDA_COMPILER={NVCC}")
        listed = subprocess.run(["cmake", "--build", self.folder, "--target", "help"],
                                capture_output=True, text=True, check=True).stdout
        self.assertIn("shoal_cuda", listed)


if __name__ == "__main__":
    unittest.main()
