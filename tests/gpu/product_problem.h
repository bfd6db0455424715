#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/dtype.h"
#include "runtime/base/reduce_tree.h"
#include "tests/conformance/tree_cases.h"
#include "tests/emulator/tensor_core.h"
#include "tests/gpu/one_device.h"

namespace shoal::gpu {

/// Factors of products: weights W [outputs, k] and inputs x [rows, k], as numbers that their types
/// hold exactly, and the columns at which leaves begin.
struct ProductFactors {
  Dtype type = Dtype::kBf16;  ///< of the weights
  int outputs = 0;
  int rows = 0;
  std::vector<int> leaf_begin;  ///< [leaves + 1], from 0 to k; a leaf may be empty
  std::vector<float> weights;
  std::vector<float> x;
  int k() const { return leaf_begin.back(); }
};

/// How numbers are drawn.
enum class Values {
  kUsual,        ///< of the size of weights and activations
  kAdversarial,  ///< with exponents far apart, that cancel, subnormal, or zero of either sign
};
/// Leaves are those of a K dimension of `units` units of `unit_columns` columns each, in 8 leaves.
ProductFactors make_factors(Dtype type, int outputs, int rows, int units, int unit_columns,
                            Values values, uint64_t seed);

/// What a product gives: planes [contributions][rows][outputs].
struct ProductResult {
  std::string wrong;  ///< empty, or why there is no result
  std::vector<float> planes;
};

/// Runs the part of the product that rank `rank` of the group computes, on the device, in a given
/// shape or, if shape is -1, in the one that product() chooses. Outputs and scratch memory are
/// poisoned before, and what lies outside of the leaves is NaN.
ProductResult run_product(OneDevice& device, const ProductFactors& factors, int rank, int ranks,
                          int shape);

/// The leaves' sums of the whole product, [leaves][rows][outputs], which it leaves unfolded, and
/// the merges after each.
struct UnfoldedProduct {
  std::string wrong;  ///< empty, or why there is no result
  std::vector<float> sums;
  std::vector<int32_t> merges;
};
UnfoldedProduct run_unfolded(OneDevice& device, const ProductFactors& factors, int shape);

/// What run_product() gives, by a plain loop over the type's arithmetic.
std::vector<float> expected_planes(const emulator::TensorCore& core, const ProductFactors& factors,
                                   int rank, int ranks);

/// The result of the whole group: the fold of all ranks' planes. [rows][outputs]
std::vector<float> finish_planes(const ProductFactors& factors,
                                 const std::vector<std::vector<float>>& planes_of_ranks);

/// The plan of a group of this size for these leaves.
ReducePlan plan_of(const ProductFactors& factors, int ranks);

}  // namespace shoal::gpu
