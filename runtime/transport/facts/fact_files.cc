#include "runtime/transport/facts/fact_files.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <dirent.h>
#include <fcntl.h>
#include <memory>
#include <unistd.h>

#include "runtime/base/fd.h"
#include "runtime/base/split.h"

namespace shoal {
namespace {

constexpr size_t kMostBytes = 4 << 20;

std::optional<int64_t> leading_number(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc::result_out_of_range)
    return INT64_MAX;  // cgroup v1 writes "no limit" as a huge number
  if (error != std::errc()) return std::nullopt;
  return number;
}

}  // namespace

std::string text_of(const std::string& path) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  char buffer[8192];
  while (fd.valid() && text.size() < kMostBytes) {
    const ssize_t got = ::read(fd.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(buffer, static_cast<size_t>(got));
  }
  return text;
}

std::optional<int64_t> number_in(const std::string& path) {
  return leading_number(text_of(path));
}

std::optional<int64_t> number_after(std::string_view text, std::string_view key) {
  for (const std::string_view line : parts_of(text, '\n')) {
    if (!line.starts_with(key) || line.size() == key.size()) continue;
    const char next = line[key.size()];
    if (next == ' ' || next == '\t') return leading_number(line.substr(key.size()));
  }
  return std::nullopt;
}

std::vector<std::string_view> parts_of(std::string_view text, char separator) {
  std::vector<std::string_view> parts = split(text, separator);
  if (parts.back().empty()) parts.pop_back();
  return parts;
}

bool path_exists(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0;
}

int count_numbered(const std::string& folder, std::string_view prefix) {
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(folder.c_str()), ::closedir);
  if (listing == nullptr) return 0;
  int count = 0;
  while (const dirent* entry = ::readdir(listing.get())) {
    const std::string_view name(entry->d_name);
    if (!name.starts_with(prefix) || name.size() == prefix.size()) continue;
    const std::string_view rest = name.substr(prefix.size());
    if (std::all_of(rest.begin(), rest.end(), [](char c) { return c >= '0' && c <= '9'; })) ++count;
  }
  return count;
}

}  // namespace shoal
