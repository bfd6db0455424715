#pragma once
#include <cstring>
#include <gtest/gtest.h>
#include <random>
#include <string>
#include <vector>

#include "kernels/kernel_table.h"
#include "runtime/base/thread_pool.h"

// What the kernel tests share. Every test runs once for each kernel set that this processor
// supports.

namespace shoal {

class KernelTest : public testing::TestWithParam<const KernelTable*> {
 protected:
  void SetUp() override { set_float_environment(); }
  const KernelTable& kernels() const { return *GetParam(); }
  /// The kernel set whose results count as right.
  const KernelTable& reference() const { return *available_kernels().back(); }
};

inline std::string set_name(const testing::TestParamInfo<const KernelTable*>& info) {
  std::string name = info.param->name;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
}

#define SHOAL_FOR_EVERY_SET(Fixture) \
  INSTANTIATE_TEST_SUITE_P(Sets, Fixture, testing::ValuesIn(available_kernels()), set_name)

inline std::vector<float> random_floats(size_t count, uint32_t seed, float scale = 1.0f) {
  std::mt19937 engine(seed);
  std::vector<float> values(count);
  // std::normal_distribution is not used, because its values depend on the library.
  for (float& v : values) v = scale * (static_cast<float>(engine() >> 8) * 0x1p-23f - 1.0f);
  return values;
}

/// An array of any element type.
struct Elements {
  Dtype dtype = Dtype::kF32;
  std::vector<std::byte> bytes;

  Elements(Dtype type, size_t count) : dtype(type), bytes(count * dtype_bytes(type)) {}
  /// The values, rounded to the type.
  Elements(Dtype type, const std::vector<float>& values) : Elements(type, values.size()) {
    for (size_t i = 0; i < values.size(); ++i) set(i, values[i]);
  }
  void set(size_t i, float value) {
    if (dtype == Dtype::kF32) {
      std::memcpy(bytes.data() + i * 4, &value, 4);
      return;
    }
    const uint16_t bits = dtype == Dtype::kBf16 ? float_to_bf16(value) : float_to_f16(value);
    std::memcpy(bytes.data() + i * 2, &bits, 2);
  }
  float get(size_t i) const {
    if (dtype == Dtype::kF32) {
      float value;
      std::memcpy(&value, bytes.data() + i * 4, 4);
      return value;
    }
    uint16_t bits;
    std::memcpy(&bits, bytes.data() + i * 2, 2);
    return dtype == Dtype::kBf16 ? bf16_to_float(bits) : f16_to_float(bits);
  }
  size_t size() const { return bytes.size() / dtype_bytes(dtype); }
  void* data() { return bytes.data(); }
  const void* data() const { return bytes.data(); }
};

/// Compares bit for bit, so a NaN equals itself and 0 differs from -0.
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

/// Packs row-major values, rounded to dtype, into a matrix.
inline PackedMatrix pack(Dtype dtype, int n, int k, const std::vector<float>& values,
                         std::vector<LeafStep> leaves) {
  Result<PackedMatrix> matrix = PackedMatrix::allocate(dtype, n, k, std::move(leaves));
  EXPECT_TRUE(matrix.ok()) << matrix.status().to_string();
  const Elements source(dtype, values);
  matrix.value().pack_rows(0, n, source.data(), k);
  return std::move(matrix).value();
}

/// Rows of activations, with the padding that kernels rely on.
inline Elements activations(Dtype weights, int rows, int columns,
                            const std::vector<float>& values) {
  const auto stride = static_cast<size_t>(activation_stride(columns));
  Elements x(activation_dtype(weights), static_cast<size_t>(rows) * stride);
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < columns; ++c) {
      x.set(static_cast<size_t>(r) * stride + static_cast<size_t>(c),
            values[static_cast<size_t>(r * columns + c)]);
    }
  }
  return x;
}

inline constexpr Dtype kAllDtypes[] = {Dtype::kF32, Dtype::kF16, Dtype::kBf16};

}  // namespace shoal
