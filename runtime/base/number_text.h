#pragma once
#include <cmath>
#include <cstdio>
#include <string>

namespace shoal {

/// A number for a message. with_decimals() writes this many digits after the point ("0.25"), and
/// with_digits() this many significant digits ("20", "0.25"), or more where a power of ten would
/// stand for them: three of 3600 are "3600".
inline std::string with_decimals(double value, int decimals) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}
inline std::string with_digits(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*g", digits, value);
  std::string number = text;
  if (number.find('e') == std::string::npos) return number;
  return with_decimals(value, std::fabs(value) < 1 ? 6 : 0);
}

}  // namespace shoal
