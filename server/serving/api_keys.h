#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"

namespace shoal {

/// The keys by which clients may use the server. Without any, everybody may. Thread-safe; the keys
/// may be replaced at any time.
class ApiKeys {
 public:
  ApiKeys() = default;
  explicit ApiKeys(std::vector<std::string> keys);

  bool any() const;
  void replace(std::vector<std::string> keys);

  /// Whether a request with this value of `authorization` may pass: "Bearer KEY" with one of the
  /// keys. How long it takes does not depend on how much of a key is right.
  bool allow(std::string_view authorization) const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> keys_;
};

/// The text of a file of keys. Errors: those of read_file().
Result<std::string> read_api_key_file(const std::string& path);
/// The keys of such a text, one on each line; blank lines and lines that begin with # are left out.
/// INVALID_ARGUMENT, naming the path: the text has no key, or a key has characters that an HTTP
/// header cannot carry. No message shows a key.
Result<std::vector<std::string>> parse_api_keys(const std::string& text, const std::string& path);
/// Reads the file and parses it. Errors: those of the two functions above.
Result<std::vector<std::string>> read_api_keys(const std::string& path);
/// INVALID_ARGUMENT, naming `what`: it is empty, or a header cannot carry it.
Status check_api_key(std::string_view key, std::string_view what);

}  // namespace shoal
