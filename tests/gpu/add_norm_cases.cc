// The fold of a product's leaves, the bias, the residual and the next norm, as one op: it has the
// bits of the four after each other.
#include <cmath>

#include "bench/gpu/rank_processes.h"
#include "kernels/reference/ops.h"
#include "runtime/base/reduce_tree.h"
#include "tests/gpu/gpu_cases.h"
#include "tests/gpu/layer_problem.h"
#include "tests/gpu/product_problem.h"

namespace shoal::gpu {
namespace {

constexpr int kSeconds = 300;
constexpr float kEps = 1e-5f;

/// What the op is given. Without a weight it does not normalize.
struct AddNormProblem {
  RowExtent extent{};
  std::vector<int32_t> merges;  ///< of each leaf
  std::vector<float> sums, residual, bias, weight;
  const float* bias_or_null() const { return bias.empty() ? nullptr : bias.data(); }
};

/// The merges of a tree over this many leaves on one rank.
std::vector<int32_t> merges_of(int leaves) {
  std::vector<int32_t> merges;
  const ReducePlan plan = make_reduce_plan(leaves, leaves, 1);
  for (const RankFold::Step& step : plan.ranks[0].steps) merges.push_back(step.merges);
  return merges;
}

/// The fold of the leaves as a plain stack, in float32 with subnormals flushed like the rest.
std::vector<float> folded(const AddNormProblem& problem) {
  const size_t plane = area(problem.extent.rows, problem.extent.cols);
  std::vector<float> result(plane);
  for (size_t i = 0; i < plane; ++i) {
    std::vector<float> stack;
    for (size_t leaf = 0; leaf < problem.merges.size(); ++leaf) {
      stack.push_back(problem.sums[leaf * plane + i]);
      for (int merges = problem.merges[leaf]; merges > 0; --merges) {
        const float right = stack.back();
        stack.pop_back();
        stack.back() += right;
      }
    }
    result[i] = stack.back();
  }
  return result;
}

/// The op on the device beside residual_add and rms_norm of the CPU, after each other, with this
/// sum. T: of the result.
template <class T>
std::string compare(OneDevice& one, const AddNormProblem& problem, const std::vector<float>& sum,
                    const Shift& shift = {}) {
  Bench bench(one);
  const auto [rows, cols] = problem.extent;
  const int64_t stride = activation_stride(cols) + shift.rows;
  std::vector<T> expected(area(rows, stride));
  auto* const out = bench.poisoned<T>(expected.size() + 1 + shift.out) + shift.out;
  ShoalAddNorm args{};
  args.type = shoal_type(kDtypeOf<T>);
  args.rows = rows;
  args.cols = cols;
  args.leaves = static_cast<int32_t>(problem.merges.size());
  std::copy(problem.merges.begin(), problem.merges.end(), args.merges);
  args.sums = bench.put(problem.sums, shift.input);
  args.bias = problem.bias.empty() ? nullptr : bench.put(problem.bias, shift.bias);
  args.residual = bench.put(problem.residual, shift.input);
  args.weight = problem.weight.empty() ? nullptr : bench.put(problem.weight, shift.bias);
  args.eps = kEps;
  args.out = out;
  args.out_stride = stride;
  Result<Device::Memory> progress = one.device->allocate_pinned(sizeof(uint32_t));
  SHOAL_EXPECT_OK(progress.status());
  args.progress = static_cast<uint32_t*>(progress->get());
  args.mark = 7;
  bench.finish(bench.module().add_norm(&args, bench.stream()), "add_norm");
  std::vector<float> residual = problem.residual;
  reference::residual_add({.residual = residual.data(),
                           .sum = sum.data(),
                           .bias = problem.bias_or_null(),
                           .cols = cols},
                          0, rows);
  const std::vector<float> got = bench.get(args.residual, residual.size());
  if (!bench.ok()) return bench.wrong();
  if (*args.progress != args.mark) return cat("the mark is ", *args.progress);
  if (std::string wrong = first_difference(got, residual, cols); !wrong.empty())
    return cat("residual, ", wrong);
  if (problem.weight.empty()) {
    std::memset(expected.data(), 0xff, expected.size() * sizeof(T));  // as it was
  } else {
    reference::rms_norm({.x = residual.data(),
                         .weight = problem.weight.data(),
                         .eps = kEps,
                         .cols = cols,
                         .out = expected.data(),
                         .out_dtype = kDtypeOf<T>,
                         .out_stride = stride},
                        0, rows);
  }
  return compare_padded(bench, out, expected, stride);
}

/// Every number of leaves; with and without a bias and a norm; numbers of all kinds.
template <class T>
std::string it_has_the_cpus_bits(OneDevice& one, std::span<const RowExtent> extents) {
  uint64_t seed = 41;
  for (const RowExtent& extent : extents) {
    const size_t plane = area(extent.rows, extent.cols);
    const auto columns = static_cast<size_t>(extent.cols);
    for (int leaves = 1; leaves <= kShoalMostLeaves; ++leaves) {
      const Numbers numbers = leaves % 3 == 0 ? Numbers::kHostile : Numbers::kUsual;
      AddNormProblem problem{extent, merges_of(leaves), {}, {}, {}, {}};
      problem.sums = floats(static_cast<size_t>(leaves) * plane, ++seed, numbers);
      problem.residual = floats(plane, ++seed, numbers);
      if (leaves % 2 == 0) problem.bias = floats(columns, ++seed);
      if (leaves % 4 != 1) problem.weight = floats(columns, ++seed);
      if (std::string wrong = compare<T>(one, problem, folded(problem)); !wrong.empty())
        return cat(extent.cols, " columns, leaves ", leaves, ": ", wrong);
    }
  }
  return "";
}

/// Any fold program, and arrays that are not aligned to 16 bytes.
template <class T>
std::string it_takes_any_leaves_and_addresses(OneDevice& one) {
  const std::vector<int32_t> programs[] = {
      merges_of(1), merges_of(5), merges_of(8), {0, 1, 1, 1, 1, 1, 1, 1}};
  for (const RowExtent& extent : kWideExtents) {
    const size_t plane = area(extent.rows, extent.cols);
    for (const std::vector<int32_t>& merges : programs) {
      const AddNormProblem problem{extent,
                                   merges,
                                   floats(merges.size() * plane, 51),
                                   floats(plane, 52),
                                   floats(static_cast<size_t>(extent.cols), 53),
                                   floats(static_cast<size_t>(extent.cols), 54)};
      for (const Shift& shift : kShifts) {
        if (std::string wrong = compare<T>(one, problem, folded(problem), shift); !wrong.empty())
          return cat(merges.size(), " leaves, ", text_of(shift), ": ", wrong);
      }
    }
  }
  return "";
}

/// A product that leaves its leaves unfolded, and this op, have the bits of a product that folds
/// them, the residual and the norm. In every shape.
template <class T>
std::string it_ends_a_product(OneDevice& one, Dtype type) {
  for (const int rows : {1, 5, 17, int{kShoalMostUnfoldedRows}}) {
    const int outputs = 72;
    const ProductFactors factors =
        make_factors(type, outputs, rows, 9, 24, Values::kAdversarial, 29);
    const ProductResult whole = run_product(one, factors, 0, 1, -1);
    if (!whole.wrong.empty()) return whole.wrong;
    for (int shape = -1; shape < one.device->module().product_shapes(); ++shape) {
      const UnfoldedProduct product = run_unfolded(one, factors, shape);
      if (!product.wrong.empty()) return cat("shape ", shape, ": ", product.wrong);
      AddNormProblem problem{{rows, outputs}, product.merges, product.sums, {}, {}, {}};
      problem.residual = floats(area(rows, outputs), 31);
      problem.bias = floats(static_cast<size_t>(outputs), 32);
      problem.weight = floats(static_cast<size_t>(outputs), 33);
      if (std::string wrong = compare<T>(one, problem, whole.planes); !wrong.empty())
        return cat(rows, " x ", outputs, ", shape ", shape, ": ", wrong);
    }
  }
  return "";
}

/// Leaves that do not fold into one value, and what a norm needs.
std::string nonsense_is_refused(OneDevice& one) {
  Bench bench(one);
  ShoalAddNorm good{};
  good.type = kShoalF32;
  good.rows = 2;
  good.cols = 8;
  good.leaves = 2;
  good.merges[1] = 1;
  good.sums = bench.put(floats(32, 1));
  good.residual = bench.put(floats(16, 2));
  good.weight = bench.put(floats(8, 3));
  good.out = bench.poisoned<float>(16);
  good.out_stride = 8;
  std::string wrong;
  const auto refused = [&](const char* what, const auto& change) {
    ShoalAddNorm args = good;
    change(args);
    const int32_t error = bench.module().add_norm(&args, bench.stream());
    if (error != 1) wrong += cat(what, ": ", bench.module().error_text(error), "; ");
  };
  refused("no leaf", [](ShoalAddNorm& a) { a.leaves = 0; });
  refused("many leaves", [](ShoalAddNorm& a) { a.leaves = kShoalMostLeaves + 1; });
  refused("two values", [](ShoalAddNorm& a) { a.merges[1] = 0; });
  refused("merges of nothing", [](ShoalAddNorm& a) { a.merges[1] = 2; });
  refused("no sums", [](ShoalAddNorm& a) { a.sums = nullptr; });
  refused("an unaligned mark", [](ShoalAddNorm& a) {
    a.progress = reinterpret_cast<uint32_t*>(reinterpret_cast<std::byte*>(a.residual) + 2);
  });
  refused("no residual", [](ShoalAddNorm& a) { a.residual = nullptr; });
  refused("a norm into nothing", [](ShoalAddNorm& a) { a.out = nullptr; });
  refused("narrow rows", [](ShoalAddNorm& a) { a.out_stride = 7; });
  refused("a type of weights", [](ShoalAddNorm& a) { a.type = kShoalF16; });
  refused("wide rows", [](ShoalAddNorm& a) { a.cols = 24577, a.out_stride = 24577; });
  bench.finish(bench.module().add_norm(&good, bench.stream()), "add_norm");
  return wrong + bench.wrong();
}

}  // namespace

void add_add_norm_cases(const Options& options, std::vector<Case>& cases) {
  const auto add = [&](const std::string& name, const std::function<std::string()>& body) {
    cases.push_back({name, [body] { return run_apart(kSeconds, body); }});
  };
  add("layer/add_norm",
      [=] { return in_every_order(options, kOrderedRows, it_has_the_cpus_bits<uint16_t>); });
  add("layer/add_norm-float32",
      [=] { return in_every_order(options, kOrderedRows, it_has_the_cpus_bits<float>); });
  add("layer/add_norm-programs",
      [=] { return on_device(options, it_takes_any_leaves_and_addresses<uint16_t>); });
  add("layer/add_norm-programs-float32",
      [=] { return on_device(options, it_takes_any_leaves_and_addresses<float>); });
  add("layer/add_norm-refusals", [=] { return on_device(options, nonsense_is_refused); });
  for (const Dtype type : kComputedTypes) {
    add("layer/add_norm-product" + suffix_of(type), [=] {
      return on_device(options, [=](OneDevice& one) {
        return type == Dtype::kBf16 ? it_ends_a_product<uint16_t>(one, type)
                                    : it_ends_a_product<float>(one, type);
      });
    });
  }
}

}  // namespace shoal::gpu
