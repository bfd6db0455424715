"""The lint finds what it is for: every rule of structure.py against a tree that breaks it."""
import tempfile
import unittest
from pathlib import Path

import structure


class StructureRules(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = Path(self.folder.name)
        self.write("tests/CMakeLists.txt", "foreach(folder models runtime/base)\n")
        self.write("runtime/base/status.h", "#pragma once\n")
        self.write("server/cli/flags.h", "#pragma once\n")

    def write(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def problems(self, path: str, text: str) -> str:
        return "\n".join(structure.check_file(self.write(path, text), self.root))

    def test_a_downward_include_is_fine(self):
        self.assertEqual(self.problems("models/weights.cc", '#include "runtime/base/status.h"\n#include <vector>\n'), "")

    def test_an_upward_include_is_named_with_both_layers(self):
        self.assertIn("models is layer 4, server is layer 6", self.problems("models/weights.cc", '#include "server/cli/flags.h"\n'))

    def test_folders_of_one_layer_do_not_see_each_other(self):
        self.write("runtime/engine/request.h", "#pragma once\n")
        self.assertIn("models is layer 4, runtime/engine is layer 4",
                      self.problems("models/weights.cc", '#include "runtime/engine/request.h"\n'))

    def test_includes_are_written_from_the_root(self):
        self.assertIn("written from the root", self.problems("models/weights.cc", '#include "weights.h"\n'))
        self.assertIn("written from the root", self.problems("models/weights.cc", '#include "../server/cli/flags.h"\n'))

    def test_generated_code_stays_behind_its_folder(self):
        self.assertIn("only server may see", self.problems("models/weights.cc", '#include "openengine/v1/x.pb.h"\n'))
        self.assertEqual(self.problems("server/service.cc", '#include "openengine/v1/x.pb.h"\n'), "")

    def test_a_header_without_pragma_once(self):
        self.assertIn("#pragma once", self.problems("models/weights.h", "int x();\n"))

    def test_an_unregistered_test(self):
        self.assertIn("does not register", self.problems("tests/models/rope_test.cc", "\n"))
        self.write("tests/models/CMakeLists.txt", "shoal_test(rope_test DEPS shoal_models)\n")
        self.assertEqual(self.problems("tests/models/rope_test.cc", "\n"), "")

    def test_a_registration_that_nothing_adds(self):
        self.write("tests/elsewhere/CMakeLists.txt", "shoal_test(rope_test)\n")
        self.assertIn("which nothing adds", self.problems("tests/elsewhere/rope_test.cc", "\n"))

    def test_names_and_readmes(self):
        self.assertIn("snake_case", self.problems("models/ShardPlan.cc", "\n"))
        self.assertIn("21 lines", self.problems("models/README.md", "line\n" * 21))

    def test_left_over_marks_and_machine_paths(self):
        self.assertIn("line 2", self.problems("models/weights.cc", "\n// TO" + "DO later\n"))
        self.assertIn("a path of one machine", self.problems("models/weights.cc", "// see /wor" + "k/x\n"))


if __name__ == "__main__":
    unittest.main()
