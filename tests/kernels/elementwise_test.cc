#include <cmath>
#include <limits>

#include "tests/kernels/kernel_test.h"

namespace shoal {
namespace {

constexpr int kSizes[] = {1, 7, 15, 16, 17, 64, 65, 100, 333, 2053};

class ElementwiseTest : public KernelTest {};

TEST_P(ElementwiseTest, EmbedWidensFromAnyAddress) {
  for (Dtype dtype : kAllDtypes) {
    for (int hidden : {1, 10, 16, 37, 128}) {
      const std::vector<float> values = random_floats(static_cast<size_t>(5 * hidden), 3);
      const Elements table(dtype, values);
      for (size_t shift : {0u, 1u, 3u}) {
        std::vector<std::byte> moved(table.bytes.size() + shift);
        std::memcpy(moved.data() + shift, table.bytes.data(), table.bytes.size());
        const int32_t ids[] = {4, 0, 2, 4};
        std::vector<float> out(static_cast<size_t>(4 * hidden), std::nanf(""));
        const EmbedArgs args{.table = moved.data() + shift,
                             .dtype = dtype,
                             .ids = ids,
                             .hidden = hidden,
                             .out = out.data()};
        kernels().embed(args, 0, 1);
        kernels().embed(args, 1, 4);
        for (int t = 0; t < 4; ++t) {
          for (int i = 0; i < hidden; ++i) {
            EXPECT_EQ(out[static_cast<size_t>(t * hidden + i)],
                      table.get(static_cast<size_t>(ids[t] * hidden + i)));
          }
        }
      }
    }
  }
}

TEST_P(ElementwiseTest, RmsNormIsThatOfEachRow) {
  constexpr int kRows = 3;
  for (Dtype out_dtype : {Dtype::kF32, Dtype::kBf16}) {
    for (int cols : kSizes) {
      const auto stride = static_cast<size_t>(activation_stride(cols));
      const std::vector<float> x = random_floats(static_cast<size_t>(kRows * cols), 11, 4),
                               weight = random_floats(static_cast<size_t>(cols), 12, 2);
      Elements whole(out_dtype, std::vector<float>(kRows * stride, 9.0f)), rows = whole;
      RmsNormArgs args{.x = x.data(),
                       .weight = weight.data(),
                       .eps = 1e-5f,
                       .cols = cols,
                       .out = whole.data(),
                       .out_dtype = out_dtype,
                       .out_stride = static_cast<int64_t>(stride)};
      kernels().rms_norm(args, 0, kRows);
      args.out = rows.data();
      for (int r = kRows - 1; r >= 0; --r) kernels().rms_norm(args, r, r + 1);
      EXPECT_EQ(whole.bytes, rows.bytes);
      for (size_t r = 0; r < kRows; ++r) {
        double squares = 0;
        for (size_t i = 0; i < static_cast<size_t>(cols); ++i) {
          const double v = x[r * static_cast<size_t>(cols) + i];
          squares += v * v;
        }
        const double scale = 1 / std::sqrt(squares / cols + 1e-5);
        for (size_t i = 0; i < stride; ++i) {
          const float got = whole.get(r * stride + i);
          if (i >= static_cast<size_t>(cols)) {
            EXPECT_EQ(got, 0) << "padding";
            continue;
          }
          const double want = x[r * static_cast<size_t>(cols) + i] * scale * weight[i];
          EXPECT_NEAR(got, want, std::abs(want) * (out_dtype == Dtype::kF32 ? 2e-6 : 4e-3))
              << cols << " at " << i;
        }
      }
    }
  }
}

TEST_P(ElementwiseTest, RoundsToBf16AsTheDefinition) {
  // `up` has ties, values that round to infinity, and NaN. The same product is computed once
  // unrounded and once rounded.
  std::vector<float> up = {1.00390625f, 1.01171875f, -1.00390625f, 3.39e38f,
                           -3.4e38f,    0.0f,        -0.0f,        std::nanf("")};
  const std::vector<float> random = random_floats(1000, 4, 100);
  up.insert(up.end(), random.begin(), random.end());
  std::vector<float> gate_up(up.size(), 100.0f);  // silu(100) is 100
  gate_up.insert(gate_up.end(), up.begin(), up.end());
  std::vector<float> exact(up.size());
  const auto cols = static_cast<int>(up.size());
  SiluMulArgs args{
      .gate_up = gate_up.data(), .cols = cols, .out = exact.data(), .out_stride = cols};
  kernels().silu_mul(args, 0, 1);
  Elements rounded(Dtype::kBf16, up.size());
  args.out = rounded.data();
  args.out_dtype = Dtype::kBf16;
  kernels().silu_mul(args, 0, 1);
  for (size_t i = 0; i < up.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, rounded.bytes.data() + 2 * i, 2);
    EXPECT_EQ(bits, float_to_bf16(exact[i])) << exact[i];
  }
}

TEST_P(ElementwiseTest, ResidualAddsTheSumWithItsBias) {
  constexpr int kRows = 3;
  for (int cols : kSizes) {
    const auto count = static_cast<size_t>(kRows * cols);
    const std::vector<float> start = random_floats(count, 1), sum = random_floats(count, 2),
                             bias = random_floats(static_cast<size_t>(cols), 3);
    for (bool with_bias : {false, true}) {
      std::vector<float> residual = start;
      const ResidualAddArgs args{.residual = residual.data(),
                                 .sum = sum.data(),
                                 .bias = with_bias ? bias.data() : nullptr,
                                 .cols = cols};
      kernels().residual_add(args, 1, kRows);
      kernels().residual_add(args, 0, 1);
      for (size_t i = 0; i < count; ++i) {
        const float addend = with_bias ? sum[i] + bias[i % static_cast<size_t>(cols)] : sum[i];
        EXPECT_EQ(residual[i], start[i] + addend);
      }
    }
  }
}

TEST_P(ElementwiseTest, SiluMulIsSiluTimesUp) {
  constexpr size_t kRows = 2;
  for (Dtype out_dtype : {Dtype::kF32, Dtype::kBf16}) {
    for (int cols : kSizes) {
      const auto columns = static_cast<size_t>(cols),
                 stride = static_cast<size_t>(activation_stride(cols));
      const std::vector<float> gate_up = random_floats(kRows * 2 * columns, 6, 20),
                               bias = random_floats(2 * columns, 7);
      for (bool with_bias : {false, true}) {
        Elements out(out_dtype, std::vector<float>(kRows * stride, 9.0f));
        const SiluMulArgs args{.gate_up = gate_up.data(),
                               .bias = with_bias ? bias.data() : nullptr,
                               .cols = cols,
                               .out = out.data(),
                               .out_dtype = out_dtype,
                               .out_stride = static_cast<int64_t>(stride)};
        kernels().silu_mul(args, 0, 1);
        kernels().silu_mul(args, 1, 2);
        for (size_t r = 0; r < kRows; ++r) {
          for (size_t i = 0; i < stride; ++i) {
            const float got = out.get(r * stride + i);
            if (i >= columns) {
              EXPECT_EQ(got, 0) << "padding";
              continue;
            }
            const float g = gate_up[r * 2 * columns + i] + (with_bias ? bias[i] : 0.0f);
            const float u =
                gate_up[r * 2 * columns + columns + i] + (with_bias ? bias[columns + i] : 0.0f);
            const double want = g / (1 + std::exp(-static_cast<double>(g))) * u;
            EXPECT_NEAR(got, want,
                        std::abs(want) * (out_dtype == Dtype::kF32 ? 2e-6 : 4e-3) + 1e-30)
                << g << " " << u;
          }
        }
      }
    }
  }
}

TEST_P(ElementwiseTest, SiluOfLargeGatesIsTheGateOrZero) {
  const std::vector<float> gates = {1e4f, -1e4f, 3e38f, -3e38f, 0.0f, 90.0f, -90.0f, -200.0f};
  std::vector<float> gate_up = gates;
  gate_up.resize(2 * gates.size(), 1.0f);
  std::vector<float> out(gates.size());
  kernels().silu_mul({.gate_up = gate_up.data(), .cols = 8, .out = out.data(), .out_stride = 8}, 0,
                     1);
  for (size_t i = 0; i < gates.size(); ++i) {
    EXPECT_NEAR(out[i], gates[i] > 0 ? gates[i] : 0.0f, std::abs(gates[i]) * 1e-30) << gates[i];
  }
}

TEST_P(ElementwiseTest, AddIsTheSameInAnySplit) {
  for (int count : kSizes) {
    const std::vector<float> a = random_floats(static_cast<size_t>(count), 1),
                             b = random_floats(static_cast<size_t>(count), 2);
    std::vector<float> whole = a, split = a;
    kernels().add(whole.data(), b.data(), count);
    const int cut = count / 3;
    kernels().add(split.data() + cut, b.data() + cut, count - cut);
    kernels().add(split.data(), b.data(), cut);
    EXPECT_TRUE(same_bits(whole, split));
    for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(whole[i], a[i] + b[i]);
  }
}

SHOAL_FOR_EVERY_SET(ElementwiseTest);

}  // namespace
}  // namespace shoal
