"""The walk of one request (docs/architecture.md, section 4) must match the code: walk_test.py ROOT.

Each row names a function, which must be defined in the row's file, and a shape, which must be a
type that the code declares and that occurs in the function's signature or body.
"""
import re
import sys
import unittest
from pathlib import Path

ROOT = Path(sys.argv.pop(1)) if len(sys.argv) > 1 else Path(__file__).parents[2]
ROW = re.compile(r"^\| (\d+) \| `([\w:]+)` \| [^|]+ \| (?:bytes of )?`(\w+)` \| ([\w/.]+) \|$", re.MULTILINE)
MOST_HOPS = 9
SKIPPED = {"build", ".git", ".cache", "tests", "bench"}


def section(text: str) -> str:
    return text.split("\n## 4. ")[1].split("\n## ")[0]


def sources(*suffixes: str) -> list[Path]:
    folders = [entry for entry in ROOT.iterdir() if entry.is_dir() and entry.name not in SKIPPED]
    return [file for folder in folders for file in sorted(folder.rglob("*"))
            if file.suffix in suffixes]


def definitions(name: str, code: str) -> list[str]:
    """Every definition of a function, signature and body, whether it is in its class or outside as
    Class::function.
    """
    owner, _, function = name.rpartition("::")
    found = []
    for indent, spelled in (("", name), ("  ", function)) if owner else (("", name),):
        for match in re.finditer(rf"^{indent}\w(?:[^\n;=]*[ &*])?{re.escape(spelled)}\(", code,
                                 re.MULTILINE):
            end = re.compile(rf"^{indent}}}", re.MULTILINE).search(code, match.end())
            text = code[match.start():end.end()] if end else ""
            if "{" not in text or ";" in text.split("{")[0]:
                continue  # it is a declaration or a call
            if indent and not re.search(rf"^class {owner}\b[^;]*?{{", code[:match.start()],
                                        re.MULTILINE):
                continue
            found.append(text)
    return found


def declared(shape: str, texts: list[str]) -> bool:
    # A struct or class (perhaps nested, and defined outside), an alias, or a message of a .proto
    # file.
    pattern = re.compile(rf"^\s*(?:(?:struct|class|message) (?:\w+::)*{shape}\b[^;]*?{{|using "
                         rf"{shape} =)", re.MULTILINE)
    return any(pattern.search(text) for text in texts)


def problems(text: str, texts: list[str]) -> list[str]:
    found = []
    for hop, function, shape, path in ROW.findall(text):
        if not (ROOT / path).is_file():
            found.append(f"hop {hop}: there is no file {path}")
            continue
        bodies = definitions(function, (ROOT / path).read_text())
        if not bodies:
            found.append(f"hop {hop}: {path} does not define {function}")
        elif not any(re.search(rf"\b{shape}\b", body) for body in bodies):
            found.append(f"hop {hop}: {function} in {path} does not name {shape}")
        if not declared(shape, texts):
            found.append(f"hop {hop}: the code declares no type {shape}")
    return found


class Walk(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.text = section((ROOT / "docs" / "architecture.md").read_text())
        cls.texts = [file.read_text() for file in sources(".h", ".cc", ".proto")]

    def test_the_tables_are_the_code(self):
        self.assertEqual(problems(self.text, self.texts), [])

    def test_every_row_is_read_and_counted(self):
        hops = [int(row[0]) for row in ROW.findall(self.text)]
        back = hops.index(1, 1)
        self.assertEqual(hops, [*range(1, back + 1), *range(1, len(hops) - back + 1)])
        self.assertLessEqual(max(hops), MOST_HOPS)
        rows = [line for line in self.text.splitlines() if re.match(r"\| \d", line)]
        self.assertEqual(len(hops), len(rows), "a row in another form would not be checked")

    def test_another_name_is_found(self):
        for hop, function, shape, path in ROW.findall(self.text):
            for old, new in ((function, function + "_then"), (shape, shape + \
                             "Then"), (path, path.replace(".cc", "_then.cc"))):
                row = f"| {hop} | `{function}` | x | `{shape}` | {path} |"
                with self.subTest(row=row, old=old):
                    self.assertEqual(problems(row, self.texts), [])
                    self.assertNotEqual(problems(row.replace(old, new), self.texts), [])

    def test_one_place_ends_a_sequence(self):
        calls = r"\bscheduler_?(?:\.|->)finish\("
        found = [file.relative_to(ROOT).as_posix() for file in sources(".h", ".cc")
                 for _ in re.findall(calls, file.read_text())]
        self.assertEqual(found, ["server/serving/inference_loop.cc"])
        ends = definitions("InferenceLoop::take_out", (ROOT / found[0]).read_text())
        self.assertTrue(any(re.search(calls, body) for body in ends))

    def test_a_declaration_or_a_call_is_no_definition(self):
        self.assertEqual(definitions("Box::open", "int Box::open(int a);\n"), [])
        self.assertEqual(definitions("open", "void f() {\n  open(1);\n}\n"), [])
        self.assertEqual(definitions("Box::open", "class Lid {\n  int open() {\n  }\n};\n"), [])
        self.assertEqual(len(
            definitions("Box::open", "class Box {\n  int open() {\n    return 1;\n  }\n};\n")), 1)
        self.assertEqual(len(definitions("Box::open",
                                         "Result<int> Box::open() {\n  return 1;\n}\n")), 1)


if __name__ == "__main__":
    unittest.main()
