#include "tests/gpu/product_problem.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/args.h"
#include "runtime/base/cat.h"
#include "runtime/comm/tree_sum.h"
#include "tests/gpu/chain.h"
#include "tests/gpu/layer_problem.h"

namespace shoal::gpu {
namespace {

constexpr int kLeaves = 8;
constexpr int kWeightPadding = 64;
/// A number of the sign and fraction of `bits`, which overlap with nothing that draw() decides by.
float with_exponent(uint64_t bits, int exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits >> 63 << 31) |
                              static_cast<uint32_t>(exponent) << 23 |
                              static_cast<uint32_t>(bits >> 40 & 0x7fffff));
}

/// Cuts the bits of the fraction that the type cannot hold. It does not round, so subnormals stay
/// subnormals.
float held_by(Dtype type, float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return type == Dtype::kBf16 ? std::bit_cast<float>(bits & 0xffff0000U) : value;
}

/// The same for float16, whose exponents are few.
float draw_f16(Pattern& pattern, Values values) {
  const auto bits = static_cast<uint16_t>(pattern.next() >> 40);
  const auto exponent = static_cast<uint16_t>(pattern.below(values == Values::kUsual ? 7 : 31));
  const auto with = [&](int of) { return f16_to_float((bits & 0x83ff) | of << 10); };
  if (values == Values::kUsual) return with(9 + exponent);
  return exponent == 30 ? std::copysign(1.0f, with(1)) : with(exponent);
}

float draw(Pattern& pattern, Values values, Dtype type) {
  if (type == Dtype::kF16) return draw_f16(pattern, values);
  const uint64_t bits = pattern.next();
  const int spread = static_cast<int>(bits >> 16 & 0xffff);
  if (values == Values::kUsual) return held_by(type, with_exponent(bits, 127 - 6 + spread % 7));
  switch ((bits >> 8) % 8) {
    case 0:
      return std::copysign(0.0f, with_exponent(bits, 0));
    case 1:
      return held_by(type, with_exponent(bits, 0));  // subnormal
    case 2:
      return std::copysign(1.0f, with_exponent(bits, 127));  // so that sums cancel exactly
    case 3:
      return held_by(type, with_exponent(bits, 127 + 60));
    case 4:
      return held_by(type, with_exponent(bits, 127 - 60));
    default:
      return held_by(type, with_exponent(bits, 127 - 13 + spread % 27));
  }
}

int64_t round_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// The number of floats that the unfolded sums of all leaves take.
int64_t unfolded_floats(const ShoalProduct& product) {
  return int64_t{product.leaves} * product.rows * product.outputs;
}

/// The leaves of a rank, and where they lie in its rows.
struct RankLayout {
  ShoalProduct product{};
  int first = 0;  ///< the rank's first column of all
  int contributions = 0;
};

RankLayout lay_out(const ProductFactors& factors, int rank, int ranks) {
  RankLayout layout;
  const RankFold fold = plan_of(factors, ranks).ranks[static_cast<size_t>(rank)];
  const auto column = [&](int leaf) { return factors.leaf_begin[static_cast<size_t>(leaf)]; };
  layout.first = fold.steps.empty() ? 0 : column(fold.steps.front().leaf);
  layout.contributions = fold.contributions;
  int64_t at = 0;
  int end = 0;
  ShoalProduct& product = layout.product;
  for (const RankFold::Step& step : fold.steps) {
    const int begin = column(step.leaf) - layout.first;
    end = column(step.leaf + 1) - layout.first;
    product.leaf[product.leaves++] = {begin, end, at, step.merges, step.contribution};
    at += round_up(end - begin, kWeightPadding);
  }
  product.type = shoal_type(factors.type);
  product.outputs = factors.outputs;
  product.rows = factors.rows;
  product.weight_stride = std::max<int64_t>(at, kWeightPadding);
  // One more chunk than needed, which holds NaN.
  product.x_stride = round_up(end, 8) + 8;
  product.y_stride = factors.outputs + 3;
  product.plane_stride = product.y_stride * factors.rows;
  // As much as any shape needs for that many rows, where the largest one of the type takes turns.
  const int64_t tile = factors.type == Dtype::kBf16 ? kShoalLargeTile : kShoalLargeTile / 2;
  product.scratch_floats = std::max(unfolded_floats(product),
                                    round_up(product.outputs, tile) * tile * kShoalMostKeptSums);
  return layout;
}

