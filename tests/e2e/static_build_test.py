"""The preset `static` builds shoal-shmtest and shoal-doctor alone, from nothing, without gRPC.

Both run in an empty root, as those of the release build do (static_tools_test.py). How long the build
takes is printed, and judged by nobody here.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import harness

NAMES = ("shoal-shmtest", "shoal-doctor")
OF_THE_SERVER = ("grpc", "protobuf", "absl", "openssl", "boost", "pcre", "utf8proc")


class StaticBuild(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.build = Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.build)
        began = time.monotonic()
        cls.command("cmake", "--preset", "static", "-B", cls.build)
        cls.command("cmake", "--build", cls.build, "--parallel", len(os.sched_getaffinity(0)),
                    "--target", *NAMES)
        print(f"configured and built in {time.monotonic() - began:.0f} s, without a compiler cache")

    @staticmethod
    def command(*words) -> str:
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True,
                              cwd=harness.ROOT, env={**os.environ, "CCACHE_DISABLE": "1"},
                              timeout=10 * harness.GUARD)
        if done.returncode != 0:
            raise AssertionError(f"{words}: {done.returncode}\n{done.stdout[-4000:]}\n"
                                 f"{done.stderr[-4000:]}")
        return done.stdout

    def test_the_programs_need_no_library(self):
        for name in NAMES:
            self.assertTrue(self.command(self.build / name, "--version").startswith(f"{name} "))
            linked = subprocess.run(["ldd", self.build / name], capture_output=True, text=True)
            self.assertIn("not a dynamic executable", linked.stdout + linked.stderr)

    def test_nothing_of_the_server_is_compiled(self):
        files = [self.build / "compile_commands.json", *self.build.rglob("unity_*.cxx")]
        source = re.compile(rf"{re.escape(str(harness.ROOT))}/([\w/]+\.cc)\b")
        compiled = {path for file in files for path in source.findall(file.read_text())}
        self.assertLess({"server/tools/doctor_main.cc", "server/commands/doctor_command.cc",
                         "runtime/transport/remedy.cc"}, compiled)
        for folder in ("proto/", "kernels/", "models/", "server/grpc/", "server/http/"):
            self.assertEqual([file for file in compiled if file.startswith(folder)], [])
        variables = re.findall(r"^(\w+):", (self.build / "CMakeCache.txt").read_text(), re.M)
        self.assertEqual([name for name in variables
                          if any(one in name.lower() for one in OF_THE_SERVER)], [])

    def test_they_run_where_nothing_else_is(self):
        script = Path(__file__).with_name("static_tools_test.py")
        done = subprocess.run([sys.executable, script, self.build, "EmptyRoot"],
                              capture_output=True, text=True, timeout=10 * harness.GUARD)
        if done.returncode == harness.SKIPPED:
            self.skipTest("this kernel forbids mount namespaces here")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    harness.main()
