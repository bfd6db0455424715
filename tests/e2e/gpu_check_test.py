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
            everything = log.with_name("all.log").read_text()
            self.assertIn("no such generator", everything)
            self.assertRegex(everything, r"(?s)^\n== build\n.*\n== summary, .*nothing else was tried")
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
        self.assertRegex(done.stdout, "build +0 s  SKIPPED: skipped: no nvcc")
        self.assertRegex(done.stdout, "kernels +0 s  SKIPPED: it needs the step build")


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
