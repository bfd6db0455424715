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

/// The longest context a file may ask for: far above every real model, and its KV cache still
/// counts in 63 bits.
inline constexpr int kMaxPositions = 64 << 20;

/// Typed, bounded members of one JSON object out of a model directory. The first problem sticks:
/// read every field, then look at status() once. Absent and null both read as nullopt; lists()
/// tells them apart where that matters. Not thread-safe. `what` names the file in messages; object
/// and what outlive the reader.
class ConfigReader {
 public:
  ConfigReader(const Json& object, std::string_view what) : object_(object), what_(what) {}

  const Json& object() const { return object_; }
  std::string_view what() const { return what_; }

  /// The key is written in the object, if only as null.
  bool lists(const char* key) const { return object_.contains(key); }
  /// The key has a value other than null.
  bool has(const char* key) const { return lists(key) && !object_[key].is_null(); }

  /// INVALID_ARGUMENT naming key, value and bounds (both inclusive) where the value lies outside.
  std::optional<int> integer(const char* key, int64_t min, int64_t max);
  int integer(const char* key, int64_t min, int64_t max, int fallback) {
    return integer(key, min, max).value_or(fallback);
  }
  std::optional<double> number(const char* key, double min, double max);
  std::optional<bool> boolean(const char* key);
  std::optional<std::string> string(const char* key);
  /// One token id or a list of at most 1024 of them; -1 stands for none, as some files have it.
  std::vector<int32_t> token_ids(const char* key);

  /// Notes INVALID_ARGUMENT / UNIMPLEMENTED with "what: why" unless something failed before.
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

/// Text from a hostile file, fit for a message: escaped, in quotes, shortened.
std::string in_quotes(std::string_view text);

/// The text of model_dir/name, of at most 4 MiB; errors are read_file's.
Result<std::string> read_config_file(const std::string& model_dir, const char* name);

/// The object that a config file is. INVALID_ARGUMENT for anything else.
Result<Json> parse_config_object(std::string_view text, std::string_view what);

}  // namespace shoal
