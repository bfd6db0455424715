#include "runtime/device/module_loader.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/program_path.h"
#include "runtime/device/loader_words.h"

namespace shoal {
namespace {

constexpr char kFileName[] = "libshoal_cuda.so";

/// The running executable's folder with a final slash.
std::string executable_folder() {
  return program_name().substr(0, program_name().rfind('/') + 1);
}

}  // namespace

Result<std::string> find_cuda_module(const std::string& flag) {
  std::string path = flag;
  if (flag.empty()) {
    const std::string folder = executable_folder();
    if (folder.empty()) {
      return Status::error(Code::kNotFound, cat("the executable's folder is not known", proc_hint(),
                                                ": give --cuda-module PATH"));
    }
    path = folder + kFileName;
    const std::string installed = folder + "../lib/shoal/" + kFileName;
    if (::access(path.c_str(), F_OK) != 0 && ::access(installed.c_str(), F_OK) == 0)
      path = installed;
  } else if (flag.find('/') == std::string::npos) {
    return Status::error(
        Code::kInvalidArgument,
        cat("--cuda-module \"", flag, "\": a path with a slash is wanted (./", flag,
            " for the working directory); the loader's own search is not used"));
  }
  struct stat file {};
  if (::stat(path.c_str(), &file) != 0) {
    return Status::error(
        Code::kNotFound,
        cat("the CUDA module ", path,
            flag.empty() ? " (none beside the program: scripts/build makes it where nvcc is)" : ""),
        errno);
  }
  if (!S_ISREG(file.st_mode))
    return Status::error(Code::kNotFound, cat("the CUDA module ", path, " is not a file"));
  return path;
}

const char* cuda_module_build_id() {
  return SHOAL_BUILD_ID;
}

Result<const ShoalCudaModule*> load_cuda_module(const std::string& path) {
  ::dlerror();
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    return Status::error(Code::kFailedPrecondition,
                         cat("load the CUDA module ", path, ": ", loader_words()));
  }
  const auto entry =
      reinterpret_cast<ShoalCudaModuleFunction>(::dlsym(library, "shoal_cuda_module"));
  if (entry == nullptr) {
    return Status::error(Code::kFailedPrecondition,
                         cat(path, " is no CUDA module of Shoal: ", loader_words()));
  }
  const ShoalCudaModule* module = entry();
  // Check the size first: if it differs, the members behind it may be elsewhere.
  if (module == nullptr || module->struct_bytes != sizeof(ShoalCudaModule)) {
    return Status::error(
        Code::kFailedPrecondition,
        cat("the CUDA module ", path, " has a table of ",
            module == nullptr ? 0 : module->struct_bytes, " bytes, this program's is of ",
            sizeof(ShoalCudaModule), ": use the module of the same build"));
  }
  if (std::strcmp(module->build_id, SHOAL_BUILD_ID) != 0) {
    return Status::error(
        Code::kFailedPrecondition,
        cat("the CUDA module ", path, " is of build ", module->build_id,
            ", this program of " SHOAL_BUILD_ID ": use the module of the same build"));
  }
  return module;
}

}  // namespace shoal
