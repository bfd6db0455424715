#pragma once
#include "kernels/cpu/vec.h"
#include "kernels/packed_matrix.h"

// What a product of each type of weights does in one step of the loop over K. A step reads one
// 512-bit group of weights per vector of outputs, for every type: 16 float32 values or 16 pairs.

namespace shoal::SHOAL_ISA {
namespace {

constexpr int64_t kGroupBytes = 64;
constexpr int kPanelVecs = kPanelOutputs / kLanes;
constexpr int64_t kStepBytes = kPanelVecs * kGroupBytes;

/// Each product says how it multiplies several rows:
/// - kRows: the most rows that kernels/cpu/matmul.cc multiplies at once, so that their sums fit
///   into registers together with the weights and the inputs of one step.
/// - kManyRows: the number of rows from which kernels/cpu/many_rows.h is faster, or 0 if it never
///   is.
/// - in_order: sums with their outputs in order, from sums whose lanes are those of `weights`.

#if defined(__AVX512F__)
constexpr int64_t kManyF32Rows = 0;
#else
constexpr int64_t kManyF32Rows = 48;
#endif

/// float32 weights: a step is one k.
struct F32Product {
  using Input = float;
  static constexpr int kStep = 1;
  static constexpr int kRows = 6;
  static constexpr int64_t kManyRows = kManyF32Rows;
  struct Weights {
    Vec value;
  };
  using Inputs = Weights;
  static Weights weights(const std::byte* group) {
    return {load(reinterpret_cast<const float*>(group))};
  }
  static Inputs inputs(const float* x) { return {set1(*x)}; }
  static Vec add_to(Vec sum, const Weights& w, const Inputs& x) {
    return fma(x.value, w.value, sum);
  }
  static Vec in_order(Vec sum) { return sum; }
  static Vec of_step(const Weights& w, int) { return w.value; }
};

/// Weights of two bytes, widened to float32. A step is a pair of k. The odd element is added first,
/// because x86's dot-product instruction for bf16 does so.
template <typename Weight, typename InputElement>
struct PairProduct {
  using Input = InputElement;
  static constexpr int kStep = 2;
  static constexpr int kRows = 4;
  static constexpr int64_t kManyRows = 12;
  using Weights = Pair;
  using Inputs = Pair;
  static Pair weights(const std::byte* group) {
    return load_pairs(reinterpret_cast<const Weight*>(group));
  }
  static Pair inputs(const Input* x) { return set1_pair(x); }
  static Vec add_to(Vec sum, const Pair& w, const Pair& x) {
    return fma(x.even, w.even, fma(x.odd, w.odd, sum));
  }
  static Vec in_order(Vec sum) { return SHOAL_ISA::in_order(sum, Weight{}); }
  /// The weights of the step's first or second k.
  static Vec of_step(const Pair& w, int k) { return in_order(k == 0 ? w.even : w.odd); }
};
using F16Product = PairProduct<F16, float>;

#if defined(__AVX512BF16__)
/// bf16 weights and inputs. The dot-product instruction adds two products, one after the other and
/// each rounded once, so one step of the loop over K takes two values of K.
struct Bf16Product {
  using Input = Bf16;
  static constexpr int kStep = 2;
  static constexpr int kRows = 6;
  static constexpr int64_t kManyRows = 0;
  struct Weights {
    __m512bh pairs;
  };
  using Inputs = Weights;
  static Weights weights(const std::byte* group) { return {(__m512bh)_mm512_loadu_si512(group)}; }
  static Inputs inputs(const Bf16* x) {
    int32_t pair;
    __builtin_memcpy(&pair, x, sizeof pair);
    return {(__m512bh)_mm512_set1_epi32(pair)};
  }
  static Vec add_to(Vec sum, const Weights& w, const Inputs& x) {
    return {_mm512_dpbf16_ps(sum.v, w.pairs, x.pairs)};
  }
  static Vec in_order(Vec sum) { return sum; }
};
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
/// bf16 weights and inputs. BFMLALT and BFMLALB widen the odd and the even elements, and round once
/// per product.
struct Bf16Product {
  using Input = Bf16;
  static constexpr int kStep = 2;
  static constexpr int kRows = 4;
  static constexpr int64_t kManyRows = 0;
  struct Weights {
    bfloat16x8_t a, b, c, d;
  };
  using Inputs = bfloat16x8_t;
  static Weights weights(const std::byte* group) {
    const auto* p = reinterpret_cast<const bfloat16_t*>(group);
    return {vld1q_bf16(p), vld1q_bf16(p + 8), vld1q_bf16(p + 16), vld1q_bf16(p + 24)};
  }
  static Inputs inputs(const Bf16* x) {
    uint32_t pair;
    __builtin_memcpy(&pair, x, sizeof pair);
    return vreinterpretq_bf16_u32(vdupq_n_u32(pair));
  }
  static Vec add_to(Vec sum, const Weights& w, const Inputs& x) {
    const auto add = [&](float32x4_t part, bfloat16x8_t weights) {
      return vbfmlalbq_f32(vbfmlaltq_f32(part, weights, x), weights, x);
    };
    return {add(sum.a, w.a), add(sum.b, w.b), add(sum.c, w.c), add(sum.d, w.d)};
  }
  static Vec in_order(Vec sum) { return sum; }
};
#else
using Bf16Product = PairProduct<Bf16, Bf16>;
#endif

}  // namespace
}  // namespace shoal::SHOAL_ISA
