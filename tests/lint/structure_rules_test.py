"""Checks that the lint finds violations.

Every rule of structure.py is run on a tree that breaks it.
"""
import tempfile
import unittest
from pathlib import Path

import budgets
import cmake_targets
import plurals
import structure


class StructureRules(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = Path(self.folder.name)
        self.write("tests/CMakeLists.txt", "foreach(folder models runtime/base)\n")
        self.write("runtime/base/status.h", "#pragma once\n")
        self.write("models/weights.h", "#pragma once\n")
        self.write("server/grpc/service.h", "#pragma once\n")
        self.write("server/cli/flags.h", "#pragma once\n")

    def write(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def problems(self, path: str, text: str) -> str:
        return "\n".join(structure.check_file(self.write(path, text), self.root))

    def test_a_downward_include_is_fine(self):
        self.assertEqual(self.problems("models/weights.cc",
                                       '#include "runtime/base/status.h"\n#include <vector>\n'), "")

    def test_a_memory_order_without_its_argument(self):
        order = "  int a = b.load(std::memory_order_acquire);\n"
        argued = "  // Acquire: what b was stored after.\n"
        path = "runtime/base/thread_pool.cc"
        self.write("runtime/base/thread_pool.h", "#pragma once\n")
        self.assertIn("line 1: no comment", self.problems(path, order))
        self.assertEqual(self.problems(path, argued + order), "")
        self.assertIn("line 6: no comment", self.problems(path, argued + 4 * "  f();\n" + order))
        self.assertEqual(self.problems("runtime/base/status.cc", order), "")

    def test_the_math_of_the_c_library(self):
        self.write("models/rope.h", "#pragma once\n")
        for call in ("std::exp(x)", "std::sinf(x)", "::pow(x, y)", "__builtin_expf(x)", "expf(x)",
                     "1-logl(x)", "tanh(x)", "exp2f(x)"):
            self.assertIn("use runtime/base/ieee_math.h", self.problems("models/rope.cc", f"y = {call};\n"))
        for path in ("runtime/base/dtype", "runtime/comm/tree_sum", "runtime/comm/tcp/tree"):
            self.write(f"{path}.h", "#pragma once\n")
            self.assertIn("use runtime/base/ieee_math.h", self.problems(f"{path}.cc", "y = std::log(x);\n"))
        for fine in ("y = ieee::exp(x);\n", "y = std::sqrt(x);\n", "// std::exp(x) rounds\n",
                     "y = exp(x);\n", "a.hypot(x);\n", "my_expf(x);\n"):
            self.assertEqual(self.problems("models/rope.cc", fine), "")
        self.write("models/chat_template/operators.h", "#pragma once\n")
        self.assertEqual(self.problems("models/chat_template/operators.cc", "y = std::pow(x, y);\n"), "")

    def test_an_upward_include_is_named_with_both_layers(self):
        self.assertIn("models is layer 4, server/cli is layer 6.2",
                      self.problems("models/weights.cc", '#include "server/cli/flags.h"\n'))

    def test_folders_of_one_layer_do_not_see_each_other(self):
        self.write("runtime/engine/request.h", "#pragma once\n")
        self.assertIn("models is layer 4, runtime/engine is layer 4",
                      self.problems("models/weights.cc", '#include "runtime/engine/request.h"\n'))

    def test_rooms_see_the_rooms_below_them(self):
        for path in ("runtime/transport/facts/a.h", "runtime/transport/rungs/a.h",
                     "runtime/transport/report.h", "runtime/engine/request.h",
                     "runtime/comm/slots/a.h", "runtime/comm/tcp/a.h", "runtime/comm/spin.h"):
            self.write(path, "#pragma once\n")

        def includes(path: str, target: str) -> str:
            return self.problems(path, f'#pragma once\n#include "{target}"\n')
        self.assertEqual(includes("runtime/transport/rungs/b.h", "runtime/transport/facts/a.h"), "")
        self.assertEqual(includes("runtime/transport/remedy.h", "runtime/transport/rungs/a.h"), "")
        self.assertEqual(includes("runtime/transport/facts/b.h", "runtime/comm/tcp/a.h"), "")
        self.assertEqual(includes("runtime/comm/slots/b.h", "runtime/comm/spin.h"), "")
        self.assertIn("is layer 4.1",
                      includes("runtime/transport/facts/b.h", "runtime/transport/rungs/a.h"))
        self.assertIn("is layer 4.4",
                      includes("runtime/transport/rungs/b.h", "runtime/transport/report.h"))
        self.assertIn("is layer 3.2", includes("runtime/comm/slots/b.h", "runtime/comm/tcp/a.h"))
        self.assertIn("is layer 3.2", includes("runtime/comm/tree_sum.h", "runtime/comm/slots/a.h"))
        # The step on a floor counts only within a family.
        self.assertIn("is layer 4",
                      includes("runtime/transport/rungs/b.h", "runtime/engine/request.h"))

    def test_what_one_folder_may_see_beyond_its_layer(self):
        self.write("runtime/rank/rank.h", "#pragma once\n")
        self.assertEqual(self.problems("runtime/worker/a.h",
                                       '#pragma once\n#include "runtime/rank/rank.h"\n'), "")
        self.assertIn("is layer 5", self.problems("runtime/supervisor/a.h",
                                                  '#pragma once\n#include "runtime/rank/rank.h"\n'))

    def test_folders_do_not_include_each_other(self):
        files = [self.write("models/a.h", '#include "models/tokenizer/b.h"\n'),
                 self.write("models/tokenizer/b.h", "\n")]
        self.assertEqual(structure.check_cycles(self.root, files), [])
        files += [self.write("models/tokenizer/c.h", '#include "models/d.h"\n'),
                  self.write("models/d.h", "\n")]
        self.assertEqual(structure.check_cycles(self.root, files),
                         ["folders include each other: models -> models/tokenizer -> models"])

    def test_a_cycle_that_only_shows_from_further_away(self):
        files = [self.write("runtime/a/one/x.h", '#include "runtime/b/y.h"\n'),
                 self.write("runtime/b/y.h", '#include "runtime/a/two/z.h"\n'),
                 self.write("runtime/a/two/z.h", "\n")]
        self.assertEqual(structure.check_cycles(self.root, files),
                         ["folders include each other: runtime/a -> runtime/b -> runtime/a"])

    def test_a_source_has_a_header_of_its_own(self):
        self.assertIn("no header of its own name", self.problems("models/rope.cc", "\n"))
        self.write("models/rope.h", "#pragma once\n")
        self.assertEqual(self.problems("models/rope.cc", "\n"), "")

    def test_members_of_a_table_need_none(self):
        self.assertIn("no header of its own name",
                      self.problems("server/commands/serve_command.cc", "\n"))
        self.write("server/commands/commands.h", "#pragma once\n")
        self.assertEqual(self.problems("server/commands/serve_command.cc", "\n"), "")
        self.assertIn("no header of its own name", self.problems("server/commands/npy.cc", "\n"))
        self.assertEqual(self.problems("bench/startup.cc", "\n"), "")

    def test_budgets(self):
        self.assertEqual(self.problems("models/weights.cc", "\n" * 400), "")
        self.assertIn("401 lines", self.problems("models/weights.cc", "\n" * 401))
        self.assertIn("401 lines", self.problems("bench/engine.py", "\n" * 401))
        body = "int sum(int a) {\n" + "  ++a;\n" * 38
        self.assertEqual(self.problems("models/weights.cc", body + "}\n"), "")
        self.assertIn("line 1: sum has 41 lines",
                      self.problems("models/weights.cc", body + "  ++a;\n}\n"))

    def test_what_counts_as_a_function(self):
        text = """
#define BLOCK(x) \\
  if (x) {
namespace a::b {
/* int no() { */
struct alignas(64) S : T<int> {
  S(int a)
      : a_{a} {
  }
  template <class F, int N = (1 + 2)>
  static auto run(const F& f) -> decltype(f()) {
    const char* text = "} /* {";
    return [&] { return f('{'); }();
  }

 private:
  int a_ = {0};
};
constexpr int kTable[] = {1, 2};
enum class E : int { kA };
bool operator==(const S& a, const S& b) { return true; }
}
"""
        self.assertEqual([(name, lines) for name, _, lines in budgets.functions(text)],
                         [("S", 3), ("run", 5), ("operator==", 1)])

    def test_exceptions_that_nothing_needs(self):
        entry = "kernels/cpu/matmul.cc: block"
        self.assertIn(entry, budgets.LONG_FUNCTIONS)
        long = {"kernels/cpu/matmul.cc": "void block() {\n" + "\n" * 50 + "}\n"}
        self.assertEqual(budgets.stale_exceptions(long), [])
        self.assertIn("is listed as long, and is not", budgets.stale_exceptions({})[0])

    def test_rooms_do_not_outgrow_their_budget(self):
        room, most = next((room, most) for room, most in budgets.ROOMS.items()
                          if most > budgets.MAX_ROOM_LINES)
        texts = {f"{room}/a.h": "x\n" * (most - 10), f"{room}/below/b.cc": "x\n" * 100}
        self.assertEqual(budgets.check_rooms(texts), [])
        texts[f"{room}/c.cc"] = "x\n" * 11
        self.assertIn(f"{room}: has {most + 1} lines of code", budgets.check_rooms(texts)[0])
        self.assertIn("lower the number", budgets.check_rooms({f"{room}/a.h": "x\n"})[0])

    def libraries(self) -> str:
        return "\n".join(cmake_targets.check_libraries(self.root))

    def test_cmake_declares_what_the_includes_need(self):
        self.write("runtime/base/CMakeLists.txt", "shoal_library(shoal_base SOURCES status.cc)\n")
        self.write("runtime/base/status.cc",
                   '#include <dlfcn.h>\n#include "runtime/base/status.h"\n')
        self.write("models/CMakeLists.txt",
                   "shoal_library(shoal_models\n  SOURCES weights.cc\n  DEPS shoal_comm)\n")
        self.write("models/weights.cc", '#include "models/tokenizer/bpe.h"\n')
        self.write("models/tokenizer/bpe.h", '#include "runtime/base/status.h"\n')
        self.assertEqual(self.libraries().splitlines(),
                         ['models/CMakeLists.txt: shoal_models does not declare shoal_base, '
                          'but models/tokenizer/bpe.h includes "runtime/base/status.h"',
                          "models/CMakeLists.txt: shoal_models declares shoal_comm, "
                          "which none of its files includes",
                          'runtime/base/CMakeLists.txt: shoal_base does not declare '
                          '${CMAKE_DL_LIBS}, but runtime/base/status.cc includes "dlfcn.h"'])
        self.write("models/CMakeLists.txt",
                   "shoal_library(shoal_models SOURCES weights.cc DEPS shoal_base)\n")
        self.write("runtime/base/CMakeLists.txt",
                   "shoal_library(shoal_base SOURCES status.cc DEPS ${CMAKE_DL_LIBS})\n")
        self.assertEqual(self.libraries(), "")

    def test_a_folder_has_one_library_of_its_own_sources(self):
        self.write("models/CMakeLists.txt",
                   "shoal_library(a SOURCES ../x.cc)\nshoal_library(b SOURCES y.cc)\n")
        self.assertIn("a folder has one library", self.libraries())
        self.write("models/CMakeLists.txt", "shoal_library(a SOURCES ../x.cc)\n")
        self.assertIn("compiles ../x.cc of another folder", self.libraries())

    def test_the_documented_folders_are_those_of_the_tree(self):
        self.write("docs/architecture.md",
                   "## 3. Folders\n\n```\nruntime/base/  (1) words\nruntime/gone/  (2) ghosts\n"
                   "models/ (4)\nserver/cli/ (6)\n```\n\n## 4. More\n")
        self.assertEqual(structure.check_documented(self.root),
                         ["docs/architecture.md: section 3 names runtime/gone/, which is not in "
                          "the tree", "docs/architecture.md: section 3 does not name server/grpc/",
                          "docs/architecture.md: section 3 does not name server/",
                          "docs/architecture.md: section 3 does not name tests/"])
        self.write("docs/architecture.md", "## 3. Folders\n\nNo list.\n")
        self.assertEqual(structure.check_documented(self.root),
                         ["docs/architecture.md: section 3 has no list of folders"])

    def test_includes_are_written_from_the_root(self):
        self.assertIn("written from the root",
                      self.problems("models/weights.cc", '#include "weights.h"\n'))
        self.assertIn("written from the root",
                      self.problems("models/weights.cc", '#include "../server/cli/flags.h"\n'))

    def test_generated_code_stays_behind_its_folder(self):
        self.assertIn("only server/commands, server/grpc, server/grpc/connections may see",
                      self.problems("models/weights.cc", '#include "openengine/v1/x.pb.h"\n'))
        self.assertEqual(self.problems("server/grpc/service.cc",
                                       '#include "openengine/v1/x.pb.h"\n'), "")

    def test_grpc_stays_behind_its_folders(self):
        include = "#include <grpcpp/grpcpp.h>\n"
        self.assertIn("server/grpc/connections, tests may see",
                      self.problems("server/http/routes.cc", include))
        self.assertIn("may see", self.problems("server/commands/serve_command.cc", include))
        self.assertNotIn("may see", self.problems("server/commands/client_command.cc", include))
        self.assertNotIn("may see", self.problems("server/grpc/connections/call.cc", include))

    def test_a_header_without_pragma_once(self):
        self.assertIn("#pragma once", self.problems("models/weights.h", "int x();\n"))

    def test_an_unregistered_test(self):
        self.assertIn("does not register", self.problems("tests/models/rope_test.cc", "\n"))
        self.write("tests/models/CMakeLists.txt", "shoal_test(rope_test DEPS shoal_models)\n")
        self.assertEqual(self.problems("tests/models/rope_test.cc", "\n"), "")

    def test_a_registration_that_nothing_adds(self):
        self.write("tests/elsewhere/CMakeLists.txt", "shoal_test(rope_test)\n")
        self.assertIn("which nothing adds", self.problems("tests/elsewhere/rope_test.cc", "\n"))

    def test_code_that_decides_by_an_errors_place_or_wording(self):
        for line in ('if (cause.where.starts_with("comm/")) return 69;',
                     'return status.message().find("prompt") == 0;',
                     'if (cause.where == "a.cc:1") return;'):
            self.assertIn("place or wording", self.problems("runtime/base/policy.h", f"{line}\n"))
        self.assertEqual(self.problems("runtime/base/policy.h",
                                       "#pragma once\nline += cause.where;\n"), "")

    def test_names_and_readmes(self):
        self.assertIn("snake_case", self.problems("models/ShardPlan.cc", "\n"))
        self.assertIn("29 lines", self.problems("models/README.md", "line\n" * 29))
        self.assertEqual(self.problems("models/README.md", "line\n" * 28), "")

    def test_a_test_may_not_overwrite_a_sanitizers_options(self):
        words = '["env", "%sSAN_OPTIONS=detect_leaks=0", SHOAL]\n'
        for sanitizer, found in (("A", True), ("T", True), ("L", False)):
            self.assertEqual("overwrites" in self.problems("tests/e2e/a.py", words % sanitizer),
                             found, sanitizer)

    def test_a_number_beside_a_plural(self):
        for text in ('cat(plan.size(), " ranks")', 'cat(a[1],\n    " other files are")',
                     'cat(count, " KV blocks")', 'cat(names.size(), " arguments, not ")',
                     'cat(ranks, " fit into ")', 'cat(least, " are needed")',
                     'cat(counted(list.size(), "line"), " are wrong")'):
            self.assertIn("use counted()", self.problems("runtime/base/a.h",
                                                         f"#pragma once\n{text}\n"), text)
        for text in ('cat(counted(plan.size(), "rank"), " of ", kMost, " blocks")',
                     'cat(name, " has no files of a model")', 'cat(rate, " tokens/s")',
                     'cat(scope, " keeps ranks from it")', 'cat(bytes_text(n), " are free")',
                     'cat("at most ", kMost, " are read")', 'cat(counted(n, "is", "are"), " needed")',
                     'cat(why, " aren\'t here, but ", ranks)', 'cat(what, " fitted")'):
            self.assertEqual(self.problems("runtime/base/a.h", f"#pragma once\n{text}\n"), "", text)
        path = "server/commands/needs_table.cc"
        self.assertEqual(plurals.check_plurals(path, 'cat(ranks, " ranks")'), [])
        self.assertIn(f"tests/lint/plurals.py: {path}: ranks is listed, and does not stand there",
                      plurals.stale_plurals({path: "no number"}))

    def test_left_over_marks_and_machine_paths(self):
        self.assertIn("line 2", self.problems("models/weights.cc", "\n// TO" + "DO later\n"))
        self.assertIn("a path of one machine",
                      self.problems("models/weights.cc", "// see /wor" + "k/x\n"))


if __name__ == "__main__":
    unittest.main()
