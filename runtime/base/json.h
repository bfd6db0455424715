#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/status.h"

namespace shoal {

using Json = nlohmann::json;

struct JsonLimits {
  size_t max_depth = 64;           ///< nesting; real configuration files stay below 10
  size_t max_values = 20'000'000;  ///< scalars, keys and containers together: bounds memory
};

/// Parses text that may be hostile. INVALID_ARGUMENT "what: byte N: ..." for syntax, depth, size or
/// bad UTF-8; never throws. Duplicate keys: the last one counts, as in most readers.
Result<Json> parse_json(std::string_view text, std::string_view what,
                        const JsonLimits& limits = {});

/// The document on one line, or over lines with so many blanks a level. Never throws: bytes that
/// are not UTF-8 (paths and environment variables may have any) become U+FFFD.
std::string json_text(const Json& json, int indent = -1);

/// The file's text, or NOT_FOUND / RESOURCE_EXHAUSTED (larger than max_bytes) / INVALID_ARGUMENT
/// (not a regular file).
Result<std::string> read_file(const std::string& path, size_t max_bytes);

/// Typed members of an object. Absent or null gives nullopt; another type is INVALID_ARGUMENT
/// naming what and key. Integers accept 5 and 5.0, and refuse what does not fit.
Result<std::optional<int64_t>> json_int(const Json& object, const char* key, std::string_view what);
Result<std::optional<double>> json_double(const Json& object, const char* key,
                                          std::string_view what);
Result<std::optional<bool>> json_bool(const Json& object, const char* key, std::string_view what);
Result<std::optional<std::string>> json_string(const Json& object, const char* key,
                                               std::string_view what);

}  // namespace shoal
