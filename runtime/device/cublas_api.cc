#include "runtime/device/cublas_api.h"

#include <algorithm>
#include <dlfcn.h>
#include <type_traits>

#include "runtime/base/cat.h"
#include "runtime/device/loader_words.h"

namespace shoal {
namespace {

Status refused(const std::string& what) {
  return Status::error(Code::kFailedPrecondition, what);
}

bool is_supported(int64_t version) {
  return std::any_of(std::begin(kCublasReleases), std::end(kCublasReleases),
                     [&](const CublasRelease& one) { return one.major == version / kCublasMajor; });
}

}  // namespace

std::vector<std::string> cublas_library_names() {
  std::vector<std::string> names;
  for (const CublasRelease& one : kCublasReleases) names.emplace_back(one.library);
  return names;
}

std::string cublas_remedy() {
  std::string versions;
  for (const CublasRelease& one : kCublasReleases)
    versions += cat(versions.empty() ? "" : " or ", one.major);
  return cat("install cuBLAS of CUDA ", versions,
             " (libcublas, or the Python package nvidia-cublas), or name its libcublasLt with "
             "--cublas-library PATH");
}

std::string cublas_version_text(int64_t version) {
  return cat(version / kCublasMajor, ".", version / 100 % 100, ".", version % 100);
}

Result<CublasApi> open_cublas(const std::string& library) {
  void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) return refused(cat("cuBLASLt cannot be loaded: ", loader_words(library)));
  CublasApi api;
  Status missing;
  const auto find = [&](auto& function, const char* name) {
    void* const symbol = ::dlsym(handle, name);
    if (symbol == nullptr && missing.ok())
      missing = refused(cat(library, " is no usable cuBLASLt: ", loader_words()));
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
  };
  find(api.create, "cublasLtCreate");
  find(api.destroy, "cublasLtDestroy");
  find(api.get_version, "cublasLtGetVersion");
  find(api.status_text, "cublasLtGetStatusString");
  find(api.create_matmul, "cublasLtMatmulDescCreate");
  find(api.destroy_matmul, "cublasLtMatmulDescDestroy");
  find(api.set_matmul, "cublasLtMatmulDescSetAttribute");
  find(api.create_layout, "cublasLtMatrixLayoutCreate");
  find(api.destroy_layout, "cublasLtMatrixLayoutDestroy");
  find(api.create_preference, "cublasLtMatmulPreferenceCreate");
  find(api.destroy_preference, "cublasLtMatmulPreferenceDestroy");
  find(api.set_preference, "cublasLtMatmulPreferenceSetAttribute");
  find(api.choose, "cublasLtMatmulAlgoGetHeuristic");
  find(api.matmul, "cublasLtMatmul");
  SHOAL_RETURN_IF_ERROR(missing);
  Dl_info info = {};
  const bool known = ::dladdr(reinterpret_cast<void*>(api.get_version), &info) != 0;
  api.path = known && info.dli_fname != nullptr ? info.dli_fname : library;
  api.version = static_cast<int64_t>(api.get_version());
  if (!is_supported(api.version))
    return refused(cat("cuBLASLt ", cublas_version_text(api.version), " at ", api.path,
                       " is of no supported version"));
  return api;
}

}  // namespace shoal
