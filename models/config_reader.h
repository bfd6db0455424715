#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/status.h"

namespace shoal {

/// The longest context that a file may ask for. It is far above every real model, and the byte
/// count of its KV cache still fits in 63 bits.
inline constexpr int kMaxPositions = 64 << 20;

/// Reads typed, bounded members of one JSON object from a model directory. The first problem is
/// kept, so read every field and then check status() once. Absent and null both read as nullopt;
/// lists() tells them apart if that matters. Not thread-safe. `what` names the file in messages;
/// object and what must outlive the reader.
class ConfigReader {
 public:
  ConfigReader(const Json& object, std::string_view what) : object_(object), what_(what) {}

  const Json& object() const { return object_; }
  std::string_view what() const { return what_; }

  /// True if the key is written in the object, even if its value is null.
  bool lists(const char* key) const { return object_.contains(key); }
  /// True if the key has a value other than null.
  bool has(const char* key) const { return lists(key) && !object_[key].is_null(); }

  /// The bounds are inclusive. A value outside them is INVALID_ARGUMENT, and the message names key,
  /// value and bounds.
  std::optional<int> integer(const char* key, int64_t min, int64_t max);
  int integer(const char* key, int64_t min, int64_t max, int fallback) {
    return integer(key, min, max).value_or(fallback);
  }
  std::optional<double> number(const char* key, double min, double max);
  std::optional<bool> boolean(const char* key);
  std::optional<std::string> string(const char* key);
  /// Reads one token id, or a list of at most 1024 of them. -1 means none, because some files write
  /// it that way.
  std::vector<int32_t> token_ids(const char* key);

  /// Records INVALID_ARGUMENT / UNIMPLEMENTED with "what: why", unless an earlier problem is
  /// recorded.
  void invalid(const std::string& why) { fail(Code::kInvalidArgument, why); }
  void unimplemented(const std::string& why) { fail(Code::kUnimplemented, why); }
  const Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }

 private:
  void fail(Code code, const std::string& why);
  template <typename T>
  std::optional<T> keep(Result<std::optional<T>> read);
  std::optional<int32_t> token_id(const char* key, const Json& value);

  const Json& object_;
  const std::string_view what_;
  Status status_;
};

/// Makes text from an untrusted file safe to print in a message: escaped, in quotes, shortened.
std::string in_quotes(std::string_view text);

/// Reads model_dir/name, which may have at most 4 MiB. Returns read_file's errors.
Result<std::string> read_config_file(const std::string& model_dir, const char* name);

/// Parses a config file, which must be one JSON object. INVALID_ARGUMENT for anything else.
Result<Json> parse_config_object(std::string_view text, std::string_view what);

}  // namespace shoal
