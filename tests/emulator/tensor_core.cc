#include "tests/emulator/tensor_core.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>

namespace shoal::emulator {
namespace {

/// Fraction bits of tf32. Factors are kept as tf32, which holds every bfloat16 number.
constexpr int kFactorBits = 10;

/// value = significand * 2^(exponent - bits), where bits is 10 for a factor and 23 for float32.
struct Parts {
  int64_t significand = 0;  ///< with its sign; subnormals have no leading 1
  int exponent = 0;         ///< of a subnormal: that of the smallest normal number
};

Parts parts_of(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const int biased = static_cast<int>(bits >> 23 & 0xff);
  const int64_t fraction = bits & 0x7fffff;
  const int64_t size = biased == 0 ? fraction : fraction | 0x800000;
  return {(bits >> 31) != 0 ? -size : size, std::max(biased, 1) - 127};
}

bool is_finite(uint32_t bits) {
  return (bits & 0x7f800000) != 0x7f800000;
}
bool is_finite(float value) {
  return is_finite(std::bit_cast<uint32_t>(value));
}
bool is_nan(uint32_t bits) {
  return (bits & 0x7fffffff) > 0x7f800000;
}
bool is_zero(uint32_t bits) {
  return (bits & 0x7fffffff) == 0;
}

/// Moves the point and cuts towards zero what falls off.
int64_t shifted(int64_t value, int left) {
  if (left >= 0) return value * (int64_t{1} << left);
  if (left < -62) return 0;
  return value / (int64_t{1} << -left);
}

/// sum * 2^(exponent - fraction_bits), cut towards zero to a float32, which may be subnormal. It
/// is put together from bits, because the processor flushes subnormals while kernels run.
float cut_to_float(int64_t sum, int exponent, int fraction_bits) {
  const uint32_t sign = sum < 0 ? 0x80000000U : 0;
  auto size = static_cast<uint64_t>(sum < 0 ? -sum : sum);
  int scale = exponent - fraction_bits;
  const int right = std::max(static_cast<int>(std::bit_width(size)) - 24, -149 - scale);
  size = right >= 0 ? size >> right : size << -right;
  scale += right;
  if (size == 0) return 0;  // which has no sign
  if (size < 0x800000) return std::bit_cast<float>(sign | static_cast<uint32_t>(size));
  const int biased = scale + 23 + 127;
  if (biased >= 255) return std::bit_cast<float>(sign | 0x7f800000U);
  return std::bit_cast<float>(sign | static_cast<uint32_t>(biased) << 23 |
                              (static_cast<uint32_t>(size) & 0x7fffff));
}

/// What a sum is that holds NaN or infinity. The tensor core has one NaN. All is decided by bits,
/// because the processor takes subnormals for zero while kernels run, and because the sizes of the
/// finite terms do not matter.
float sum_of_special(const uint32_t* a, const uint32_t* b, int terms, float sum) {
  bool nan = std::isnan(sum);
  bool infinite[2] = {};  // with either sign
  if (std::isinf(sum)) infinite[std::signbit(sum) ? 1 : 0] = true;
  for (int i = 0; i < terms; ++i) {
    if (is_finite(a[i]) && is_finite(b[i])) continue;
    nan = nan || is_nan(a[i]) || is_nan(b[i]) || is_zero(a[i]) || is_zero(b[i]);
    infinite[(a[i] ^ b[i]) >> 31] = true;
  }
  if (nan || (infinite[0] && infinite[1])) return std::bit_cast<float>(0x7fffffffU);
  return std::bit_cast<float>(infinite[0] ? 0x7f800000U : 0xff800000U);
}

/// Up to 16 factors in parts, which a warp's fragments share.
struct Factor {
  int32_t size[16];  ///< without the sign
  int32_t exponent[16];
  bool negative[16];
  uint32_t special = 0;  ///< a bit for each factor that is NaN or infinity
  uint32_t bits[16];     ///< as tf32
};

void set(Factor& factor, int i, uint32_t bits) {
  bits &= ~((uint32_t{1} << (23 - kFactorBits)) - 1);
  const Parts parts = parts_of(std::bit_cast<float>(bits));
  factor.bits[i] = bits;
  factor.negative[i] = parts.significand < 0;
  factor.size[i] = static_cast<int32_t>(std::abs(parts.significand) >> (23 - kFactorBits));
  factor.exponent[i] = parts.exponent;
  if (!is_finite(bits)) factor.special |= 1U << i;
}
Factor factor_of(const uint16_t bits[16]) {
  Factor factor;
  for (int i = 0; i < 16; ++i) set(factor, i, static_cast<uint32_t>(bits[i]) << 16);
  return factor;
}
Factor factor_of(const float values[8]) {
  Factor factor;
  for (int i = 0; i < 8; ++i) set(factor, i, std::bit_cast<uint32_t>(values[i]));
  return factor;
}

/// How many factors of each type one instruction multiplies, and how many products one sum takes.
template <class T>
constexpr int kFactors = sizeof(T) == 2 ? 16 : 8;
template <class T>
constexpr int terms_of(const TensorCore& core) {
  return core.terms * kFactors<T> / 16;
}

float fused_sum(const TensorCore& core, int terms, const Factor& a, const Factor& b, int first,
                float sum) {
  const int zero = core.zero_exponent;
  const Parts addend = parts_of(sum);
  int32_t sizes[16], exponents[16];
  int most = addend.significand == 0 ? zero : addend.exponent;
  for (int i = 0; i < terms; ++i) {
    sizes[i] = a.size[first + i] * b.size[first + i];
    exponents[i] = sizes[i] == 0 ? zero : a.exponent[first + i] + b.exponent[first + i];
    most = std::max(most, exponents[i]);
  }
  int64_t total = shifted(addend.significand, addend.exponent - most + core.fraction_bits - 23);
  for (int i = 0; i < terms; ++i) {
    const int64_t cut = (int64_t{sizes[i]} << (core.fraction_bits - 2 * kFactorBits)) >>
                        std::min(most - exponents[i], 63);
    total += a.negative[first + i] != b.negative[first + i] ? -cut : cut;
  }
  return cut_to_float(total, most, core.fraction_bits);
}

template <class T>
float multiply(const TensorCore& core, const Factor& a, const Factor& b, float sum) {
  const int terms = terms_of<T>(core);
  const uint32_t special = a.special | b.special;
  for (int first = 0; first < kFactors<T>; first += terms) {
    const uint32_t of_these = special >> first & ((1U << terms) - 1);
    if (of_these == 0 && is_finite(sum)) {
      sum = fused_sum(core, terms, a, b, first, sum);
    } else {
      sum = sum_of_special(a.bits + first, b.bits + first, terms, sum);
    }
  }
  return sum;
}

template <class T>
void multiply_all(const TensorCore& core, const T a[16][kFactors<T>], const T b[8][kFactors<T>],
                  float sum[16][8]) {
  Factor rows[16], columns[8];
  for (int i = 0; i < 16; ++i) rows[i] = factor_of(a[i]);
  for (int i = 0; i < 8; ++i) columns[i] = factor_of(b[i]);
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) sum[i][j] = multiply<T>(core, rows[i], columns[j], sum[i][j]);
  }
}

}  // namespace

TensorCore tensor_core_of(int major) {
  return major >= 9 ? TensorCore{16, 25, -133} : TensorCore{8, 24, -132};
}

float multiply_row(const TensorCore& core, const uint16_t a[16], const uint16_t b[16], float sum) {
  return multiply<uint16_t>(core, factor_of(a), factor_of(b), sum);
}
float multiply_row(const TensorCore& core, const float a[8], const float b[8], float sum) {
  return multiply<float>(core, factor_of(a), factor_of(b), sum);
}

void multiply_tile(const TensorCore& core, const uint16_t a[16][16], const uint16_t b[8][16],
                   float sum[16][8]) {
  multiply_all<uint16_t>(core, a, b, sum);
}
void multiply_tile(const TensorCore& core, const float a[16][8], const float b[8][8],
                   float sum[16][8]) {
  multiply_all<float>(core, a, b, sum);
}

}  // namespace shoal::emulator
