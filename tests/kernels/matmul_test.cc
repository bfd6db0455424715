#include <cmath>

#include "tests/kernels/kernel_test.h"

namespace shoal {
namespace {

struct Product {
  PackedMatrix w;
  Elements x;
  int rows;
  std::vector<float> w_values, x_values;

  /// scale: of weights and inputs.
  Product(Dtype dtype, int row_count, int n, int k, std::vector<LeafStep> leaves, float scale = 1)
      : x(dtype, size_t{0}),
        rows(row_count),
        w_values(random_floats(static_cast<size_t>(n * k), 7)),
        x_values(random_floats(static_cast<size_t>(row_count * k), 8)) {
    for (float& value : w_values) value *= scale;
    for (float& value : x_values) value *= scale;
    w = pack(dtype, n, k, w_values, std::move(leaves));
    x = activations(dtype, rows, k, x_values);
  }

  struct Part {
    int64_t row_begin, row_end;
    int panel_begin, panel_end;
  };
  /// Computes y with a stride wider than n. Elements that no part writes stay NaN.
  std::vector<float> run(const KernelTable& kernels, const std::vector<Part>& parts) const {
    const int64_t stride = w.n() + 3;
    std::vector<float> y(static_cast<size_t>(w.contributions() * rows * stride), std::nanf(""));
    const MatmulArgs args{.w = &w,
                          .x = x.data(),
                          .x_stride = activation_stride(w.k()),
                          .y = y.data(),
                          .y_stride = stride,
                          .plane_stride = rows * stride};
    for (const Part& p : parts)
      kernels.matmul(args, p.row_begin, p.row_end, p.panel_begin, p.panel_end);
    return y;
  }
  std::vector<float> run(const KernelTable& kernels) const {
    return run(kernels, {{0, rows, 0, w.panels()}});
  }
};

class MatmulTest : public KernelTest {};

TEST_P(MatmulTest, IsTheProductInDoublePrecisionWithinRounding) {
  const struct {
    int n, k;
  } shapes[] = {{1, 1}, {16, 2}, {64, 32}, {65, 33}, {130, 96}, {200, 257}};
  for (Dtype dtype : kAllDtypes) {
    for (const auto& shape : shapes) {
      const Product product(dtype, 7, shape.n, shape.k, {{0, shape.k, 0, 0}});
      const std::vector<float> y = product.run(kernels());
      const Elements w(dtype, product.w_values), x(activation_dtype(dtype), product.x_values);
      for (int r = 0; r < 7; ++r) {
        for (int n = 0; n < shape.n + 3; ++n) {
          const float got = y[static_cast<size_t>(r * (shape.n + 3) + n)];
          if (n >= shape.n) {
            EXPECT_TRUE(std::isnan(got)) << "written past the row";
            continue;
          }
          double want = 0, magnitude = 0;
          for (int k = 0; k < shape.k; ++k) {
            const double term = static_cast<double>(w.get(static_cast<size_t>(n * shape.k + k))) *
                                static_cast<double>(x.get(static_cast<size_t>(r * shape.k + k)));
            want += term;
            magnitude += std::abs(term);
          }
          EXPECT_NEAR(got, want, magnitude * shape.k * 0x1p-24 + 1e-30)
              << dtype_name(dtype) << " " << shape.n << "x" << shape.k << " at " << r << "," << n;
        }
      }
    }
  }
}

TEST_P(MatmulTest, HasTheBitsOfTheReference) {
  const std::vector<LeafStep> leaves[] = {
      {{0, 1, 0, 0}}, {{0, 2, 0, 0}}, {{0, 16, 0, -1}, {16, 30, 1, 0}, {30, 257, 0, 1}}};
  for (Dtype dtype : kAllDtypes) {
    for (const std::vector<LeafStep>& steps : leaves) {
      for (const int rows : {1, 2, 3, 4, 5, 6, 7, 13}) {
        const Product product(dtype, rows, 200, steps.back().k_end, steps);
        EXPECT_TRUE(same_bits(product.run(kernels()), product.run(reference())))
            << dtype_name(dtype) << ", " << rows << " rows, k " << steps.back().k_end;
      }
    }
  }
}

TEST_P(MatmulTest, BitsDoNotDependOnRowsOrParts) {
  for (Dtype dtype : kAllDtypes) {
    const Product product(dtype, 13, 200, 97, {{0, 40, 0, -1}, {40, 64, 1, 0}, {64, 97, 0, 1}});
    const std::vector<float> whole = product.run(kernels());
    std::vector<Product::Part> one_row, panels, corner;
    for (int r = 0; r < 13; ++r) one_row.push_back({r, r + 1, 0, 4});
    for (int p = 0; p < 4; ++p) panels.push_back({0, 13, p, p + 1});
    EXPECT_TRUE(same_bits(product.run(kernels(), one_row), whole)) << dtype_name(dtype);
    EXPECT_TRUE(same_bits(product.run(kernels(), panels), whole)) << dtype_name(dtype);
    for (int cut = 1; cut < 13; ++cut) {
      const std::vector<Product::Part> parts = {
          {0, cut, 0, 1}, {0, cut, 1, 4}, {cut, 13, 0, 3}, {cut, 13, 3, 4}};
      EXPECT_TRUE(same_bits(product.run(kernels(), parts), whole))
          << dtype_name(dtype) << " cut at row " << cut;
    }
  }
}

/// Leaves, rows and panels that are cut into several chunks and blocks (kernels/cpu/many_rows.h).
TEST_P(MatmulTest, ManyRowsHaveTheBitsOfTheReferenceAndOfEachRowAlone) {
  const std::vector<LeafStep> leaves = {
      {0, 300, 0, -1}, {300, 302, 0, -1}, {302, 814, 2, 0}, {814, 843, 0, 1}};
  for (Dtype dtype : kAllDtypes) {
    const Product product(dtype, 61, 330, leaves.back().k_end, leaves);
    const std::vector<float> whole = product.run(kernels());
    EXPECT_TRUE(same_bits(whole, product.run(reference()))) << dtype_name(dtype);
    std::vector<Product::Part> one_row;
    for (int r = 0; r < 61; ++r) one_row.push_back({r, r + 1, 0, 6});
    EXPECT_TRUE(same_bits(product.run(kernels(), one_row), whole)) << dtype_name(dtype);
    for (const int cut : {5, 12, 30, 49}) {
      const std::vector<Product::Part> parts = {{0, cut, 0, 5}, {0, cut, 5, 6}, {cut, 61, 0, 6}};
      EXPECT_TRUE(same_bits(product.run(kernels(), parts), whole))
          << dtype_name(dtype) << " cut at row " << cut;
    }
  }
}

/// Every number of rows, so that every height of a tile and every rest, a last panel of which every
/// vector but one is used, products next to 2^-126, and a long leaf when the stack of sums is as
/// deep as it can be.
TEST_P(MatmulTest, EveryNumberOfRowsHasTheBitsOfTheReference) {
  constexpr int kMostRows = 61;
  std::vector<LeafStep> deep;
  for (int leaf = 0; leaf < 7; ++leaf) deep.push_back({leaf * 4, leaf * 4 + 4, 0, -1});
  deep.push_back({28, 328, 7, 0});
  for (Dtype dtype : kAllDtypes) {
    for (const float scale : {1.0f, 0x1p-62f}) {
      if (scale < 1 && dtype == Dtype::kF16) continue;  // it has no weights of this size
      std::vector<float> want = Product(dtype, kMostRows, 104, 328, deep, scale).run(reference());
      const size_t row = want.size() / kMostRows;
      for (int rows = kMostRows; rows >= 1; --rows) {
        want.resize(static_cast<size_t>(rows) * row);  // fewer rows are the first ones of more
        const Product product(dtype, rows, 104, 328, deep, scale);
        EXPECT_TRUE(same_bits(product.run(kernels()), want))
            << dtype_name(dtype) << ", " << rows << " rows, scale " << scale;
      }
    }
  }
}

TEST_P(MatmulTest, APartWritesItsPartAlone) {
  for (Dtype dtype : kAllDtypes) {
    const Product product(dtype, 9, 150, 34, {{0, 34, 0, 0}});
    const std::vector<float> whole = product.run(kernels()),
                             part = product.run(kernels(), {{2, 7, 1, 2}});
    for (int r = 0; r < 9; ++r) {
      for (int n = 0; n < 150; ++n) {
        const auto at = static_cast<size_t>(r * 153 + n);
        if (r >= 2 && r < 7 && n >= 64 && n < 128) {
          EXPECT_EQ(part[at], whole[at]);
        } else {
          EXPECT_TRUE(std::isnan(part[at])) << r << "," << n;
        }
      }
    }
  }
}

TEST_P(MatmulTest, LeavesAreSeparateSumsThatFold) {
  for (Dtype dtype : kAllDtypes) {
    const Product split(dtype, 3, 80, 50, {{0, 16, 0, 0}, {16, 30, 0, 1}, {30, 50, 0, 2}});
    const Product folded(dtype, 3, 80, 50, {{0, 16, 0, -1}, {16, 30, 1, -1}, {30, 50, 1, 0}});
    const Product right(dtype, 3, 80, 50, {{0, 16, 0, -1}, {16, 30, 0, -1}, {30, 50, 2, 0}});
    const std::vector<float> planes = split.run(kernels()), left_sum = folded.run(kernels()),
                             right_sum = right.run(kernels());
    const size_t plane = left_sum.size();
    for (size_t i = 0; i < plane; ++i) {
      if (i % 83 >= 80) continue;
      EXPECT_EQ(left_sum[i], (planes[i] + planes[plane + i]) + planes[2 * plane + i]);
      EXPECT_EQ(right_sum[i], planes[i] + (planes[plane + i] + planes[2 * plane + i]));
    }
  }
}

TEST_P(MatmulTest, NothingToDoIsDone) {
  const Product product(Dtype::kBf16, 2, 64, 4, {{0, 4, 0, 0}});
  for (float y : product.run(kernels(), {{1, 1, 0, 1}, {0, 2, 1, 1}})) EXPECT_TRUE(std::isnan(y));
}

SHOAL_FOR_EVERY_SET(MatmulTest);

}  // namespace
}  // namespace shoal
