#include <csignal>
#include <gtest/gtest.h>

#include "kernels/kernel_set.h"
#include "runtime/worker/arithmetic.h"
#include "tests/in_child.h"
#include "tests/kernels/kernel_test.h"

SHOAL_DECLARE_KERNEL_SET(avx512_bf16)

// The kernel set avx512-bf16 on every processor that has its instructions, even if a hypervisor
// hides these instructions. The program does not use the set there, so no other test does.

namespace shoal {
namespace {

/// The table of the set: its own products, and all other kernels from avx512.
KernelTable table_of(const KernelTable& avx512) {
  KernelTable table = avx512;
  table.matmul = avx512_bf16::matmul;
  return table;
}

/// "" if this processor multiplies two rows by the set. An instruction that it lacks ends a child.
std::string multiply_in_child(const KernelTable& set) {
  return in_child([&set] {
    const PackedMatrix w = pack(Dtype::kBf16, 64, 32, random_floats(64 * 32, 1), {{0, 32, 0, 0}});
    const Elements x = activations(Dtype::kBf16, 2, 32, random_floats(64, 2));
    float y[2 * 64];
    const MatmulArgs args{.w = &w,
                          .x = x.data(),
                          .x_stride = activation_stride(32),
                          .y = y,
                          .y_stride = 64,
                          .plane_stride = 2 * 64};
    set.matmul(args, 0, 2, 0, 1);
    return std::string();
  });
}

class Avx512Bf16Test : public testing::Test {
 protected:
  void SetUp() override {
    const Result<const KernelTable*> avx512 = find_kernels("avx512");
    if (!avx512.ok()) GTEST_SKIP() << avx512.status().to_string();
    set_ = table_of(**avx512);
    const std::string end = multiply_in_child(set_);
    if (end == cat("signal ", SIGILL)) GTEST_SKIP() << "this processor has no VDPBF16PS";
    ASSERT_EQ(end, "");
    set_float_environment();
  }

  KernelTable set_{};
};

TEST_F(Avx512Bf16Test, HasTheFingerprintOfEveryBuild) {
  const Result<ArithmeticFingerprint> here = compute_fingerprint(set_);
  ASSERT_TRUE(here.ok()) << here.status().to_string();
  EXPECT_EQ(here->text(), expected_fingerprint().text());
}

struct Part {
  int64_t row_begin, row_end;
  int panel_begin, panel_end;
};

std::vector<float> product(const KernelTable& kernels, const PackedMatrix& w, const Elements& x,
                           int64_t rows, const std::vector<Part>& parts) {
  std::vector<float> y(static_cast<size_t>(w.contributions() * rows * w.n()), std::nanf(""));
  const MatmulArgs args{.w = &w,
                        .x = x.data(),
                        .x_stride = activation_stride(w.k()),
                        .y = y.data(),
                        .y_stride = w.n(),
                        .plane_stride = rows * w.n()};
  for (const Part& part : parts)
    kernels.matmul(args, part.row_begin, part.row_end, part.panel_begin, part.panel_end);
  return y;
}

TEST_F(Avx512Bf16Test, ProductsHaveTheBitsOfTheReferenceForAnyNumberOfRows) {
  constexpr int kOutputs = 200, kColumns = 257;
  const std::vector<LeafStep> leaves = {{0, 16, 0, -1}, {16, 30, 1, 0}, {30, kColumns, 0, 1}};
  const KernelTable& reference = *available_kernels().back();
  for (const float scale : {1.0f, 0x1p-62f}) {  // products of the second are next to 2^-126
    const PackedMatrix w = pack(Dtype::kBf16, kOutputs, kColumns,
                                random_floats(kOutputs * kColumns, 7, scale), leaves);
    for (const int rows : {1, 2, 3, 4, 5, 6, 7, 11, 13, 61}) {
      const Elements x = activations(Dtype::kBf16, rows, kColumns,
                                     random_floats(static_cast<size_t>(rows) * kColumns, 8, scale));
      const std::vector<Part> whole = {{0, rows, 0, w.panels()}},
                              cut = {{0, rows / 3, 0, w.panels()},
                                     {rows / 3, rows, 0, 1},
                                     {rows / 3, rows, 1, w.panels()}};
      const std::vector<float> expected = product(reference, w, x, rows, whole);
      EXPECT_TRUE(same_bits(product(set_, w, x, rows, whole), expected)) << rows << " rows";
      EXPECT_TRUE(same_bits(product(set_, w, x, rows, cut), expected)) << rows << " rows, cut";
    }
  }
}

}  // namespace
}  // namespace shoal
