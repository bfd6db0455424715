#pragma once
#include <cstdio>
#include <string>

namespace shoal {

/// A number for a message. with_decimals() writes this many digits after the point ("0.25"), and
/// with_digits() this many significant digits ("20", "0.25").
inline std::string with_decimals(double value, int decimals) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}
inline std::string with_digits(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*g", digits, value);
  return text;
}

}  // namespace shoal
