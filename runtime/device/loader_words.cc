#include "runtime/device/loader_words.h"

#include <dlfcn.h>
#include <vector>

#include "runtime/base/cat.h"

namespace shoal {
namespace {

/// The folders in which the loader looks for a name, in its order: those of LD_LIBRARY_PATH, of the
/// program's RUNPATH, and its own.
std::vector<std::string> searched_folders() {
  void* const self = ::dlopen(nullptr, RTLD_LAZY);
  Dl_serinfo size = {};
  if (self == nullptr || ::dlinfo(self, RTLD_DI_SERINFOSIZE, &size) != 0) return {};
  std::vector<Dl_serinfo> room(size.dls_size / sizeof(Dl_serinfo) + 1);
  Dl_serinfo* const info = room.data();
  if (::dlinfo(self, RTLD_DI_SERINFOSIZE, info) != 0 || ::dlinfo(self, RTLD_DI_SERINFO, info) != 0)
    return {};
  std::vector<std::string> folders;
  const Dl_serpath* const first = info->dls_serpath;
  for (unsigned int i = 0; i < info->dls_cnt; ++i) folders.emplace_back(first[i].dls_name);
  return folders;
}

}  // namespace

std::string loader_words() {
  const char* const words = ::dlerror();
  return words == nullptr ? "the loader says nothing" : words;
}

std::string loader_words(const std::string& library) {
  std::string text = loader_words();
  if (library.find('/') != std::string::npos) return text;
  text += " (looked in ";
  for (const std::string& folder : searched_folders()) text += cat(folder, ", ");
  return text + "and what ldconfig lists)";
}

}  // namespace shoal
