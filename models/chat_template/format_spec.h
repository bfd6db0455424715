#pragma once
#include <string>
#include <string_view>

#include "models/chat_template/run.h"

namespace shoal::jinja {

/// How one value is written by % and str.format.
struct FormatSpec {
  std::string fill = " ";
  char align = 0;  ///< < > ^ or =; 0: the default of the type
  char sign = '-';
  bool alternate = false;
  bool grouped = false;  ///< thousands are separated by commas
  size_t width = 0;      ///< characters
  int precision = -1;    ///< -1: not given
  char type = 0;
};

/// Reads "[[fill]align][sign][#][0][width][,][.precision][type]". Fails if it is something else.
FormatSpec parse_format_spec(Run& run, std::string_view text);

/// Writes the value, or fails if its type does not fit.
Text format_value(Run& run, const Value& value, const FormatSpec& spec);

}  // namespace shoal::jinja