std::vector<float> weights_of(const ProductFactors& factors, const RankLayout& layout) {
  const ShoalProduct& product = layout.product;
  std::vector<float> rows(static_cast<size_t>(product.weight_stride * factors.outputs), 0);
  for (int output = 0; output < factors.outputs; ++output) {
    for (int i = 0; i < product.leaves; ++i) {
      const ShoalLeaf& leaf = product.leaf[i];
      std::copy_n(
          &factors.weights[static_cast<size_t>(output) * factors.k() + layout.first + leaf.begin],
          leaf.end - leaf.begin,
          &rows[static_cast<size_t>(output * product.weight_stride + leaf.weights_at)]);
    }
  }
  return rows;
}

std::vector<float> inputs_of(const ProductFactors& factors, const RankLayout& layout) {
  const ShoalProduct& product = layout.product;
  std::vector<float> rows(static_cast<size_t>(product.x_stride * factors.rows), std::nanf(""));
  const int columns = product.leaves == 0 ? 0 : product.leaf[product.leaves - 1].end;
  for (int row = 0; row < factors.rows; ++row) {
    std::copy_n(&factors.x[static_cast<size_t>(row) * factors.k() + layout.first], columns,
                &rows[static_cast<size_t>(row * product.x_stride)]);
  }
  return rows;
}

std::string why(const Status& status) {
  return status.ok() ? "" : status.to_string();
}

/// Where a product's results are: in y, with y_stride floats to a row, or unfolded in scratch.
enum class Results { kPlanes, kUnfolded };

/// Enqueues the product, waits for it and reads the results.
Status run_on(OneDevice& one, const ProductFactors& factors, RankLayout layout, int shape,
              Results where, std::vector<float>* results) {
  ShoalProduct& product = layout.product;
  const std::vector<std::byte> weights = encoded(weights_of(factors, layout), factors.type);
  const std::vector<std::byte> x =
      encoded(inputs_of(factors, layout), activation_dtype(factors.type));
  const std::vector<unsigned char> poison(
      std::max<size_t>(results->size(), static_cast<size_t>(product.scratch_floats)) *
          sizeof(float),
      0xff);
  const auto on_device = [&](const void* data, size_t bytes) -> Result<Device::Memory> {
    SHOAL_ASSIGN_OR_RETURN(Device::Memory memory, one.device->allocate(bytes));
    SHOAL_RETURN_IF_ERROR(one.put(memory.get(), data, bytes));
    return memory;
  };
  SHOAL_ASSIGN_OR_RETURN(const Device::Memory w, on_device(weights.data(), weights.size()));
  SHOAL_ASSIGN_OR_RETURN(const Device::Memory in, on_device(x.data(), x.size()));
  SHOAL_ASSIGN_OR_RETURN(const Device::Memory y, on_device(poison.data(), results->size() * 4));
  SHOAL_ASSIGN_OR_RETURN(
      const Device::Memory scratch,
      on_device(poison.data(), static_cast<size_t>(product.scratch_floats) * sizeof(float)));
  product.weights = w.get();
  product.x = in.get();
  product.y = where == Results::kPlanes ? static_cast<float*>(y.get()) : nullptr;
  product.scratch = static_cast<float*>(scratch.get());
  const ShoalCudaModule& module = one.device->module();
  const int32_t error = shape < 0 ? module.product(&product, one.stream.get())
                                  : module.product_with(&product, shape, one.stream.get());
  SHOAL_RETURN_IF_ERROR(one.device->check(error, "product"));
  SHOAL_RETURN_IF_ERROR(one.finish());
  const Device::Memory& from = where == Results::kPlanes ? y : scratch;
  return one.get(results->data(), from.get(), results->size() * sizeof(float));
}

}  // namespace

ReducePlan plan_of(const ProductFactors& factors, int ranks) {
  // Any number of units that leaves the same leaves empty gives the same plan. Here no leaf is.
  const auto leaves = static_cast<int>(factors.leaf_begin.size()) - 1;
  return make_reduce_plan(leaves, leaves, ranks);
}

