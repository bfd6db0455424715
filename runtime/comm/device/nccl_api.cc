#include "runtime/comm/device/nccl_api.h"

#include <algorithm>
#include <cstdlib>
#include <dlfcn.h>
#include <memory>

#include "runtime/base/cat.h"
#include "runtime/device/loader_words.h"

namespace shoal {
namespace {

// Older versions of NCCL are refused, so every version that is used has all fields of our
// NcclConfig.
static_assert(kNcclFloor >= static_cast<int>(NcclConfig().version));

Status refused(const std::string& what) {
  return Status::error(Code::kFailedPrecondition,
                       cat(what, "; install NCCL ", nccl_version_text(kNcclFloor),
                           " or newer (libnccl2, or the Python package nvidia-nccl-cu13), or name "
                           "it with --nccl-library PATH"));
}

/// Returns the path of the file with symbolic links resolved, so that two names of one library
/// compare equal.
std::string file_of(void* function, const std::string& library) {
  Dl_info info = {};
  if (::dladdr(function, &info) == 0 || info.dli_fname == nullptr) return library;
  const std::unique_ptr<char, void (*)(void*)> real(::realpath(info.dli_fname, nullptr), ::free);
  return real ? real.get() : info.dli_fname;
}

/// Maps an NCCL error to a Status code. NCCL reports all system errors with one code, so the
/// message text decides.
Code code_of(NcclResult result, const std::string& words) {
  const auto says = [&](const char* text) { return words.find(text) != std::string::npos; };
  if (says("No space left on device") || says("Cannot allocate memory"))
    return Code::kResourceExhausted;
  if (says("Permission denied") || says("Operation not permitted") || says("Read-only file system"))
    return Code::kPermissionDenied;
  if (result == kNcclRemoteError) return Code::kUnavailable;
  if (result == kNcclInvalidUsage || result == kNcclInvalidArgument)
    return Code::kFailedPrecondition;
  return Code::kInternal;
}

}  // namespace

Result<NcclApi> open_nccl(const std::string& library) {
  void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) return refused(cat("NCCL cannot be loaded: ", loader_words(library)));
  NcclApi api;
  Status missing;
  const auto find = [&](auto& function, const char* name) {
    void* const symbol = ::dlsym(handle, name);
    if (symbol == nullptr && missing.ok())
      missing = refused(cat(library, " is no usable NCCL: ", loader_words()));
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
  };
  find(api.get_version, "ncclGetVersion");
  find(api.get_unique_id, "ncclGetUniqueId");
  find(api.comm_init_rank_config, "ncclCommInitRankConfig");
  find(api.comm_get_async_error, "ncclCommGetAsyncError");
  find(api.all_gather, "ncclAllGather");
  find(api.all_reduce, "ncclAllReduce");
  find(api.get_error_string, "ncclGetErrorString");
  find(api.get_last_error, "ncclGetLastError");
  SHOAL_RETURN_IF_ERROR(missing);
  api.path = file_of(reinterpret_cast<void*>(api.get_version), library);
  if (const NcclResult result = api.get_version(&api.version); result != kNcclSuccess)
    return refused(cat("ncclGetVersion of ", api.path, " failed: ", api.get_error_string(result)));
  if (api.version >= 30000)
    return refused(
        cat("NCCL ", nccl_version_text(api.version), " at ", api.path, " cannot be used"));
  return api;
}

Result<NcclApi> load_nccl(const std::string& library) {
  SHOAL_ASSIGN_OR_RETURN(NcclApi api, open_nccl(library));
  if (const NcclBug* bug = refusing_nccl_bug(api.version); bug != nullptr)
    return refused(cat("NCCL ", nccl_version_text(api.version), " at ", api.path,
                       " cannot be used, because ", bug->what));
  return api;
}

std::string NcclCall::text() const {
  return bytes == 0 ? function : cat(function, " of ", bytes, " bytes");
}

std::string nccl_last_words(const NcclApi& api) {
  const char* words = api.get_last_error(nullptr);  // nullptr: the last error of any thread
  std::string copy = words == nullptr ? "" : words;
  // Another thread of NCCL may have written a shorter text while this one was copied.
  copy.resize(std::min(copy.size(), copy.find('\0')));
  return copy;
}

Status nccl_failure(const NcclApi& api, NcclResult result, const NcclCall& call) {
  const std::string words = nccl_last_words(api);
  const Code code = code_of(result, words);
  const Status error =
      Status::error(code, cat(call.text(), ": NCCL ", nccl_version_text(api.version), " says ",
                              api.get_error_string(result), " (", static_cast<int>(result), ")",
                              words.empty() ? "" : "; its last error: ", words));
  // The host memory that NCCL takes is its segments in shared memory. A shortage of device memory
  // has a different message.
  return code == Code::kResourceExhausted ? error.blamed_on(Fault::kSharedMemory) : error;
}

}  // namespace shoal
