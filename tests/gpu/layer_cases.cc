// The ops of a layer that go over rows have the bits of the CPU's kernels.
#include <cmath>
#include <limits>

#include "bench/gpu/rank_processes.h"
#include "kernels/reference/ops.h"
#include "runtime/base/thread_pool.h"
#include "tests/gpu/gpu_cases.h"
#include "tests/gpu/layer_problem.h"

namespace shoal::gpu {
namespace {

constexpr int kSeconds = 300;

std::string embed_looks_up(OneDevice& one, std::span<const RowExtent> extents, Dtype type,
                           const Shift& shift = {}) {
  for (const RowExtent& extent : extents) {
    Bench bench(one);
    constexpr int kVocabulary = 7;
    const std::vector<std::byte> table = encoded(floats(area(kVocabulary, extent.cols), 3), type);
    std::vector<int32_t> ids;
    for (int row = 0; row < extent.rows; ++row) ids.push_back((row * 5 + 2) % kVocabulary);
    std::vector<float> expected(area(extent.rows, extent.cols));
    reference::embed({.table = table.data(),
                      .dtype = type,
                      .ids = ids.data(),
                      .hidden = extent.cols,
                      .out = expected.data()},
                     0, extent.rows);
    constexpr int32_t kBad[] = {-1, kVocabulary, std::numeric_limits<int32_t>::max()};
    for (const int32_t bad : kBad) {
      ids.push_back(bad);
      expected.resize(expected.size() + static_cast<size_t>(extent.cols), std::nanf(""));
    }
    const auto rows = static_cast<int32_t>(ids.size());
    auto* const out = bench.poisoned<float>(expected.size() + shift.out) + shift.out;
    const ShoalEmbed args{shoal_type(type),
                          rows,
                          extent.cols,
                          kVocabulary,
                          bench.put(table, shift.input * dtype_bytes(type)),
                          bench.put(ids),
                          out};
    bench.finish(bench.module().embed(&args, bench.stream()), "embed");
    const std::vector<float> got = bench.get(out, expected.size());
    if (!bench.ok()) return bench.wrong();
    if (std::string wrong = first_difference(got, expected, extent.cols); !wrong.empty())
      return wrong;
  }
  return "";
}

template <class T>
std::string rms_norm_has_the_cpus_bits(OneDevice& one, std::span<const RowExtent> extents) {
  for (const Numbers numbers : {Numbers::kUsual, Numbers::kHostile}) {
    for (const RowExtent& extent : extents) {
      Bench bench(one);
      const std::vector<float> x = floats(area(extent.rows, extent.cols), 5, numbers);
      const std::vector<float> weight = floats(static_cast<size_t>(extent.cols), 6);
      const int64_t stride = activation_stride(extent.cols);
      std::vector<T> expected(area(extent.rows, stride));
      constexpr float kEps = 1e-5f;
      reference::rms_norm({.x = x.data(),
                           .weight = weight.data(),
                           .eps = kEps,
                           .cols = extent.cols,
                           .out = expected.data(),
                           .out_dtype = kDtypeOf<T>,
                           .out_stride = stride},
                          0, extent.rows);
      auto* const out = bench.poisoned<T>(expected.size() + 1);
      const ShoalRmsNorm args{shoal_type(kDtypeOf<T>), extent.rows, extent.cols, kEps, bench.put(x),
                              bench.put(weight),       out,         stride};
      bench.finish(bench.module().rms_norm(&args, bench.stream()), "rms_norm");
      if (std::string wrong = compare_padded(bench, out, expected, stride); !wrong.empty())
        return cat(extent.cols, " columns: ", wrong);
    }
  }
  return "";
}

template <class T>
std::string silu_mul_has_the_cpus_bits(OneDevice& one, std::span<const RowExtent> extents,
                                       const Shift& shift = {}) {
  for (const bool biased : {false, true}) {
    for (const RowExtent& extent : extents) {
      Bench bench(one);
      const std::vector<float> gate_up =
          floats(area(extent.rows, 2 * extent.cols), 7, Numbers::kHostile);
      const std::vector<float> bias = floats(area(2, extent.cols), 8);
      const int64_t stride = activation_stride(extent.cols) + shift.rows;
      std::vector<T> expected(area(extent.rows, stride));
      reference::silu_mul({.gate_up = gate_up.data(),
                           .bias = biased ? bias.data() : nullptr,
                           .cols = extent.cols,
                           .out = expected.data(),
                           .out_dtype = kDtypeOf<T>,
                           .out_stride = stride},
                          0, extent.rows);
      auto* const out = bench.poisoned<T>(expected.size() + 1 + shift.out) + shift.out;
      const ShoalSiluMul args{shoal_type(kDtypeOf<T>),
                              extent.rows,
                              extent.cols,
                              bench.put(gate_up, shift.input),
                              biased ? bench.put(bias, shift.bias) : nullptr,
                              out,
                              stride};
      bench.finish(bench.module().silu_mul(&args, bench.stream()), "silu_mul");
      if (std::string wrong = compare_padded(bench, out, expected, stride); !wrong.empty())
        return cat(extent.cols, " columns: ", wrong);
    }
  }
  return "";
}

std::string any_alignment_will_do(OneDevice& one) {
  for (const Shift& shift : kShifts) {
    std::string wrong = silu_mul_has_the_cpus_bits<uint16_t>(one, kWideExtents, shift);
    if (wrong.empty()) wrong = silu_mul_has_the_cpus_bits<float>(one, kWideExtents, shift);
    for (const Dtype type : kComputedTypes) {
      if (wrong.empty()) wrong = embed_looks_up(one, kWideExtents, type, shift);
    }
    if (!wrong.empty()) return cat(text_of(shift), ": ", wrong);
  }
  return "";
}

/// Rows in which the greatest is at either end, occurs twice, is a zero of either sign, or is not
/// there at all.
std::vector<float> logit_rows(const RowExtent& extent) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> logits = floats(area(extent.rows, extent.cols), 12);
  const auto columns = static_cast<size_t>(extent.cols);
  for (size_t row = 0; row < static_cast<size_t>(extent.rows); ++row) {
    float* const x = &logits[row * columns];
    if (row % 5 == 0) x[columns - 1] = kInfinity;
    if (row % 5 == 1) x[0] = x[columns / 2] = x[columns - 1] = 9;
    if (row % 5 == 2) std::fill_n(x, columns, std::nanf(""));
    if (row % 5 == 3) std::fill_n(x, columns, -kInfinity);
    if (row % 5 != 4) continue;
    for (size_t i = 0; i < columns; ++i) x[i] = i % 3 == 0 ? -1.0f : i % 3 == 1 ? -0.0f : 0.0f;
    x[columns / 3] = std::nanf("");
  }
  return logits;
}

/// From 2049 columns on a row has several parts, which blocks of their own read.
constexpr RowExtent kLogitExtents[] = {{6, 1}, {6, 33}, {6, 1023}, {6, 2050}, {6, 70000}};
constexpr RowExtent kFewLogitExtents[] = {{5, 2050}};

std::string argmax_is_the_cpus(OneDevice& one, std::span<const RowExtent> extents) {
  for (const RowExtent& extent : extents) {
    Bench bench(one);
    const std::vector<float> logits = logit_rows(extent);
    auto* const best = bench.poisoned<ShoalBest>(static_cast<size_t>(extent.rows));
    const ShoalArgmax args{extent.rows,
                           extent.cols,
                           bench.put(logits),
                           extent.cols,
                           bench.poisoned<ShoalBest>(area(extent.rows, kShoalArgmaxParts)),
                           best};
    bench.finish(bench.module().argmax(&args, bench.stream()), "argmax");
    const std::vector<ShoalBest> got = bench.get(best, static_cast<size_t>(extent.rows));
    if (!bench.ok()) return bench.wrong();
    for (size_t row = 0; row < got.size(); ++row) {
      const ArgmaxResult wanted =
          reference::argmax(&logits[row * static_cast<size_t>(extent.cols)], extent.cols);
      if (std::memcmp(&got[row].value, &wanted.value, sizeof(float)) != 0 ||
          got[row].column != wanted.column) {
        return cat(extent.cols, " columns, row ", row, ": ", got[row].value, " at ",
                   got[row].column, " for ", wanted.value, " at ", wanted.column);
      }
    }
  }
  return "";
}

/// Every exponent and sign, and enough fractions that each step of the exponential counts.
std::string exponential_has_the_cpus_bits(OneDevice& one) {
  constexpr int kColumns = 4096;
  std::vector<float> gate_up(2 * kColumns, 1.0f);
  for (uint32_t i = 0; i < kColumns; ++i) {
    const uint32_t bits = i << 20 | ((i * 2654435761U) >> 12);
    std::memcpy(&gate_up[i], &bits, sizeof bits);
  }
  // Times 2^k, so that other bits of the result survive the rounding to bf16.
  for (const float up : {1.0f, 1.00390625f, 1.0000153f, 1.3333334f}) {
    Bench bench(one);
    std::fill_n(gate_up.begin() + kColumns, kColumns, up);
    std::vector<uint16_t> expected(kColumns);
    reference::silu_mul({.gate_up = gate_up.data(),
                         .cols = kColumns,
                         .out = expected.data(),
                         .out_dtype = Dtype::kBf16,
                         .out_stride = kColumns},
                        0, 1);
    auto* const out = bench.poisoned<uint16_t>(kColumns + 1);
    const ShoalSiluMul args{kShoalBf16, 1, kColumns, bench.put(gate_up), nullptr, out, kColumns};
    bench.finish(bench.module().silu_mul(&args, bench.stream()), "silu_mul");
    if (std::string wrong = compare_padded(bench, out, expected, kColumns); !wrong.empty())
      return wrong;
  }
  return "";
}

}  // namespace

