#include "runtime/base/json.h"

#include <cerrno>
#include <charconv>
#include <cmath>
#include <fcntl.h>
#include <sys/stat.h>

#include "runtime/base/bounded_json.h"
#include "runtime/base/fd.h"

namespace shoal {
namespace {

Status wrong_type(std::string_view what, const char* key, const char* wanted, const Json& value) {
  std::string shown = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (shown.size() > 60) shown = shown.substr(0, 57) + "...";
  return Status::error(Code::kInvalidArgument, cat(what, what.empty() ? "\"" : ": \"", key,
                                                   "\" must be ", wanted, ", not ", shown));
}

const Json* member(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

}  // namespace

Result<Json> parse_json(std::string_view text, std::string_view what, const JsonLimits& limits) {
  return parse_bounded_json<Json>(text, what, limits);
}

std::string json_text(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

Json text_or_null(const std::string& text) {
  return text.empty() ? Json() : Json(text);
}

Json number_or_null(int64_t number) {
  return number == 0 ? Json() : Json(number);
}

std::string json_float(float value) {
  if (!std::isfinite(value)) return "null";
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof text, value);
  std::string number(text, error == std::errc() ? end : text);
  // "-0" would be read back as the integer 0 and lose its sign.
  if (number.find_first_of(".e") == std::string::npos) number += ".0";
  return number;
}

Status open_failure(const std::string& path, int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return Status::error(Code::kNotFound, cat("open ", path), error);
    case EMFILE:
      return Status::error(Code::kUnavailable, cat("open ", path, "; raise ulimit -n"), error);
    case ENFILE:
    case ENOMEM:
      return Status::error(Code::kUnavailable, cat("open ", path), error);
    default:
      return Status::error(Code::kPermissionDenied, cat("open ", path), error);
  }
}

Result<std::string> read_file(const std::string& path, size_t max_bytes) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return open_failure(path, errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0)
    return Status::error(Code::kInternal, cat("stat ", path), errno);
  if (!S_ISREG(info.st_mode))
    return Status::error(Code::kInvalidArgument, cat(path, " is not a regular file"));
  if (static_cast<uint64_t>(info.st_size) > max_bytes) {
    return Status::error(Code::kResourceExhausted, cat(path, " has ", info.st_size, " B; at most ",
                                                       max_bytes, " B are read"));
  }
  std::string text(static_cast<size_t>(info.st_size), '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::read(fd.get(), text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Status::error(Code::kDataLoss, cat("read ", path), errno);
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  text.resize(done);
  return text;
}

Result<std::optional<int64_t>> json_int(const Json& object, const char* key,
                                        std::string_view what) {
  const Json* value = member(object, key);
  if (value == nullptr) return std::optional<int64_t>();
  if (value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    return wrong_type(what, key, "an integer below 2^63", *value);
  }
  if (value->is_number_integer()) return std::optional<int64_t>(value->get<int64_t>());
  if (value->is_number_float()) {
    const double number = value->get<double>();
    if (std::floor(number) == number && std::fabs(number) < 9e15) {
      return std::optional<int64_t>(static_cast<int64_t>(number));
    }
  }
  return wrong_type(what, key, "an integer", *value);
}

Result<std::optional<double>> json_double(const Json& object, const char* key,
                                          std::string_view what) {
  const Json* value = member(object, key);
  if (value == nullptr) return std::optional<double>();
  if (!value->is_number()) return wrong_type(what, key, "a number", *value);
  return std::optional<double>(value->get<double>());
}

Result<std::optional<bool>> json_bool(const Json& object, const char* key, std::string_view what) {
  const Json* value = member(object, key);
  if (value == nullptr) return std::optional<bool>();
  if (!value->is_boolean()) return wrong_type(what, key, "true or false", *value);
  return std::optional<bool>(value->get<bool>());
}

Result<std::optional<std::string>> json_string(const Json& object, const char* key,
                                               std::string_view what) {
  const Json* value = member(object, key);
  if (value == nullptr) return std::optional<std::string>();
  if (!value->is_string()) return wrong_type(what, key, "a string", *value);
  return std::optional<std::string>(value->get<std::string>());
}

}  // namespace shoal
