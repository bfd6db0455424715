#include "models/config_reader.h"

#include <utility>

#include "models/git_lfs.h"
#include "runtime/base/log.h"

namespace shoal {

std::string in_quotes(std::string_view text) {
  constexpr size_t kShown = 120;
  return cat('"', json_escape(text.substr(0, kShown)), text.size() > kShown ? "...\"" : "\"");
}

void ConfigReader::fail(Code code, const std::string& why) {
  if (status_.ok()) status_ = Status::error(code, cat(what_, ": ", why));
}

template <typename T>
std::optional<T> ConfigReader::keep(Result<std::optional<T>> read) {
  if (read.ok()) return *std::move(read);
  if (status_.ok()) status_ = read.status();
  return std::nullopt;
}

std::optional<int> ConfigReader::integer(const char* key, int64_t min, int64_t max) {
  const std::optional<int64_t> value = keep(json_int(object_, key, what_));
  if (!value) return std::nullopt;
  if (*value < min || *value > max) {
    invalid(cat('"', key, "\" is ", *value, "; it must be between ", min, " and ", max));
    return std::nullopt;
  }
  return static_cast<int>(*value);
}

std::optional<double> ConfigReader::number(const char* key, double min, double max) {
  const std::optional<double> value = keep(json_double(object_, key, what_));
  if (!value) return std::nullopt;
  if (!(*value >= min && *value <= max)) {
    invalid(cat('"', key, "\" is ", *value, "; it must be between ", min, " and ", max));
    return std::nullopt;
  }
  return value;
}

std::optional<bool> ConfigReader::boolean(const char* key) {
  return keep(json_bool(object_, key, what_));
}
std::optional<std::string> ConfigReader::string(const char* key) {
  return keep(json_string(object_, key, what_));
}

std::optional<int32_t> ConfigReader::token_id(const char* key, const Json& value) {
  const Json holder = {{key, value}};
  const std::optional<int64_t> id = keep(json_int(holder, key, what_));
  if (!id || *id == -1) return std::nullopt;
  if (*id < 0 || *id > std::numeric_limits<int32_t>::max()) {
    invalid(cat('"', key, "\" has ", *id, ", which is no token id"));
    return std::nullopt;
  }
  return static_cast<int32_t>(*id);
}

std::vector<int32_t> ConfigReader::token_ids(const char* key) {
  constexpr size_t kMaxIds = 1024;
  std::vector<int32_t> ids;
  if (!has(key)) return ids;
  const Json& value = object_[key];
  if (!value.is_array()) {
    if (const auto id = token_id(key, value)) ids.push_back(*id);
    return ids;
  }
  if (value.size() > kMaxIds) {
    invalid(cat('"', key, "\" lists ", value.size(), " token ids; at most ", kMaxIds,
                " are supported"));
    return ids;
  }
  for (const Json& entry : value) {
    if (entry.is_null()) {
      invalid(cat('"', key, "\" lists null"));
    } else if (const auto id = token_id(key, entry)) {
      ids.push_back(*id);
    }
  }
  return ids;
}

Result<std::string> read_config_file(const std::string& model_dir, const char* name) {
  constexpr size_t kMaxConfigBytes = size_t{4} << 20;
  return read_file(cat(model_dir, "/", name), kMaxConfigBytes);
}

Result<Json> parse_config_object(std::string_view text, std::string_view what) {
  SHOAL_RETURN_IF_ERROR(check_no_lfs_pointer(text, what));
  SHOAL_ASSIGN_OR_RETURN(Json config,
                         parse_json(text, what, {.max_depth = 32, .max_values = 1'000'000}));
  if (!config.is_object())
    return Status::error(Code::kInvalidArgument, cat(what, ": is not a JSON object"));
  return config;
}

}  // namespace shoal
