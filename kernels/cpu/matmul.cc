#include "kernels/cpu/ops.h"
#include "kernels/cpu/vec.h"

// Outputs are in lanes and k runs in order, so every output of every row is its own chain. Rows,
// panels and threads can therefore be cut anywhere. A block is Rows rows x Vecs vectors of outputs,
// kept in registers during a leaf.

namespace shoal::SHOAL_ISA {
namespace {

/// A step reads one 512-bit group of weights per vector of outputs, for every type: 16 float32
/// values or 16 pairs.
constexpr int64_t kGroupBytes = 64;
constexpr int kPanelVecs = kPanelOutputs / kLanes;
constexpr int64_t kStepBytes = kPanelVecs * kGroupBytes;

/// How many bytes before its use a weight is prefetched into the second-level cache: one page,
/// because the processor's own prefetching stops there. A shorter distance, or prefetching into the
/// first level, cost 5 % of decode's bandwidth on Zen 4.
constexpr int64_t kPrefetchBytes = 4096;

#if defined(__AVX512F__)
constexpr int kWideVecs = kPanelVecs;
constexpr int kMostRows = 6;
#else
/// For blocks of several rows: AVX2 has 16 registers, of which 4 rows x 2 registers of sums leave
/// room for a pair of weights and a pair of inputs. NEON's 32 are half as wide.
constexpr int kWideVecs = 1;
constexpr int kMostRows = 4;
#endif

/// float32 weights: a step is one k.
struct F32Product {
  using Input = float;
  static constexpr int kStep = 1;
  static constexpr int kRows = kMostRows;
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
};

/// The odd element is added first, because x86's dot-product instruction for bf16 does so.
inline Vec add_pair(Vec sum, const Pair& w, const Pair& x) {
  return fma(x.even, w.even, fma(x.odd, w.odd, sum));
}

/// float16 weights, widened to float32. A step is a pair of k.
struct F16Product {
  using Input = float;
  static constexpr int kStep = 2;
  static constexpr int kRows = 4;
  using Weights = Pair;
  using Inputs = Pair;
  static Pair weights(const std::byte* group) {
    return load_pairs(reinterpret_cast<const F16*>(group));
  }
  static Pair inputs(const float* x) { return {set1(x[0]), set1(x[1])}; }
  static Vec add_to(Vec sum, const Pair& w, const Pair& x) { return add_pair(sum, w, x); }
};

#if defined(__AVX512BF16__)
/// bf16 weights and inputs. The dot-product instruction adds two products, one after the other and
/// each rounded once, so one step of the loop over K takes two values of K.
struct Bf16Product {
  using Input = Bf16;
  static constexpr int kStep = 2;
  static constexpr int kRows = 6;
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
};
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
/// bf16 weights and inputs. BFMLALT and BFMLALB widen the odd and the even elements, and round once
/// per product.
struct Bf16Product {
  using Input = Bf16;
  static constexpr int kStep = 2;
  static constexpr int kRows = 4;
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
};
#else
/// bf16 weights and inputs, widened to float32. A step is a pair of k.
struct Bf16Product {
  using Input = Bf16;
  static constexpr int kStep = 2;
  static constexpr int kRows = 4;
  using Weights = Pair;
  using Inputs = Pair;
  static Pair weights(const std::byte* group) {
    return load_pairs(reinterpret_cast<const Bf16*>(group));
  }
  static Pair inputs(const Bf16* x) {
    uint32_t pair;
    __builtin_memcpy(&pair, x, sizeof pair);
    const uint32_t even_bits = pair << 16, odd_bits = pair & 0xFFFF0000u;
    float even_value, odd_value;
    __builtin_memcpy(&even_value, &even_bits, sizeof even_value);
    __builtin_memcpy(&odd_value, &odd_bits, sizeof odd_value);
    return {set1(even_value), set1(odd_value)};
  }
  static Vec add_to(Vec sum, const Pair& w, const Pair& x) { return add_pair(sum, w, x); }
};
#endif

/// Computes the sums of one leaf. `w` points to its steps of weights, one after the other, and `x`
/// to its inputs, rows x_stride apart.
template <typename Product, int Rows, int Vecs>
inline void leaf_sums(const std::byte* w, const typename Product::Input* x, int64_t x_stride,
                      int64_t steps, Vec (&sums)[Rows][Vecs]) {
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < Vecs; ++v) sums[r][v] = zero();
  }
  for (int64_t step = 0; step < steps; ++step, w += kStepBytes, x += Product::kStep) {
    typename Product::Weights weights[Vecs];
#pragma GCC unroll 4
    for (int v = 0; v < Vecs; ++v) {
      __builtin_prefetch(w + kPrefetchBytes + v * kGroupBytes, /*rw=*/0, /*locality=*/2);
      weights[v] = Product::weights(w + v * kGroupBytes);
    }
#pragma GCC unroll 6
    for (int r = 0; r < Rows; ++r) {
      const typename Product::Inputs inputs = Product::inputs(x + r * x_stride);
#pragma GCC unroll 4
      for (int v = 0; v < Vecs; ++v) sums[r][v] = Product::add_to(sums[r][v], weights[v], inputs);
    }
  }
}

