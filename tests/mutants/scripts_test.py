"""run.py and draw.py do what README.md says, on a tree small enough to build at once."""
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
# A program that is its own build: "shoal" is copied, and the tests run it.
FILES = {
    "CMakePresets.json": json.dumps({"version": 3, "configurePresets": [
        {"name": name, "generator": "Ninja", "binaryDir": "${sourceDir}/build/${presetName}"}
        for name in ("release", "tsan")]}),
    "CMakeLists.txt": """cmake_minimum_required(VERSION 3.22)
project(toy LANGUAGES NONE)
enable_testing()
add_custom_command(OUTPUT program COMMAND sh -n ${CMAKE_SOURCE_DIR}/program.sh COMMAND ${CMAKE_COMMAND} -E copy ${CMAKE_SOURCE_DIR}/program.sh program
                   DEPENDS ${CMAKE_SOURCE_DIR}/program.sh)
add_custom_target(all_of_it DEPENDS program)
add_test(NAME toy/sum COMMAND sh -c "test $(sh $0) = 5" ${CMAKE_BINARY_DIR}/program)
add_test(NAME toy/nothing COMMAND true)
add_test(NAME toy/broken COMMAND false)
""",
    "program.sh": "two=2\nthree=3\necho $((two + three))\n",
    "models/sum.cc": '#include "models/sum.h"\nint sum(int a, int b) {\n  if (a == 0) return b;\n  int c = a + b;\n'
                     "  c = c + 1;\n  return c - 1;\n}\n",
    "models/sum.h": "#pragma once\nint sum(int a, int b);\n",
    ".gitignore": "build/\n",
}
HARM = "--- a/program.sh\n+++ b/program.sh\n@@ -1,3 +1,3 @@\n two=2\n-three=3\n+three=4\n echo $((two + three))\n"
NO_HARM = HARM.replace("+three=4", "+three=3 # the same")


class Scripts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name) / "toy"
        for name, text in FILES.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)
        subprocess.run(["git", "init", "-q"], cwd=self.root, check=True)
        subprocess.run(["git", "add", "."], cwd=self.root, check=True)

    def script(self, name: str, *arguments) -> subprocess.CompletedProcess:
        return subprocess.run([sys.executable, HERE / name, "--root", self.root, *map(str, arguments)],
                              capture_output=True, text=True)

    def mutant(self, diff: str, expect: str = "^toy/sum$", kind: str = "wrong bit", preset: str = "release") -> str:
        patch = self.root / "build" / "mutant.patch"
        patch.parent.mkdir(exist_ok=True)
        patch.write_text(f"A toy.\nkind: {kind}\npreset: {preset}\nexpect: {expect}\n\n{diff}")
        done = self.script("run.py", patch)
        self.last_code = done.returncode
        return done.stdout + done.stderr

    def test_harm_is_caught_and_taken_back(self):
        for _ in range(2):
            self.assertIn("wrong bit: caught by toy/sum", self.mutant(HARM))
            self.assertEqual(self.last_code, 0)
        self.assertIn("three=3", (self.root / "program.sh").read_text())

    def test_a_survivor_is_an_error(self):
        self.assertIn("SURVIVED", self.mutant(NO_HARM))
        self.assertEqual(self.last_code, 1)
        self.assertIn("SURVIVED", self.mutant(HARM, expect="^toy/nothing$"))

    def test_the_report_of_a_sanitizer_is_noticed(self):
        harm = HARM.replace("+three=4", "+three=3; echo race > reports/toy__sum.7")
        self.assertIn("wrong bit: caught by toy/sum (tsan)", self.mutant(harm, preset="tsan"))

    def test_a_patch_that_shows_nothing_is_an_error(self):
        for said, arguments in (("does not apply", {"diff": HARM.replace("-three=3", "-three=9")}),
                                ("runs no test named like", {"diff": HARM, "expect": "^toy/sums$"}),
                                ("toy/broken fails without the patch", {"diff": HARM, "expect": "toy/(sum|broken)"}),
                                ("is none of", {"diff": HARM, "kind": "bad luck"}),
                                ("is none of", {"diff": HARM, "preset": "dev"}),
                                ("does not build", {"diff": HARM.replace("+three=4", "+three=$(")})):
            with self.subTest(said):
                self.assertIn(said, self.mutant(**arguments))
                self.assertEqual(self.last_code, 1)

    def draw(self, seed: int) -> dict[str, str]:
        out = self.root / "build" / f"drawn{seed}"
        build = self.root / "build" / "database"
        build.mkdir(parents=True, exist_ok=True)
        source = str(self.root / "models/sum.cc")
        (build / "compile_commands.json").write_text(json.dumps([
            {"directory": str(self.root), "file": source, "command": f"g++ -Wall -Werror -I{self.root} -o x.o -c {source}"}]))
        done = self.script("draw.py", "--seed", seed, "--count", 3, "--out", out, "--build", build)
        self.assertEqual(done.returncode, 0, done.stderr)
        return {file.name: file.read_text() for file in sorted(out.glob("*.patch"))}

    def test_drawn_mutants_apply_and_depend_on_the_seed_alone(self):
        drawn = self.draw(1)
        self.assertEqual(len(drawn), 3)
        for name, text in drawn.items():
            self.assertIn("kind: drawn\npreset: release\nexpect: ^(models/|", text)
            done = subprocess.run(["git", "apply", "--check", "-"], input=text, text=True, cwd=self.root, capture_output=True)
            self.assertEqual(done.returncode, 0, f"{name}: {done.stderr}")
        self.assertEqual(drawn, self.draw(1))
        self.assertNotEqual(list(drawn.values()), list(self.draw(2).values()))


if __name__ == "__main__":
    unittest.main()
