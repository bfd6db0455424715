"""The packages for 64-bit Arm, made and tried on another machine: package_arm64_test.py BUILD

The program of the .tar.gz runs under the emulator, with the libraries that it brings.
"""
import json
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import harness

BUILD = Path(sys.argv.pop(1))
REQUEST = ("--prompt", "In the beginning", "--max-tokens", "8", "--seed", "5", "-tp", "2", "--json")
ELF_OF_ARM = 183  # EM_AARCH64


class PackageArm64(harness.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.work = Path(folder.name)
        subprocess.run([harness.ROOT / "scripts" / "package", "--build", BUILD, "--out", self.work],
                       check=True, capture_output=True)

    def only(self, pattern: str) -> Path:
        (found,) = self.work.glob(pattern)
        return found

    def answer(self, program) -> list[int]:
        out = subprocess.run([*harness.EMULATOR, program, "generate", harness.DEMO, *REQUEST],
                             check=True, capture_output=True, timeout=4 * harness.GUARD).stdout
        return json.loads(out)["token_ids"]

    def test_the_archive_runs_with_its_own_libraries(self):
        with tarfile.open(self.only("shoal-*-linux-aarch64.tar.gz")) as archive:
            archive.extractall(self.work / "tree")
        (tree,) = (self.work / "tree").iterdir()
        libraries = list((tree / "lib" / "shoal").glob("*.so*"))
        self.assertGreater(len(libraries), 10)
        for file in [tree / "bin" / "shoal", *libraries]:
            self.assertEqual(int.from_bytes(file.read_bytes()[18:20], "little"), ELF_OF_ARM, file)
        loaded = subprocess.run([*harness.EMULATOR, "/lib/ld-linux-aarch64.so.1", "--list",
                                 tree / "bin" / "shoal"], check=True, capture_output=True, text=True)
        for library in libraries:
            self.assertIn(f"{library.name} => {tree}/bin/../lib/shoal/{library.name} ",
                          loaded.stdout)
        self.assertEqual(self.answer(tree / "bin" / "shoal"), self.answer(harness.SHOAL))

    def test_the_others_are_for_the_same_machine(self):
        control = subprocess.run(["dpkg-deb", "--field", self.only("shoal_*_arm64.deb"),
                                  "Architecture"], check=True, capture_output=True, text=True)
        self.assertEqual(control.stdout.strip(), "arm64")
        with zipfile.ZipFile(self.only("shoal-*-manylinux_2_34_aarch64.whl")) as wheel:
            (program,) = [name for name in wheel.namelist() if name.endswith("/scripts/shoal")]
            self.assertEqual(int.from_bytes(wheel.read(program)[18:20], "little"), ELF_OF_ARM)


if __name__ == "__main__":
    harness.main()
