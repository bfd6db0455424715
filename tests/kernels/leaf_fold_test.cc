#include <cmath>

#include "runtime/base/reduce_tree.h"
#include "tests/kernels/kernel_test.h"

// A row-parallel product over any number of ranks must give the bits of one rank
// (docs/architecture.md, section 5).

namespace shoal {
namespace {

constexpr int kInputs = 2, kOutputs = 70, kUnitColumns = 4;

/// K has `units` of kUnitColumns. The last unit lacks a column, so that K is odd.
struct Layer {
  Dtype dtype;
  int units, columns;
  std::vector<float> w, x;

  Layer(Dtype type, int unit_count)
      : dtype(type),
        units(unit_count),
        columns(unit_count * kUnitColumns - 1),
        w(random_floats(static_cast<size_t>(kOutputs * columns), 21)),
        x(random_floats(static_cast<size_t>(kInputs * columns), 22)) {}

  Range columns_of(Range unit_range) const {
    return {unit_range.begin * kUnitColumns, std::min(unit_range.end * kUnitColumns, columns)};
  }

  /// Columns [begin, end) of a row-major matrix.
  std::vector<float> slice(const std::vector<float>& all, int rows, Range range) const {
    std::vector<float> part;
    for (int r = 0; r < rows; ++r) {
      part.insert(part.end(), all.begin() + r * columns + range.begin,
                  all.begin() + r * columns + range.end);
    }
    return part;
  }

  /// The planes that one rank contributes.
  std::vector<std::vector<float>> contribute(const KernelTable& kernels, const RankFold& fold,
                                             int leaves) const {
    if (fold.steps.empty()) return {};
    const Range mine{columns_of(leaf_units(fold.steps.front().leaf, leaves, units)).begin,
                     columns_of(leaf_units(fold.steps.back().leaf, leaves, units)).end};
    std::vector<LeafStep> steps;
    for (const RankFold::Step& step : fold.steps) {
      const Range range = columns_of(leaf_units(step.leaf, leaves, units));
      steps.push_back(
          {range.begin - mine.begin, range.end - mine.begin, step.merges, step.contribution});
    }
    const PackedMatrix matrix = pack(dtype, kOutputs, mine.size(), slice(w, kOutputs, mine), steps);
    const Elements input = activations(dtype, kInputs, mine.size(), slice(x, kInputs, mine));
    std::vector<float> y(static_cast<size_t>(fold.contributions * kInputs * kOutputs),
                         std::nanf(""));
    kernels.matmul({.w = &matrix,
                    .x = input.data(),
                    .x_stride = activation_stride(mine.size()),
                    .y = y.data(),
                    .y_stride = kOutputs,
                    .plane_stride = kInputs * kOutputs},
                   0, kInputs, 0, matrix.panels());
    std::vector<std::vector<float>> planes;
    for (int c = 0; c < fold.contributions; ++c) {
      planes.emplace_back(y.begin() + c * kInputs * kOutputs,
                          y.begin() + (c + 1) * kInputs * kOutputs);
    }
    return planes;
  }

  /// The whole product over world_size ranks, completed in the way of every rank.
  std::vector<float> run(const KernelTable& kernels, int leaves, int world_size) const {
    const ReducePlan plan = make_reduce_plan(leaves, units, world_size);
    std::vector<std::vector<float>> stack;
    size_t at = 0;
    for (const RankFold& rank : plan.ranks) {
      for (std::vector<float>& plane : contribute(kernels, rank, leaves)) {
        stack.push_back(std::move(plane));
        for (int merge = 0; merge < plan.finish.merges[at]; ++merge) {
          const std::vector<float> b = std::move(stack.back());
          stack.pop_back();
          kernels.add(stack.back().data(), b.data(), static_cast<int64_t>(b.size()));
        }
        ++at;
      }
    }
    EXPECT_EQ(stack.size(), 1u);
    return stack.empty() ? std::vector<float>() : stack.front();
  }
};

class LeafFoldTest : public KernelTest {};

TEST_P(LeafFoldTest, AnyNumberOfRanksGivesTheBitsOfOne) {
  for (Dtype dtype : kAllDtypes) {
    for (int leaves = 1; leaves <= 16; ++leaves) {
      for (int units : {1, 3, leaves, 21}) {
        const Layer layer(dtype, units);
        const std::vector<float> one = layer.run(kernels(), leaves, 1);
        for (int world_size = 2; world_size <= leaves; ++world_size) {
          EXPECT_TRUE(same_bits(layer.run(kernels(), leaves, world_size), one))
              << dtype_name(dtype) << ": " << leaves << " leaves over " << units << " units on "
              << world_size << " ranks";
        }
      }
    }
  }
}

TEST_P(LeafFoldTest, OneRankIsTheProductWithinRounding) {
  const Layer layer(Dtype::kF32, 21);
  const std::vector<float> y = layer.run(kernels(), 16, 1);
  for (int r = 0; r < kInputs; ++r) {
    for (int n = 0; n < kOutputs; ++n) {
      double want = 0;
      for (int k = 0; k < layer.columns; ++k) {
        want += static_cast<double>(layer.w[static_cast<size_t>(n * layer.columns + k)]) *
                static_cast<double>(layer.x[static_cast<size_t>(r * layer.columns + k)]);
      }
      EXPECT_NEAR(y[static_cast<size_t>(r * kOutputs + n)], want, 1e-4);
    }
  }
}

SHOAL_FOR_EVERY_SET(LeafFoldTest);

}  // namespace
}  // namespace shoal
