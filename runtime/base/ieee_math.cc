#include "runtime/base/ieee_math.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numbers>

namespace shoal::ieee {
namespace {

/// The integer next to x (the even one of two), for |x| < 2^51: the sum has no room for a fraction.
double nearest_integer(double x) {
  return (x + 0x1.8p52) - 0x1.8p52;
}

// ln2 and pi/2 in parts. The first ones end in zeros, so that a product with n is exact.
constexpr double kLn2[] = {0x1.62e42fefa3800p-1, 0x1.ef35793c76730p-45};
constexpr double kHalfPi[] = {0x1.921fb54000000p+0, 0x1.10b4610000000p-30, 0x1.a62633145c06ep-58};

/// Entry i is 1 / i!.
constexpr auto kInverseFactorials = [] {
  std::array<double, 19> values{};
  double factorial = 1;  // exact up to 18!
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) factorial *= static_cast<double>(i);
    values[i] = 1 / factorial;
  }
  return values;
}();

/// The Taylor series in steps of two from kInverseFactorials[last] down to [first], with x2 = -x^2.
double alternating_series(double x2, size_t last, size_t first) {
  double sum = kInverseFactorials[last];
  for (size_t i = last; i > first; i -= 2) sum = sum * x2 + kInverseFactorials[i - 2];
  return sum;
}

/// Sine and cosine for |r| <= pi/4. The series stop before r^19 / 19! and r^18 / 18!, which are
/// both below 2^-58.
double sine_near_zero(double r) {
  const double x2 = -(r * r);
  return r + r * (x2 * alternating_series(x2, 17, 3));
}
double cosine_near_zero(double r) {
  const double x2 = -(r * r);
  return 1 + x2 * alternating_series(x2, 16, 2);
}

/// x = n pi/2 + r with |r| <= pi/4. n has at most 26 bits and each of the first two parts of pi/2
/// has 27, so that their products are exact, and so is each difference that loses leading bits.
struct Reduced {
  double r;
  int64_t n;
};
Reduced reduce(double x) {
  const double n = nearest_integer(x * (2 / std::numbers::pi));
  return {((x - n * kHalfPi[0]) - n * kHalfPi[1]) - n * kHalfPi[2], static_cast<int64_t>(n)};
}

/// 2^n for n in [-1022, 1023].
double power_of_two(int64_t n) {
  return std::bit_cast<double>(static_cast<uint64_t>(n + 1023) << 52);
}

}  // namespace

double exp(double x) {
  if (!(x >= -708)) return x != x ? x : 0;
  if (x > 709.9) return std::numeric_limits<double>::infinity();
  const double n = nearest_integer(x * (1 / std::numbers::ln2));
  const double r = (x - n * kLn2[0]) - n * kLn2[1];  // |r| <= ln2 / 2, and r^14 / 14! < 2^-57
  double sum = kInverseFactorials[13];
  for (size_t i = 13; i > 0; --i) sum = sum * r + kInverseFactorials[i - 1];
  // In two factors, because 2^1024 is not a double.
  const auto exponent = static_cast<int64_t>(n), first = exponent >> 1;
  return sum * power_of_two(first) * power_of_two(exponent - first);
}

double log(double x) {
  if (!(x > 0)) {
    return x == 0 ? -std::numeric_limits<double>::infinity()
                  : std::numeric_limits<double>::quiet_NaN();
  }
  if (x > std::numeric_limits<double>::max()) return x;
  // x = m 2^n with m in [sqrt(1/2), sqrt(2)), and log(m) = 2 artanh(s) with s = (m - 1) / (m + 1).
  const auto bits = std::bit_cast<uint64_t>(x);
  int64_t exponent = static_cast<int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xFFFFFFFFFFFFF) | 0x3FF0000000000000);
  if (m > std::numbers::sqrt2) {
    m /= 2;
    ++exponent;
  }
  const auto n = static_cast<double>(exponent);
  const double s = (m - 1) / (m + 1), s2 = s * s;  // |s| < 0.1716, and s^24 / 25 < 2^-65
  double sum = 1.0 / 23;
  for (int i = 21; i >= 3; i -= 2) sum = sum * s2 + 1.0 / i;
  // artanh(s) = s + s^3 / 3 + ...; the greatest parts are added last.
  return n * kLn2[0] + (2 * s + (2 * s * (s2 * sum) + n * kLn2[1]));
}

double pow(double base, double exponent) {
  return exp(exponent * log(base));
}

double sin(double x) {
  const auto [r, n] = reduce(x);
  const double magnitude = (n & 1) == 0 ? sine_near_zero(r) : cosine_near_zero(r);
  return (n & 2) == 0 ? magnitude : -magnitude;
}

double cos(double x) {
  const auto [r, n] = reduce(x);
  const double magnitude = (n & 1) == 0 ? cosine_near_zero(r) : sine_near_zero(r);
  return ((n + 1) & 2) == 0 ? magnitude : -magnitude;
}

}  // namespace shoal::ieee
