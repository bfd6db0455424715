"""What `shoal --version` reports about the commit, the kernel sets and the CUDA module must be
true.
"""
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import harness

EMULATED_MODULE = Path(harness.SHOAL).parent / "fakes" / "libemulated_cuda_module.so"
SCRIPT = harness.ROOT / "cmake" / "write_commit.cmake"


def version(program=harness.SHOAL, **environment) -> dict:
    out = subprocess.run([program, "--version", "--json"], check=True, capture_output=True,
                         env={**os.environ, **environment}).stdout
    return json.loads(out)


def kernel_sets_of_this_processor() -> list[str]:
    """As the kernel tells them, and not the program."""
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", Path("/proc/cpuinfo").read_text(),
                      re.MULTILINE)[1].split()
    avx2 = {"avx2", "fma", "f16c"}
    avx512 = avx2 | {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
    needs = {"avx512-bf16": avx512 | {"avx512_bf16"}, "avx512": avx512, "avx2": avx2,
             "neon-bf16": {"asimd", "bf16"}, "neon": {"asimd"}, "reference": set()}
    return [name for name, wanted in needs.items() if wanted <= set(found)]


class VersionTest(harness.TestCase):
    def test_text_and_json_say_the_same(self):
        text, found = harness.run("--version").stdout.decode(), version()
        self.assertTrue(text.startswith(f"shoal {found['version']}\ncommit: {found['commit']}"),
                        text)
        self.assertEqual("with uncommitted changes" in text, found["dirty"])
        sets, here = ", ".join(found["kernel_sets"]), ", ".join(found["kernel_sets_here"])
        runs = " all of them" if here == sets else f": {here}"
        self.assertIn(f"kernel sets: {sets} (this processor runs{runs})\n", text)
        self.assertEqual(found["kernel_sets_here"], kernel_sets_of_this_processor())
        self.assertIn("arithmetic: " + found["arithmetic"], text)
        self.assertEqual(found["arithmetic_here"],
                         {name: found["arithmetic"] for name in found["kernel_sets_here"]})
        self.assertIn(found["build_id"], text)

    def test_the_module_is_found_refused_or_absent(self):
        with tempfile.TemporaryDirectory() as folder:
            program, module = Path(folder) / "shoal", Path(folder) / "libshoal_cuda.so"
            shutil.copy(harness.SHOAL, program)
            self.assertIsNone(version(program)["cuda_module"])
            shutil.copy(EMULATED_MODULE, module)
            found = version(program)
            self.assertEqual(found["cuda_module"]["path"], str(module))
            self.assertEqual(found["cuda_module"]["build_id"], found["build_id"])
            text = subprocess.run([program, "--version"], check=True, capture_output=True,
                                  text=True).stdout
            self.assertIn(f"CUDA module: {module}, matches this program (build "
                          f"{found['build_id']}), CUDA ", text)
            self.assertRegex(text, r", for compute capability 8\.0, .*, and others from 8\.0 on\n")
            refused = version(program, EMULATED_GPU_BUILD_ID="0.0.0-other")["cuda_module"]
            self.assertIn("0.0.0-other", refused["refused"])
            self.assertNotIn("build_id", refused)

    def test_the_commit(self):
        def written(source: Path) -> str:
            out = Path(folder) / "commit.cc"
            subprocess.run(["cmake", "-D", f"SOURCE={source}", "-D", f"OUT={out}", "-P", SCRIPT],
                           check=True)
            return out.read_text()

        def git(*words) -> str:
            return subprocess.run(["git", "-C", source, "-c", "user.name=t", "-c",
                                   "user.email=t@example.org", *words],
                                  check=True, capture_output=True, text=True).stdout.strip()

        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "source"
            source.mkdir()
            (source / "file").write_text("1")
            self.assertIn('{"unknown", "", false}', written(source))
            git("init", "--quiet")
            git("add", "file")
            git("commit", "--quiet", "--message", "one")
            head = git("log", "-1", "--format=%H")[:12], git("log", "-1", "--format=%cs")
            self.assertIn('{"%s", "%s", false}' % head, written(source))
            before = (Path(folder) / "commit.cc").stat().st_mtime_ns
            written(source)
            self.assertEqual((Path(folder) / "commit.cc").stat().st_mtime_ns,
                             before, "an unchanged file is rewritten")
            (source / "file").write_text("2")
            self.assertIn('{"%s", "%s", true}' % head, written(source))
            # A tarball that was unpacked inside another repository does not belong to that
            # repository's commit.
            (source / "unpacked").mkdir()
            self.assertIn('{"unknown", "", false}', written(source / "unpacked"))


if __name__ == "__main__":
    harness.main()
