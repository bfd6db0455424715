#pragma once
#include <string>
#include <string_view>

#include "runtime/base/status.h"

namespace shoal::jinja {

struct LiteralError {
  std::string message;
  bool ok() const { return message.empty(); }
};

/// The text between the quotes of a string literal, with Python's escapes replaced. As in Jinja2 an
/// unknown escape stays as it is. Error: an escape that is cut short, or that names no character.
Result<std::string, LiteralError> unescape(std::string_view literal);

}  // namespace shoal::jinja