ProductFactors make_factors(Dtype type, int outputs, int rows, int units, int unit_columns,
                            Values values, uint64_t seed) {
  ProductFactors made{type, outputs, rows, {0}, {}, {}};
  for (int leaf = 0; leaf < kLeaves; ++leaf) {
    const Range range = leaf_units(leaf, kLeaves, units);
    if (!range.empty()) made.leaf_begin.push_back(range.end * unit_columns);
  }
  Pattern pattern(seed);
  made.weights.resize(static_cast<size_t>(outputs) * made.k());
  made.x.resize(static_cast<size_t>(rows) * made.k());
  for (float& value : made.weights) value = draw(pattern, values, type);
  for (float& value : made.x) value = draw(pattern, values, activation_dtype(type));
  return made;
}

ProductResult run_product(OneDevice& one, const ProductFactors& factors, int rank, int ranks,
                          int shape) {
  const RankLayout layout = lay_out(factors, rank, ranks);
  const auto stride = static_cast<size_t>(layout.product.y_stride);
  const auto rows = static_cast<size_t>(layout.contributions) * factors.rows;
  std::vector<float> padded(rows * stride);
  ProductResult result;
  if (const Status status = run_on(one, factors, layout, shape, Results::kPlanes, &padded);
      !status.ok()) {
    result.wrong = status.to_string();
    return result;
  }
  const auto outputs = static_cast<size_t>(factors.outputs);
  for (size_t row = 0; row < rows; ++row) {
    const float* from = &padded[row * stride];
    result.planes.insert(result.planes.end(), from, from + outputs);
    for (size_t i = outputs; i < stride; ++i) {
      if (std::bit_cast<uint32_t>(from[i]) != 0xffffffffU)
        result.wrong = cat("row ", row, " was written past its end");
    }
  }
  return result;
}

UnfoldedProduct run_unfolded(OneDevice& one, const ProductFactors& factors, int shape) {
  const RankLayout layout = lay_out(factors, 0, 1);
  UnfoldedProduct result;
  result.sums.resize(static_cast<size_t>(unfolded_floats(layout.product)));
  result.wrong = why(run_on(one, factors, layout, shape, Results::kUnfolded, &result.sums));
  for (int i = 0; i < layout.product.leaves; ++i)
    result.merges.push_back(layout.product.leaf[i].merges);
  return result;
}

std::vector<float> expected_planes(const emulator::TensorCore& core, const ProductFactors& factors,
                                   int rank, int ranks) {
  const RankLayout layout = lay_out(factors, rank, ranks);
  const size_t plane = static_cast<size_t>(factors.rows) * factors.outputs;
  std::vector<float> planes(static_cast<size_t>(layout.contributions) * plane);
  for (int row = 0; row < factors.rows; ++row) {
    for (int output = 0; output < factors.outputs; ++output) {
      std::vector<float> stack;
      for (int i = 0; i < layout.product.leaves; ++i) {
        const ShoalLeaf& leaf = layout.product.leaf[i];
        const size_t at = static_cast<size_t>(layout.first + leaf.begin);
        stack.push_back(chain_sum(
            core, factors.type, &factors.weights[static_cast<size_t>(output) * factors.k() + at],
            &factors.x[static_cast<size_t>(row) * factors.k() + at], leaf.end - leaf.begin));
        for (int merges = leaf.merges; merges > 0; --merges) {
          const float right = stack.back();
          stack.pop_back();
          stack.back() += right;
        }
        if (leaf.contribution < 0) continue;
        planes[static_cast<size_t>(leaf.contribution) * plane +
               static_cast<size_t>(row) * factors.outputs + static_cast<size_t>(output)] =
            stack.back();
        stack.pop_back();
      }
    }
  }
  return planes;
}

std::vector<float> finish_planes(const ProductFactors& factors,
                                 const std::vector<std::vector<float>>& planes_of_ranks) {
  const size_t plane = static_cast<size_t>(factors.rows) * factors.outputs;
  std::vector<const float*> planes;
  for (const std::vector<float>& of_rank : planes_of_ranks) {
    for (size_t at = 0; at < of_rank.size(); at += plane) planes.push_back(&of_rank[at]);
  }
  std::vector<float> sum(plane);
  const auto ranks = static_cast<int>(planes_of_ranks.size());
  tree_sum(plan_of(factors, ranks).finish, planes, sum.data(), plane);
  return sum;
}

}  // namespace shoal::gpu