void add_layer_cases(const Options& options, std::vector<Case>& cases) {
  const auto add = [&](const std::string& name, const std::function<std::string()>& body) {
    cases.push_back({name, [body] { return run_apart(kSeconds, body); }});
  };
  for (const Dtype type : kComputedTypes) {
    add("layer/embed" + suffix_of(type), [=] {
      return in_every_order(options, kOrderedRows,
                            [=](OneDevice& one, std::span<const RowExtent> extents) {
                              return embed_looks_up(one, extents, type);
                            });
    });
  }
  add("layer/rms_norm",
      [=] { return in_every_order(options, kOrderedRows, rms_norm_has_the_cpus_bits<uint16_t>); });
  add("layer/rms_norm-float32",
      [=] { return in_every_order(options, kOrderedRows, rms_norm_has_the_cpus_bits<float>); });
  add("layer/silu_mul", [=] {
    return in_every_order(options, kOrderedRows,
                          [](OneDevice& one, std::span<const RowExtent> extents) {
                            return silu_mul_has_the_cpus_bits<uint16_t>(one, extents);
                          });
  });
  add("layer/silu_mul-float32", [=] {
    return in_every_order(options, kOrderedRows,
                          [](OneDevice& one, std::span<const RowExtent> extents) {
                            return silu_mul_has_the_cpus_bits<float>(one, extents);
                          });
  });
  add("layer/alignment", [=] { return on_device(options, any_alignment_will_do); });
  add("layer/argmax", [=] {
    return in_every_order(options, {kLogitExtents, kFewLogitExtents}, argmax_is_the_cpus);
  });
  add("layer/exponential", [=] { return on_device(options, exponential_has_the_cpus_bits); });
}

}  // namespace shoal::gpu
