#include "runtime/supervisor/gpu_facts_main.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <signal.h>
#include <sys/prctl.h>
#include <system_error>
#include <unistd.h>

#include "runtime/base/counted.h"
#include "runtime/base/fd.h"
#include "runtime/comm/device/nccl_api.h"
#include "runtime/device/cublas_api.h"
#include "runtime/device/module_loader.h"
#include "runtime/supervisor/gpu_findings.h"
#include "runtime/transport/facts/fact_files.h"
#include "runtime/transport/rungs/gpu_checks.h"

namespace shoal {
namespace {

constexpr size_t kFactsBytes = size_t{256} << 10;
/// Large enough that every copy engine's path is taken. A pair takes some milliseconds.
constexpr int64_t kPatternBytes = int64_t{4} << 20;

/// The folders in which a loader would look, and the toolkit's own.
std::vector<std::string> library_folders() {
  std::vector<std::string> folders;
  if (const char* path = std::getenv("LD_LIBRARY_PATH"); path != nullptr) {
    for (const std::string_view folder : parts_of(path, ':')) folders.emplace_back(folder);
  }
  for (const char* folder : {"/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu",
                             "/usr/lib/aarch64-linux-gnu", "/usr/lib64"})
    folders.emplace_back(folder);
  return folders;
}

/// Takes the version from a file's name instead of loading the library, which is half a gigabyte
/// and is not called here.
std::string cublas_version() {
  constexpr std::string_view kPrefix = "libcublas.so.";
  for (const std::string& folder : library_folders()) {
    std::string longest;
    std::error_code error;
    for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
         at.increment(error)) {
      const std::string name = at->path().filename().string();
      if (name.starts_with(kPrefix) && name.size() - kPrefix.size() > longest.size())
        longest = name.substr(kPrefix.size());
    }
    if (!longest.empty()) return longest;
  }
  return "";
}

/// A library that can be loaded may still not work with the driver, on the device that is selected.
Status try_cublas(const CublasApi& cublas) {
  CublasHandle handle = nullptr;
  const CublasStatus created = cublas.create(&handle);
  if (created == 0) return {};
  return Status::error(Code::kFailedPrecondition,
                       cat("cublasLtCreate of ", cublas.path, ": ", cublas.status_text(created)));
}

/// Sends what is found to the front, and keeps it in facts of its own, from which the pairs to try
/// are taken.
class Finder {
 public:
  Finder(Fd out, int ranks, int ranks_per_gpu) : out_(std::move(out)) {
    facts_.ranks = ranks;
    facts_.ranks_per_gpu = ranks_per_gpu;
  }

  void say(const std::string& line) {
    (void)findings_.take(std::string_view(line).substr(0, line.size() - 1));
    for (size_t at = 0; at < line.size();) {
      const ssize_t written = ::write(out_.get(), line.data() + at, line.size() - at);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) std::_Exit(1);  // nobody reads any more
      at += static_cast<size_t>(written);
    }
  }

  /// nullptr: the reason has been reported.
  const ShoalCudaModule* find_module(const std::string& flag) {
    say(gpu_doing_line("load the CUDA module"));
    const Result<std::string> path = find_cuda_module(flag);
    if (!path.ok()) return refuse(GpuErrorAt::kFind, path.status());
    const Result<const ShoalCudaModule*> module = load_cuda_module(*path);
    if (!module.ok()) return refuse(GpuErrorAt::kLoad, module.status());
    say(gpu_module_line(*path, (*module)->build_id, (*module)->architectures,
                        (*module)->cuda_runtime_version));
    return *module;
  }

  void find_devices(const ShoalCudaModule& module) {
    say(gpu_doing_line("ask the CUDA driver for its devices"));
    std::string text(kFactsBytes, '\0');
    if (const int32_t error = module.facts(text.data(), text.size()); error != 0) {
      return say(gpu_error_line(GpuErrorAt::kFacts, module.error_text(error)));
    }
    text.resize(text.find('\0'));
    std::replace(text.begin(), text.end(), '\n', ' ');
    say(gpu_driver_line(text));
  }

