#include "server/serving/api_keys.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "runtime/base/json.h"

namespace shoal {

namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 20;
constexpr std::string_view kScheme = "bearer ";

/// Compares without stopping at the first difference.
bool equal(std::string_view sent, std::string_view key) {
  unsigned difference = sent.size() == key.size() ? 0 : 1;
  for (size_t i = 0; i < sent.size(); ++i)
    difference |= static_cast<unsigned char>(sent[i]) ^
                  static_cast<unsigned char>(key[key.empty() ? 0 : i % key.size()]);
  return difference == 0;
}

bool has_scheme(std::string_view authorization) {
  return authorization.size() > kScheme.size() &&
         std::equal(kScheme.begin(), kScheme.end(), authorization.begin(),
                    [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? b + 32 : b); });
}

std::string trimmed(const std::string& line) {
  const size_t begin = line.find_first_not_of(" \t\r");
  if (begin == std::string::npos) return "";
  return line.substr(begin, line.find_last_not_of(" \t\r") - begin + 1);
}

}  // namespace

ApiKeys::ApiKeys(std::vector<std::string> keys) : keys_(std::move(keys)) {}

bool ApiKeys::any() const {
  const std::lock_guard lock(mutex_);
  return !keys_.empty();
}

void ApiKeys::replace(std::vector<std::string> keys) {
  const std::lock_guard lock(mutex_);
  keys_ = std::move(keys);
}

bool ApiKeys::allow(std::string_view authorization) const {
  const std::lock_guard lock(mutex_);
  if (keys_.empty()) return true;
  if (!has_scheme(authorization)) return false;
  const std::string_view sent = authorization.substr(kScheme.size());
  bool found = false;
  for (const std::string& key : keys_) found |= equal(sent, key);
  return found;
}

Status check_api_key(std::string_view key, std::string_view what) {
  if (key.empty()) return Status::error(Code::kInvalidArgument, cat(what, " is empty; give a key"));
  const bool printable =
      std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < 0x7F; });
  if (printable) return {};
  return Status::error(Code::kInvalidArgument,
                       cat(what,
                           " has a blank or a character outside of printable ASCII, which no "
                           "header can carry"));
}

Result<std::string> read_api_key_file(const std::string& path) {
  return read_file(path, kMaxFileBytes);
}

Result<std::vector<std::string>> parse_api_keys(const std::string& text, const std::string& path) {
  std::vector<std::string> keys;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::string key = trimmed(line);
    if (key.empty() || key.front() == '#') continue;
    SHOAL_RETURN_IF_ERROR(check_api_key(key, cat(path, ", line ", number)));
    keys.push_back(std::move(key));
  }
  if (keys.empty())
    return Status::error(Code::kInvalidArgument, cat(path, " has no key: write one on a line"));
  return keys;
}

Result<std::vector<std::string>> read_api_keys(const std::string& path) {
  SHOAL_ASSIGN_OR_RETURN(const std::string text, read_api_key_file(path));
  return parse_api_keys(text, path);
}

}  // namespace shoal
