#include "kernels/kernel_table.h"
#include "runtime/base/log.h"
#include "runtime/base/text_values.h"
#include "runtime/base/thread_pool.h"
#include "runtime/device/module_loader.h"
#include "runtime/transport/rungs/gpu_checks.h"
#include "runtime/worker/arithmetic.h"
#include "server/cli/command_io.h"
#include "server/cli/exit_code.h"
#include "server/commands/build_commit.h"
#include "server/commands/commands.h"

namespace shoal {
namespace {

/// The CUDA module that ranks would load, or why they could not load it.
struct FoundModule {
  std::string path;                         ///< empty if there is no such file
  const ShoalCudaModule* module = nullptr;  ///< nullptr if there is none, or if it was refused
  std::string refused;                      ///< the loader's reason
};

FoundModule look_for_module() {
  FoundModule found;
  const Result<std::string> path = find_cuda_module("");
  if (!path.ok()) return found;
  found.path = *path;
  const Result<const ShoalCudaModule*> module = load_cuda_module(*path);
  if (module.ok()) {
    found.module = *module;
  } else {
    found.refused = module.status().message();
  }
  return found;
}

std::string quoted(std::string_view text) {
  return cat("\"", json_escape(text), "\"");
}

std::string module_text(const FoundModule& found) {
  if (found.path.empty()) return cat("none (build ", cuda_module_build_id(), " would fit)");
  if (found.module == nullptr) return cat("refused: ", found.refused);
  const int version = found.module->cuda_runtime_version;
  // The loader refuses a module of another build. Its id has a hash of sources and no commit.
  return cat(found.path, ", matches this program (build ", found.module->build_id, "), CUDA ",
             version / 1000, ".", version % 1000 / 10, ", for ",
             shown_architectures(found.module->architectures));
}

std::string module_json(const FoundModule& found) {
  if (found.path.empty()) return "null";
  const std::string path = cat("{\"path\":", quoted(found.path));
  if (found.module == nullptr) return cat(path, ",\"refused\":", quoted(found.refused), "}");
  return cat(path, ",\"build_id\":", quoted(found.module->build_id),
             ",\"cuda_runtime_version\":", found.module->cuda_runtime_version,
             ",\"architectures\":", quoted(found.module->architectures), "}");
}

/// The fingerprint of a kernel set on this processor.
std::string arithmetic_of(const KernelTable& table) {
  const Result<ArithmeticFingerprint> fingerprint = compute_fingerprint(table);
  return fingerprint.ok() ? fingerprint->text() : fingerprint.status().to_string();
}

std::string arithmetic_text() {
  const std::string expected = expected_fingerprint().text();
  std::string wrong;
  for (const KernelTable* table : available_kernels()) {
    if (const std::string here = arithmetic_of(*table); here != expected)
      wrong += cat("; here ", table->name, " gives ", here, ", which is wrong");
  }
  return wrong.empty() ? cat(expected, " (all kernel sets here give this)") : cat(expected, wrong);
}

std::string arithmetic_json() {
  std::string here;
  for (const KernelTable* table : available_kernels())
    here += cat(here.empty() ? "" : ",", quoted(table->name), ":", quoted(arithmetic_of(*table)));
  return cat("\"arithmetic\":", quoted(expected_fingerprint().text()), ",\"arithmetic_here\":{",
             here, "}");
}

std::string version_text(const BuildCommit& commit, const FoundModule& found) {
  std::string built_in, running;
  for (const char* name : built_in_kernels()) built_in += cat(built_in.empty() ? "" : ", ", name);
  for (const KernelTable* table : available_kernels())
    running += cat(running.empty() ? "" : ", ", table->name);
  return cat("shoal ", SHOAL_VERSION, "\ncommit: ", commit.id,
             *commit.date == 0 ? "" : cat(" (", commit.date, ")"),
             commit.dirty ? ", with uncommitted changes" : "", "\nkernel sets: ", built_in,
             running == built_in ? " (this processor runs all of them)"
                                 : cat(" (this processor runs: ", running, ")"),
             "\narithmetic: ", arithmetic_text(), "\nCUDA module: ", module_text(found), "\n");
}

std::string version_json(const BuildCommit& commit, const FoundModule& found) {
  std::string built_in, running;
  for (const char* name : built_in_kernels())
    built_in += cat(built_in.empty() ? "" : ",", quoted(name));
  for (const KernelTable* table : available_kernels())
    running += cat(running.empty() ? "" : ",", quoted(table->name));
  return cat("{\"version\":", quoted(SHOAL_VERSION), ",\"commit\":", quoted(commit.id),
             ",\"commit_date\":", quoted(commit.date),
             ",\"dirty\":", commit.dirty ? "true" : "false",
             ",\"build_id\":", quoted(cuda_module_build_id()), ",\"kernel_sets\":[", built_in,
             "],\"kernel_sets_here\":[", running, "],", arithmetic_json(),
             ",\"cuda_module\":", module_json(found), "}\n");
}

}  // namespace

void log_program(const std::string& model) {
  const BuildCommit& commit = build_commit();
  const bool known = *commit.date != 0;
  const std::string of =
      known ? cat(" (", commit.id, commit.dirty ? ", with uncommitted changes)" : ")") : "";
  log_info(cat("shoal ", SHOAL_VERSION, of, ", model ", printable(model)),
           {{"event", "serve"},
            {"version", SHOAL_VERSION},
            {"commit", known ? LogValue(commit.id) : LogValue()},
            {"model", model}});
}

int run_version(const VersionFlags& flags) {
  set_float_environment();
  const FoundModule found = look_for_module();
  const BuildCommit& commit = build_commit();
  const std::string text = flags.json ? version_json(commit, found) : version_text(commit, found);
  return report_failure(at(Stage::kRequest, write_stdout(text)));
}

}  // namespace shoal