/// Computes Rows rows x Vecs vectors of a panel's outputs: the leaves in order, folded on a stack.
template <typename Product, int Rows, int Vecs>
void block(const MatmulArgs& args, int64_t row, int panel, int vec) {
  const PackedMatrix& w = *args.w;
  const LeafStep* leaf = w.leaves().data();
  const LeafStep* const leaves_end = leaf + w.leaves().size();
  const std::byte* weights = w.panel(panel) + vec * kGroupBytes;
  const auto* x = static_cast<const typename Product::Input*>(args.x) + row * args.x_stride;
  const int column = panel * kPanelOutputs + vec * kLanes;
  alignas(64) float stack[kMaxFoldDepth][Rows][Vecs][kLanes];
  int top = 0;
  for (; leaf != leaves_end; ++leaf) {
    const int64_t steps = (leaf->k_end - leaf->k_begin + Product::kStep - 1) / Product::kStep;
    Vec sums[Rows][Vecs];
    leaf_sums<Product, Rows, Vecs>(weights, x + leaf->k_begin, args.x_stride, steps, sums);
    weights += steps * kStepBytes;
    for (int merge = 0; merge < leaf->merges; ++merge) {
      --top;
#pragma GCC unroll 6
      for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < Vecs; ++v) sums[r][v] = add(load(stack[top][r][v]), sums[r][v]);
      }
    }
    if (leaf->contribution < 0) {
#pragma GCC unroll 6
      for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < Vecs; ++v) store(stack[top][r][v], sums[r][v]);
      }
      ++top;
      continue;
    }
    float* y = args.y + leaf->contribution * args.plane_stride + row * args.y_stride + column;
#pragma GCC unroll 6
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < Vecs; ++v) {
        const int left = w.n() - column - v * kLanes;
        if (left > 0)
          store(y + r * args.y_stride + v * kLanes, sums[r][v], left < kLanes ? left : kLanes);
      }
    }
  }
}

/// Computes the rows [row_begin, row_end) of one panel, Product::kRows at a time while the panel is
/// in the cache.
template <typename Product>
void panel_rows(const MatmulArgs& args, int64_t row_begin, int64_t row_end, int panel) {
  if (row_end - row_begin == 1) return block<Product, 1, kPanelVecs>(args, row_begin, panel, 0);
  for (int vec = 0; vec < kPanelVecs && panel * kPanelOutputs + vec * kLanes < args.w->n();
       vec += kWideVecs) {
    int64_t row = row_begin;
    for (; row + Product::kRows <= row_end; row += Product::kRows) {
      block<Product, Product::kRows, kWideVecs>(args, row, panel, vec);
    }
    switch (row_end - row) {
      case 1:
        block<Product, 1, kWideVecs>(args, row, panel, vec);
        break;
      case 2:
        block<Product, 2, kWideVecs>(args, row, panel, vec);
        break;
      case 3:
        block<Product, 3, kWideVecs>(args, row, panel, vec);
        break;
      case 4:
        if constexpr (Product::kRows > 4) block<Product, 4, kWideVecs>(args, row, panel, vec);
        break;
      case 5:
        if constexpr (Product::kRows > 5) block<Product, 5, kWideVecs>(args, row, panel, vec);
        break;
    }
  }
}

}  // namespace

void matmul(const MatmulArgs& args, int64_t row_begin, int64_t row_end, int panel_begin,
            int panel_end) {
  if (row_begin >= row_end) return;
  for (int panel = panel_begin; panel < panel_end; ++panel) {
    switch (args.w->dtype()) {
      case Dtype::kF32:
        panel_rows<F32Product>(args, row_begin, row_end, panel);
        break;
      case Dtype::kF16:
        panel_rows<F16Product>(args, row_begin, row_end, panel);
        break;
      case Dtype::kBf16:
        panel_rows<Bf16Product>(args, row_begin, row_end, panel);
        break;
    }
  }
}

}  // namespace shoal::SHOAL_ISA
