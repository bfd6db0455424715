"""What the scripts say and want before they download anything."""
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import harness
from harness import GUARD, ROOT, USAGE


def script(name: str, *words, **popen) -> subprocess.CompletedProcess:
    return subprocess.run([shutil.which("bash"), ROOT / "scripts" / name, *words],
                          capture_output=True, text=True, timeout=GUARD,
                          stdin=subprocess.DEVNULL, **popen)


def wanted(group: str) -> list[str]:
    """The packages of a group. Where there is no dpkg, install-deps only names them."""
    return script("install-deps", group, env={"PATH": "/nowhere"}).stderr.split()


class Usage(unittest.TestCase):
    def test_help_is_the_comment_at_the_top(self):
        for name in ("demo", "test"):
            top = re.match(r"#!.*\n((?:#.*\n)+)", (ROOT / "scripts" / name).read_text())[1]
            for word in ("--help", "-h"):
                asked = script(name, word)
                self.assertEqual((asked.returncode, asked.stderr), (0, ""))
                self.assertEqual(asked.stdout, re.sub(r"(?m)^# ?", "", top))


class GetModel(unittest.TestCase):
    def test_it_lists_what_it_knows(self):
        listed = script("get-model", "--help")
        self.assertEqual((listed.returncode, listed.stderr), (0, ""))
        self.assertIn("It needs network access to PyPI", listed.stdout)
        self.assertIn("and says how to serve it", listed.stdout)
        self.assertIn("\n  smollm2 ", listed.stdout)
        download = 'hf download OWNER/NAME --exclude "*/*" --local-dir models/NAME'
        self.assertTrue(listed.stdout.endswith(
            "\nany other model (hf comes with pipx install huggingface_hub):\n"
            f"  {download} && shoal serve models/NAME\n"))
        readme = (ROOT / "README.md").read_text()
        for line in ("scripts/get-model smollm2 && shoal serve models/smollm2",
                     f"{download} && shoal serve models/NAME"):
            self.assertIn(f"\n{line}", readme)
        for words, why in (((), "NAME is missing"), (("smollm3",), 'unknown model "smollm3"')):
            refused = script("get-model", *words)
            self.assertEqual((refused.returncode, refused.stdout), (USAGE, ""))
            self.assertEqual(refused.stderr, f"get-model: {why}\n{listed.stdout}")

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


class CheckCublas(unittest.TestCase):
    def test_words_that_it_does_not_know_are_refused_before_anything_happens(self):
        for words in (("--newest",), ("--download", "libcublasLt.so.12")):
            refused = script("check-cublas", *words)
            self.assertEqual((refused.returncode, refused.stdout), (USAGE, ""))
            self.assertTrue(refused.stderr.startswith("check-cublas: "), refused.stderr)

    @unittest.skipUnless(platform.machine() == "x86_64", "the script is for x86-64")
    def test_without_a_library_nothing_is_checked(self):
        """The script runs in a tree that contains nothing else, so it cannot build anything
        either."""
        with tempfile.TemporaryDirectory() as tree:
            scripts = Path(tree, "scripts")
            scripts.mkdir()
            shutil.copy(ROOT / "scripts" / "check-cublas", scripts)
            done = subprocess.run([scripts / "check-cublas"], capture_output=True, text=True,
                                  timeout=GUARD, stdin=subprocess.DEVNULL)
        self.assertEqual((done.returncode, done.stderr), (77, ""))
        self.assertIn("skipped: there is no libcublasLt in build/cublas", done.stdout)


