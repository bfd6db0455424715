#include "runtime/transport/facts/largest_files.h"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <sys/stat.h>

#include "runtime/base/cat.h"
#include "runtime/transport/facts/fact_files.h"

namespace shoal {
namespace {

constexpr int kMostEntries = 4096;
/// The iterator keeps every level open, and anyone may nest thousands of them.
constexpr int kMostLevels = 8;

}  // namespace

std::vector<ShmFile> largest_files(const std::string& directory, size_t count) {
  namespace fs = std::filesystem;
  std::vector<ShmFile> files;
  struct stat root = {};
  if (::stat(directory.c_str(), &root) != 0) return files;
  const time_t now = ::time(nullptr);
  std::error_code error;
  fs::recursive_directory_iterator at(directory, fs::directory_options::skip_permission_denied,
                                      error);
  for (int seen = 0; !error && at != fs::recursive_directory_iterator() && seen < kMostEntries;
       at.increment(error), ++seen) {
    struct stat info = {};
    if (::lstat(at->path().c_str(), &info) != 0) continue;
    if (at.depth() >= kMostLevels) at.disable_recursion_pending();
    if (info.st_dev != root.st_dev) {
      at.disable_recursion_pending();
    } else if (S_ISREG(info.st_mode) && info.st_blocks > 0) {
      files.push_back({at->path().string(), int64_t{info.st_blocks} * 512, info.st_uid,
                       std::max<int64_t>(now - info.st_mtim.tv_sec, 0)});
    }
  }
  const auto end = files.begin() + static_cast<std::ptrdiff_t>(std::min(count, files.size()));
  std::partial_sort(files.begin(), end, files.end(), [](const ShmFile& a, const ShmFile& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.path < b.path;
  });
  files.erase(end, files.end());
  if (files.empty()) return files;
  const std::string passwd = text_of("/etc/passwd");
  for (ShmFile& file : files) file.user = user_name(passwd, file.uid);
  return files;
}

std::string user_name(std::string_view passwd, uint32_t uid) {
  const std::string number = cat(uid);
  for (const std::string_view line : parts_of(passwd, '\n')) {
    const std::vector<std::string_view> fields = parts_of(line, ':');  // name, password, uid ...
    if (fields.size() > 2 && fields[2] == number) return std::string(fields[0]);
  }
  return "";
}

}  // namespace shoal
