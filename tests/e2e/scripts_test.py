"""What the scripts say and want before they download anything."""
import shutil
import subprocess
import unittest

from harness import GUARD, ROOT, USAGE


def script(name: str, *words, **popen) -> subprocess.CompletedProcess:
    return subprocess.run([shutil.which("bash"), ROOT / "scripts" / name, *words],
                          capture_output=True, text=True, timeout=GUARD,
                          stdin=subprocess.DEVNULL, **popen)


def wanted(group: str) -> list[str]:
    """The packages of a group. Where there is no dpkg, install-deps only names them."""
    return script("install-deps", group, env={"PATH": "/nowhere"}).stderr.split()


class GetModel(unittest.TestCase):
    def test_it_lists_what_it_knows(self):
        listed = script("get-model", "--help")
        self.assertEqual((listed.returncode, listed.stderr), (0, ""))
        self.assertIn("\n  smollm2 ", listed.stdout)
        for words in ((), ("smollm3",)):
            refused = script("get-model", *words)
            self.assertEqual((refused.returncode, refused.stdout), (USAGE, ""))
            self.assertTrue(refused.stderr.endswith(listed.stdout), refused.stderr)
        self.assertTrue(refused.stderr.startswith('get-model: unknown model "smollm3"\n'))

    def test_groups_want_no_more_than_they_need(self):
        self.assertIn("python3-venv", wanted("model"))
        self.assertIn("install-deps model", (ROOT / "scripts" / "get-model").read_text())
        self.assertIn("nlohmann-json3-dev", wanted("static"))
        for group in ("model", "static"):
            for package in ("clang-14", "libdnnl-dev", "libgrpc++-dev"):
                self.assertNotIn(package, wanted(group))
                self.assertIn(package, wanted("test"))


class CheckNccl(unittest.TestCase):
    def test_words_that_it_does_not_know_are_refused_before_anything_happens(self):
        for words in (("--newest",), ("--download", "libnccl.so.2")):
            refused = script("check-nccl", *words)
            self.assertEqual((refused.returncode, refused.stdout), (USAGE, ""))
            self.assertTrue(refused.stderr.startswith("check-nccl: "), refused.stderr)


if __name__ == "__main__":
    unittest.main()
