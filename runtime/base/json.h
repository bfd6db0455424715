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
  size_t max_depth = 64;            ///< nesting; real configuration files stay below 10
  size_t max_values = 20'000'000;   ///< scalars, keys and containers; bounds memory
  size_t max_members = 20'000'000;  ///< of one object
  bool distinct_names = false;      ///< refuse an object that has a name twice
  /// Accept integers from 2^63 to 2^64 - 1. Only parse_ordered_json() refuses them otherwise.
  bool unsigned_integers = false;
};

/// Parses text that may be hostile. Never throws. If a name is repeated, the last one counts, as
/// with most parsers. INVALID_ARGUMENT: the syntax or the UTF-8 is wrong ("what: not JSON at byte
/// N: ..."), or a limit is exceeded ("what: more than N values"). If `what` is empty, nothing is in
/// front.
Result<Json> parse_json(std::string_view text, std::string_view what,
                        const JsonLimits& limits = {});

/// The document as text on one line, or over several lines with `indent` blanks per level. Never
/// throws, because bytes that are not UTF-8 (paths and environment variables may have any) become
/// U+FFFD.
std::string json_text(const Json& json, int indent = -1);

/// The text, or null if it is empty. For fields where an empty text means that there is none.
Json text_or_null(const std::string& text);

/// The number, or null if it is 0. For fields where 0 means that there is no number.
Json number_or_null(int64_t number);

/// A number with the fewest digits that read back as the same float32. NaN and infinities, which
/// JSON does not have, become null.
std::string json_float(float value);

/// Why a file could not be opened. NOT_FOUND: nothing is there. UNAVAILABLE: descriptors or memory
/// ran out, so that it may work later. PERMISSION_DENIED: anything else.
Status open_failure(const std::string& path, int error);

/// The text of a regular file. Errors: those of open_failure(). INVALID_ARGUMENT: it is not a
/// regular file. RESOURCE_EXHAUSTED: it is larger than max_bytes. DATA_LOSS: it cannot be read.
Result<std::string> read_file(const std::string& path, size_t max_bytes);

/// A member of an object, or nullopt if it is absent or null. INVALID_ARGUMENT, naming `key` and,
/// unless it is empty, `what`: the member has another type. json_int takes 5 and 5.0, and refuses a
/// number that does not fit.
Result<std::optional<int64_t>> json_int(const Json& object, const char* key, std::string_view what);
Result<std::optional<double>> json_double(const Json& object, const char* key,
                                          std::string_view what);
Result<std::optional<bool>> json_bool(const Json& object, const char* key, std::string_view what);
Result<std::optional<std::string>> json_string(const Json& object, const char* key,
                                               std::string_view what);

}  // namespace shoal