class Tidy(unittest.TestCase):
    def test_each_source_is_checked_on_one_of_three_days(self):
        """Programs of the same names stand in for cmake, and for clang-tidy one that prints its words."""
        with tempfile.TemporaryDirectory() as folder:
            for name, does in (("cmake", "exit 0"), ("clang-tidy-14", 'printf "%s\\n" "$@"')):
                program = Path(folder) / name
                program.write_text(f"#!/bin/sh\n{does}\n")
                program.chmod(0o755)
            path = {"PATH": f"{folder}:{os.environ['PATH']}"}
            days = [re.findall(r"(?m)^\S+\.cc$", script("tidy", *words, env=path).stdout)
                    for words in ((), ("--day", "0"), ("--day", "20782"), ("--day", "20783"))]
        everything, *shares = days
        self.assertGreater(len(everything), 300)
        self.assertEqual(sorted(everything), sorted(sum(shares, [])))
        for share in shares:
            self.assertLess(len(share), len(everything) / 2)

    def test_a_day_is_a_number(self):
        for words in (("--day",), ("--day", "today"), ("--day", "1", "server/main.cc")):
            refused = script("tidy", *words)
            self.assertEqual(refused.returncode, USAGE, refused.stderr)
            self.assertIn("--day takes a number", refused.stderr)


class CheckArm(unittest.TestCase):
    """What scripts/check-arm would do, because no Arm machine runs it when something is renamed."""

    @classmethod
    def setUpClass(cls):
        cls.text = (ROOT / "scripts" / "check-arm").read_text()

    def test_another_machine_is_refused_before_anything_happens(self):
        self.assertEqual(subprocess.run(["bash", "-n", ROOT / "scripts" / "check-arm"]).returncode, 0)
        if platform.machine() == "aarch64":
            self.skipTest("here it would begin")
        refused = script("check-arm")
        self.assertEqual((refused.returncode, refused.stdout), (USAGE, ""))
        self.assertIn("for 64-bit Arm", refused.stderr)

    @unittest.skipIf("SHOAL_TEST_SANITIZED" in os.environ, "it runs in the release build, which alone "
                     "has the tests for a GPU")
    def test_the_tests_and_labels_that_it_names_are_there(self):
        shown = subprocess.run(["ctest", "--test-dir", Path(harness.SHOAL).resolve().parent,
                                "--show-only=json-v1"], capture_output=True, check=True, text=True)
        tests = json.loads(shown.stdout)["tests"]
        names = [test["name"] for test in tests]
        labels = {label for test in tests for entry in test.get("properties", [])
                  if entry["name"] == "LABELS" for label in entry["value"]}
        regexes = re.findall(r"--tests-regex '([^']+)'", self.text)
        self.assertGreaterEqual(len(regexes), 2)
        for regex in regexes:
            self.assertEqual(len([name for name in names if re.search(regex, name)]), 1, regex)
        named = re.findall(r"--label-(?:regex|exclude) '\^\(?([\w|]+)\)?\$'", self.text)
        self.assertEqual(len(named), self.text.count("--label-"))
        self.assertLessEqual(set("|".join(named).split("|")), labels)

    def test_it_leaves_out_what_it_does_not_fetch(self):
        excluded = re.findall(r"--label-exclude '\^\(([\w|]+)\)\$'", self.text)
        self.assertEqual(len(excluded), 2)
        for label, script_ in (("real", "get-model"), ("clients", "get-clients")):
            self.assertNotIn(f"scripts/{script_}", self.text)
            for labels in excluded:
                self.assertIn(label, labels.split("|"))

    def test_it_finds_the_kernel_sets_and_the_transports(self):
        read = re.search(r"^for kernels in (\$\(.*\)); do$", self.text, re.MULTILINE)[1]
        found = subprocess.run(["bash", "-c", f"shoal=$1; echo {read}", "bash", harness.SHOAL],
                               capture_output=True, check=True, text=True)
        self.assertEqual(found.stdout.split(), harness.kernel_sets())
        transports = re.search(r"^for transport in (.*); do$", self.text, re.MULTILINE)[1]
        needs = json.loads(harness.run("doctor", "--needs", "--json").stdout)
        self.assertEqual(set(transports.split()), {rung["rung"] for rung in needs["rungs"]})

    def test_a_wrong_kernel_has_the_words_that_it_looks_for(self):
        words = re.search(r"--version \| grep '([^']+)'", self.text.replace('"$shoal" ', ""))[1]
        self.assertIn(words, (ROOT / "server/commands/version_command.cc").read_text())


if __name__ == "__main__":
    unittest.main()
