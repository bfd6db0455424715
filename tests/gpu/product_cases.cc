#include <cmath>
#include <cstring>

#include "bench/gpu/rank_processes.h"
#include "runtime/base/cat.h"
#include "runtime/base/thread_pool.h"
#include "tests/gpu/gpu_cases.h"
#include "tests/gpu/lane_orders.h"
#include "tests/gpu/layer_problem.h"
#include "tests/gpu/product_problem.h"

namespace shoal::gpu {
namespace {

constexpr int kSeconds = 300;

/// The first place at which the two differ by a bit, or "". Two NaN are equal.
std::string first_difference(const std::vector<float>& got, const std::vector<float>& expected,
                             int outputs) {
  if (got.size() != expected.size()) return cat(got.size(), " values for ", expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(expected[i])) continue;
    if (std::memcmp(&got[i], &expected[i], sizeof(float)) == 0) continue;
    return cat("row ", i / static_cast<size_t>(outputs), ", output ",
               i % static_cast<size_t>(outputs), ": ", got[i], " for ", expected[i]);
  }
  return "";
}

/// Widths that are whole tiles, or leave parts of tiles of every shape; leaves of many lengths,
/// that begin at any column, of which some are shorter than one step of 16 columns, and some longer
/// than all stages of a pipeline.
struct Extent {
  int outputs, rows, units, unit_columns;
};
constexpr Extent kExtents[] = {{128, 8, 8, 64},  {100, 19, 9, 41}, {257, 1, 14, 16},
                               {33, 130, 5, 50}, {16, 3, 8, 1},    {70, 70, 24, 8},
                               {40, 11, 3, 602}};
std::string text_of(const Extent& extent) {
  return cat(extent.outputs, " x ", extent.rows, ", ", extent.units, " units of ",
             extent.unit_columns);
}
ProductFactors factors_of(Dtype type, const Extent& extent, Values values, uint64_t seed) {
  return make_factors(type, extent.outputs, extent.rows, extent.units, extent.unit_columns, values,
                      seed);
}

int shapes_of(const OneDevice& one) {
  return one.device->module().product_shapes();
}

/// The sum of products in double, which hardly rounds, within what the cut sums of a tensor core
/// may lose.
std::string near_the_reference(const Options& options, Dtype type) {
  Result<OneDevice> one = OneDevice::open(options.module);
  SHOAL_EXPECT_OK(one.status());
  // The inputs beside float16 weights are rounded to tf32.
  const double may_lose = 1e-5 + (type == Dtype::kF16 ? 1.0 / 2048 : 0);
  for (const Extent& extent : kExtents) {
    const ProductFactors factors = factors_of(type, extent, Values::kUsual, 7);
    const ProductResult got = run_product(*one, factors, 0, 1, -1);
    if (!got.wrong.empty()) return cat(text_of(extent), ": ", got.wrong);
    const auto k = static_cast<size_t>(factors.k());
    for (size_t i = 0; i < got.planes.size(); ++i) {
      const float* x = &factors.x[i / static_cast<size_t>(extent.outputs) * k];
      const float* w = &factors.weights[i % static_cast<size_t>(extent.outputs) * k];
      double sum = 0, size = 0;
      for (size_t j = 0; j < k; ++j) {
        const double product = double{x[j]} * double{w[j]};
        sum += product;
        size += std::abs(product);
      }
      if (!(std::abs(got.planes[i] - sum) <= may_lose * size))
        return cat(text_of(extent), ", value ", i, ": ", got.planes[i], " for ", sum);
    }
  }
  return "";
}

/// Every shape gives the bits of a plain loop over the type's arithmetic, which is the published
/// one of this device's tensor cores where they are used.
std::string shapes_have_the_models_bits(const Options& options, Dtype type, Values values) {
  set_float_environment();
  Result<OneDevice> one = OneDevice::open(options.module);
  SHOAL_EXPECT_OK(one.status());
  const emulator::TensorCore core = emulator::tensor_core_of(options.compute_major);
  for (const Extent& extent : kExtents) {
    const ProductFactors factors = factors_of(type, extent, values, 11);
    const std::vector<float> expected = expected_planes(core, factors, 0, 1);
    for (int shape = -1; shape < shapes_of(*one); ++shape) {
      const ProductResult got = run_product(*one, factors, 0, 1, shape);
      const std::string wrong =
          got.wrong.empty() ? first_difference(got.planes, expected, extent.outputs) : got.wrong;
      if (!wrong.empty()) return cat(text_of(extent), ", shape ", shape, ": ", wrong);
    }
  }
  return "";
}

/// The emulated device's lanes take turns in other orders, and its copies come at other times, but
/// no bit changes.
std::string schedules_change_no_bit(const Options& options, Dtype type) {
  if (!options.stand_in) return cat(kSkip, "a device has its own schedule");
  set_float_environment();
  Result<OneDevice> one = OneDevice::open(options.module);
  SHOAL_EXPECT_OK(one.status());
  const emulator::TensorCore core = emulator::tensor_core_of(options.compute_major);
  // Leaves must be longer than all stages of a pipeline.
  const ProductFactors factors = factors_of(type, {17, 9, 2, 602}, Values::kUsual, 23);
  const std::vector<float> expected = expected_planes(core, factors, 0, 1);
  return in_lane_orders(kAllSeeds, [&](int order) -> std::string {
    for (int shape = 0; shape < shapes_of(*one); ++shape) {
      const char* const copies = let_copies_come((order + shape) % 2 != 0);
      const ProductResult got = run_product(*one, factors, 0, 1, shape);
      const std::string wrong =
          got.wrong.empty() ? first_difference(got.planes, expected, 17) : got.wrong;
      if (!wrong.empty()) return cat(copies, ", shape ", shape, ": ", wrong);
    }
    return "";
  });
}

/// One token alone, and the same token among 130 others at several places, in every shape.
std::string a_token_keeps_its_bits(const Options& options, Dtype type) {
  Result<OneDevice> one = OneDevice::open(options.module);
  SHOAL_EXPECT_OK(one.status());
  const Extent extent{72, 130, 9, 24};
  const ProductFactors many = factors_of(type, extent, Values::kUsual, 13);
  const auto k = static_cast<size_t>(many.k());
  for (int shape = -1; shape < shapes_of(*one); ++shape) {
    const ProductResult all = run_product(*one, many, 0, 1, shape);
    if (!all.wrong.empty()) return all.wrong;
    for (const size_t row : {size_t{0}, size_t{7}, size_t{63}, size_t{64}, size_t{129}}) {
      ProductFactors alone = many;
      alone.rows = 1;
      alone.x.assign(&many.x[row * k], &many.x[row * k] + k);
      const ProductResult got = run_product(*one, alone, 0, 1, -1);
      const float* among = &all.planes[row * static_cast<size_t>(extent.outputs)];
      const std::string wrong =
          got.wrong.empty()
              ? first_difference(got.planes, {among, among + extent.outputs}, extent.outputs)
              : got.wrong;
      if (!wrong.empty()) return cat("token ", row, ", shape ", shape, ": ", wrong);
    }
  }
  return "";
}

/// The fold of what the ranks compute, each in a shape of its own, is the product of one rank.
std::string group_has_the_same_bits(OneDevice& one, const ProductFactors& factors, int ranks) {
  const ProductResult alone = run_product(one, factors, 0, 1, -1);
  if (!alone.wrong.empty()) return alone.wrong;
  std::vector<std::vector<float>> planes;
  for (int rank = 0; rank < ranks; ++rank) {
    const ProductResult part =
        run_product(one, factors, rank, ranks, (rank + ranks) % shapes_of(one));
    if (!part.wrong.empty()) return cat(ranks, " ranks, rank ", rank, ": ", part.wrong);
    planes.push_back(part.planes);
  }
  const std::string wrong =
      first_difference(finish_planes(factors, planes), alone.planes, factors.outputs);
  return wrong.empty() ? "" : cat(ranks, " ranks: ", wrong);
}

std::string groups_have_the_same_bits(const Options& options, Dtype type) {
  set_float_environment();
  Result<OneDevice> one = OneDevice::open(options.module);
  SHOAL_EXPECT_OK(one.status());
  const ProductFactors few = factors_of(type, {60, 9, 14, 24}, Values::kUsual, 17);
  for (const int ranks : {2, 3, 5, 8}) {
    if (std::string wrong = group_has_the_same_bits(*one, few, ranks); !wrong.empty()) return wrong;
  }
  // With this many rows the tiles take turns over the scratch. A rank has two contributions here.
  return group_has_the_same_bits(*one, factors_of(type, {30, 130, 14, 24}, Values::kUsual, 18), 3);
}

/// A row of weights and a token at every place of a tile: no place has an arithmetic of its own.
std::string no_place_is_special(const Options& options, Dtype type) {
  Result<OneDevice> one = OneDevice::open(options.module);
  SHOAL_EXPECT_OK(one.status());
  ProductFactors factors = factors_of(type, {128, 128, 8, 16}, Values::kAdversarial, 19);
  const auto k = static_cast<size_t>(factors.k());
  for (size_t at = k; at < factors.weights.size(); ++at)
    factors.weights[at] = factors.weights[at % k];
  for (size_t at = k; at < factors.x.size(); ++at) factors.x[at] = factors.x[at % k];
  for (int shape = 0; shape < shapes_of(*one); ++shape) {
    const ProductResult got = run_product(*one, factors, 0, 1, shape);
    if (!got.wrong.empty()) return got.wrong;
    const std::vector<float> first(got.planes.size(), got.planes[0]);
    const std::string wrong = first_difference(got.planes, first, 128);
    if (!wrong.empty()) return cat("shape ", shape, ": ", wrong);
  }
  return "";
}

/// Single steps of the tensor cores: sums of 16 products, with values that tell the published
/// models, a chain of float32 additions, and each other's grids apart.
std::string steps_have_the_models_bits(const Options& options, Dtype type) {
  set_float_environment();
  Result<OneDevice> one = OneDevice::open(options.module);
  SHOAL_EXPECT_OK(one.status());
  const emulator::TensorCore core = emulator::tensor_core_of(options.compute_major);
  const int rounds = options.quick ? 4 : 64;
  for (int round = 0; round < rounds; ++round) {
    const Values values = round % 2 == 0 ? Values::kAdversarial : Values::kUsual;
    ProductFactors factors =
        make_factors(type, 256, 128, 1, 16 * (1 + round % 3), values, static_cast<uint64_t>(round));
    const ProductResult got = run_product(*one, factors, 0, 1, round % shapes_of(*one));
    if (!got.wrong.empty()) return got.wrong;
    const std::string wrong =
        first_difference(got.planes, expected_planes(core, factors, 0, 1), 256);
    if (!wrong.empty()) return cat("round ", round, ": ", wrong);
  }
  return "";
}

/// Arguments that make no sense are refused before anything is launched.
std::string nonsense_is_refused(const Options& options) {
  Result<OneDevice> one = OneDevice::open(options.module);
  SHOAL_EXPECT_OK(one.status());
  const Result<Device::Memory> memory = one->device->allocate(1 << 16);
  SHOAL_EXPECT_OK(memory.status());
  ShoalProduct good{};
  good.outputs = good.rows = 8;
  good.leaves = 1;
  good.leaf[0] = {0, 64, 0, 0, 0};
  good.weights = good.x = memory->get();
  good.weight_stride = good.x_stride = 64;
  good.y = static_cast<float*>(memory->get()) + 4096;
  good.y_stride = good.plane_stride = 64;
  const auto refused = [&](const char* what, const auto& change) -> std::string {
    ShoalProduct product = good;
    change(product);
    const int32_t error = one->device->module().product(&product, one->stream.get());
    return error == 1 ? "" : cat(what, ": ", one->device->module().error_text(error));
  };
  std::string wrong;
  wrong += refused("rows", [](ShoalProduct& p) { p.rows = -1; });
  wrong += refused("leaves", [](ShoalProduct& p) { p.leaves = 9; });
  wrong += refused("an empty leaf", [](ShoalProduct& p) { p.leaf[0].end = 0; });
  wrong += refused("a leaf past x", [](ShoalProduct& p) { p.leaf[0].end = 65; });
  wrong += refused("a leaf past the weights", [](ShoalProduct& p) { p.leaf[0].weights_at = 64; });
  wrong += refused("an odd place", [](ShoalProduct& p) { p.leaf[0].weights_at = 8; });
  wrong += refused("merges", [](ShoalProduct& p) { p.leaf[0].merges = 1; });
  wrong += refused("nothing written", [](ShoalProduct& p) { p.leaf[0].contribution = -1; });
  const auto moved = [](const void* from, int bytes) {
    return static_cast<const void*>(static_cast<const std::byte*>(from) + bytes);
  };
  wrong += refused("an unknown type", [](ShoalProduct& p) { p.type = kShoalTypes; });
  wrong += refused("no type", [](ShoalProduct& p) { p.type = -1; });
  wrong += refused("unaligned weights", [&](ShoalProduct& p) { p.weights = moved(p.weights, 16); });
  wrong += refused("unaligned inputs", [&](ShoalProduct& p) { p.x = moved(p.x, 2); });
  wrong += refused("odd rows", [](ShoalProduct& p) { p.x_stride = 68; });
  wrong += refused("no result", [](ShoalProduct& p) { p.y = nullptr; });
  wrong += refused("narrow rows", [](ShoalProduct& p) { p.y_stride = 7; });
  const auto in_two_leaves = [&](ShoalProduct& p, int bytes, int64_t floats) {
    p.leaves = 2;
    p.leaf[0] = {0, 32, 0, 0, -1};
    p.leaf[1] = {32, 64, 0, 1, 0};
    p.scratch = static_cast<float*>(const_cast<void*>(moved(memory->get(), 32768 + bytes)));
    p.scratch_floats = floats;
  };
  wrong += refused("unaligned scratch", [&](ShoalProduct& p) { in_two_leaves(p, 4, 1024); });
  wrong += refused("too little scratch", [&](ShoalProduct& p) { in_two_leaves(p, 0, 127); });
  for (int shape = 0; shape < shapes_of(*one); ++shape) {
    ShoalProduct product = good;
    in_two_leaves(product, 0, 64);
    if (one->device->module().product_with(&product, shape, one->stream.get()) != 1)
      wrong += cat("too little scratch for shape ", shape);
  }
  SHOAL_EXPECT_OK(
      one->device->check(one->device->module().product(&good, one->stream.get()), "ok"));
  SHOAL_EXPECT_OK(one->finish());
  return wrong;
}

}  // namespace

void add_product_cases(const Options& options, std::vector<Case>& cases) {
  const auto add = [&](const std::string& name, const std::function<std::string()>& body) {
    cases.push_back({name, [body] { return run_apart(kSeconds, body); }});
  };
  for (const Dtype type : kComputedTypes) {
    const std::string of_type = suffix_of(type);
    add("arith/steps" + of_type, [=] { return steps_have_the_models_bits(options, type); });
    add("arith/places" + of_type, [=] { return no_place_is_special(options, type); });
    add("product/reference" + of_type, [=] { return near_the_reference(options, type); });
    add("product/shapes" + of_type,
        [=] { return shapes_have_the_models_bits(options, type, Values::kUsual); });
    add("product/adversarial" + of_type,
        [=] { return shapes_have_the_models_bits(options, type, Values::kAdversarial); });
    add("product/schedules" + of_type, [=] { return schedules_change_no_bit(options, type); });
    add("product/tokens" + of_type, [=] { return a_token_keeps_its_bits(options, type); });
    add("product/groups" + of_type, [=] { return groups_have_the_same_bits(options, type); });
  }
  add("product/refusals", [=] { return nonsense_is_refused(options); });
}

}  // namespace shoal::gpu
