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

#include "runtime/base/fd.h"
#include "runtime/comm/device/nccl_api.h"
#include "runtime/device/module_loader.h"
#include "runtime/supervisor/gpu_probe.h"
#include "runtime/transport/facts/fact_files.h"

namespace shoal {
namespace {

constexpr size_t kFactsBytes = size_t{256} << 10;
/// Enough for every copy engine's path to be taken, and some milliseconds for a pair.
constexpr int64_t kPatternBytes = int64_t{4} << 20;

/// What is found goes to the front and into facts of its own.
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
      if (written <= 0) std::_Exit(1);  // nobody listens any more
      at += static_cast<size_t>(written);
    }
  }

  /// nullptr: what stands in the way has been said.
  const ShoalCudaModule* find_module(const std::string& flag) {
    say(gpu_doing_line("load the CUDA module"));
    const Result<std::string> path = find_cuda_module(flag);
    if (!path.ok()) return refuse("find", path.status());
    const Result<const ShoalCudaModule*> module = load_cuda_module(*path);
    if (!module.ok()) return refuse("load", module.status());
    say(gpu_module_line(*path, (*module)->build_id, (*module)->architectures,
                        (*module)->cuda_runtime_version));
    return *module;
  }

  void find_devices(const ShoalCudaModule& module) {
    say(gpu_doing_line("ask the CUDA driver for its devices"));
    std::string text(kFactsBytes, '\0');
    if (const int32_t error = module.facts(text.data(), text.size()); error != 0) {
      return say(gpu_error_line("facts", module.error_text(error)));
    }
    text.resize(text.find('\0'));
    std::replace(text.begin(), text.end(), '\n', ' ');
    say(gpu_driver_line(text));
  }

  void find_nccl(const std::string& library) {
    say(gpu_doing_line("load NCCL"));
    const Result<NcclApi> nccl = load_nccl(library);
    say(nccl.ok() ? gpu_nccl_line(nccl->version, nccl->path, "")
                  : gpu_nccl_line(0, "", std::string(nccl.status().message())));
  }

  void try_peers(const ShoalCudaModule& module) {
    for (const auto& [from, to] : gpu_pairs_to_try(facts_)) {
      say(gpu_peer_line(from, to, "hung"));  // the last word on it, unless another follows
      int64_t wrong = 0;
      const int32_t error = module.try_peer(from, to, kPatternBytes, &wrong);
      say(gpu_peer_line(from, to,
                        error != 0   ? cat("failed: ", module.error_text(error))
                        : wrong != 0 ? cat("corrupt ", wrong, " bytes")
                                     : "ok"));
    }
  }

  const GpuFacts& facts() const { return facts_; }

 private:
  const ShoalCudaModule* refuse(const char* at, const Status& why) {
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

/// Where a loader would look, and the toolkit's own place.
std::vector<std::string> library_folders() {
  std::vector<std::string> folders;
  if (const char* path = std::getenv("LD_LIBRARY_PATH"); path != nullptr) {
    for (const std::string_view folder : split(path, ':')) folders.emplace_back(folder);
  }
  for (const char* folder : {"/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu",
                             "/usr/lib/aarch64-linux-gnu", "/usr/lib64"})
    folders.emplace_back(folder);
  return folders;
}

/// By a file's name: the library is half a gigabyte, and nothing here calls it.
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

}  // namespace

int gpu_facts_main(const char* cuda_module, const char* nccl_library, const char* ranks,
                   const char* ranks_per_gpu) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // Libraries print what they like to stdout (NCCL_DEBUG): that is not ours to read.
  Fd out(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3));
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
  Finder finder(std::move(out), std::max(std::atoi(ranks), 1),
                std::max(std::atoi(ranks_per_gpu), 1));
  const ShoalCudaModule* module = finder.find_module(cuda_module);
  if (module != nullptr) finder.find_devices(*module);
  finder.find_nccl(nccl_library);
  finder.say(gpu_cublas_line(cublas_version()));
  if (module != nullptr) finder.try_peers(*module);
  finder.say(gpu_done_line());
  std::_Exit(0);  // no destructor of a library may hang now
}

}  // namespace shoal