  /// A device that cannot be asked, because another process has it for itself, stays unknown here.
  void find_free_memory(const ShoalCudaModule& module) {
    const auto devices =
        std::min(static_cast<size_t>(group_devices(facts_)), facts_.devices.size());
    for (size_t i = 0; i < devices; ++i) {
      const auto device = static_cast<int32_t>(i);
      say(gpu_doing_line(cat("ask GPU ", device, " for its free memory")));
      uint64_t free_bytes = 0, total_bytes = 0;
      if (module.select(device) != 0 || module.memory_info(&free_bytes, &total_bytes) != 0)
        continue;
      say(gpu_memory_line(device, free_bytes));
    }
  }

  void find_nccl(const std::string& library) {
    say(gpu_doing_line("load NCCL"));
    // Also one that ranks will refuse, because the report names its bugs.
    const Result<NcclApi> nccl = open_nccl(library);
    say(nccl.ok() ? gpu_nccl_line(nccl->version, nccl->path, "")
                  : gpu_nccl_line(0, "", std::string(nccl.status().message())));
  }

  /// Takes the first that works on the first GPU. Without any, only the version of a library that
  /// would be found.
  void find_cublas(const std::vector<std::string>& libraries, const ShoalCudaModule* module) {
    if (libraries.empty()) return say(gpu_cublas_line(cublas_version(), "", ""));
    if (const int32_t error = module == nullptr ? 0 : module->select(0); error != 0)
      return say(gpu_cublas_line("", "", module->error_text(error)));
    std::string why;
    for (const std::string& library : libraries) {
      // If the process hangs or dies, this remains the verdict.
      say(gpu_cublas_line("", "", cat("a try to open ", library, " on a GPU did not end well")));
      const Result<CublasApi> cublas = open_cublas(library);
      const Status status = !cublas.ok()        ? cublas.status()
                            : module == nullptr ? Status()
                                                : try_cublas(*cublas);
      if (status.ok())
        return say(gpu_cublas_line(cublas_version_text(cublas->version), cublas->path, ""));
      why += cat(status.message(), "; ");
    }
    say(gpu_cublas_line("", "", cat(why, cublas_remedy())));
  }

  void try_peers(const ShoalCudaModule& module) {
    for (const auto& [from, to] : gpu_pairs_to_try(facts_)) {
      using Outcome = GpuPeerVerdict::Outcome;
      // If the process hangs, this remains the verdict on the pair.
      say(gpu_peer_line({from, to, Outcome::kHung}));
      int64_t wrong = 0;
      const int32_t error = module.try_peer(from, to, kPatternBytes, &wrong);
      GpuPeerVerdict verdict{from, to, Outcome::kOk};
      if (error != 0) {
        verdict.outcome = Outcome::kFailed;
        verdict.detail = module.error_text(error);
      } else if (wrong != 0) {
        verdict.outcome = Outcome::kCorrupt;
        verdict.detail = counted(wrong, "byte");
      }
      say(gpu_peer_line(verdict));
    }
  }

  const GpuFacts& facts() const { return facts_; }

 private:
  const ShoalCudaModule* refuse(GpuErrorAt at, const Status& why) {
    const std::string system =
        why.causes().back().os_error == 0
            ? ""
            : cat(": ", std::generic_category().message(why.causes().back().os_error));
    say(gpu_error_line(at, cat(why.message(), system)));
    return nullptr;
  }

  const Fd out_;
  GpuFacts facts_;
  GpuFindings findings_{&facts_, ""};
};

}  // namespace

int gpu_facts_main(const char* cuda_module, const char* nccl_library, const char* ranks,
                   const char* ranks_per_gpu, const std::vector<std::string>& cublas_libraries) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // Libraries may print to stdout (NCCL_DEBUG), and the front must not read that. So the findings
  // go to a copy of stdout, and stdout itself becomes stderr.
  Fd out(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3));
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
  Finder finder(std::move(out), std::max(std::atoi(ranks), 1),
                std::max(std::atoi(ranks_per_gpu), 1));
  const ShoalCudaModule* module = finder.find_module(cuda_module);
  if (module != nullptr) finder.find_devices(*module);
  finder.find_nccl(nccl_library);
  if (module != nullptr) finder.find_free_memory(*module);
  if (module != nullptr) finder.try_peers(*module);
  finder.find_cublas(cublas_libraries, module);  // half a gigabyte, and nothing else needs it
  finder.say(gpu_done_line());
  std::_Exit(0);  // so that no destructor of a library can hang
}

}  // namespace shoal
