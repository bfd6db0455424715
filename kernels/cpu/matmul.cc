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
inline __m512i load_group(const std::byte* p) {
  return _mm512_loadu_si512(p);
}
constexpr int kWideVecs = kPanelVecs;
#else
/// For blocks of several rows: 4 rows x 2 registers of sums leave room for a pair of weights and a
/// pair of inputs.
constexpr int kWideVecs = 1;
#endif

/// float32 weights: a step is one k.
struct F32Product {
  using Input = float;
  static constexpr int kStep = 1;
#if defined(__AVX512F__)
  static constexpr int kRows = 6;
#else
  static constexpr int kRows = 4;
#endif
  struct Weights {
    Vec value;
  };
  using Inputs = Weights;
  static Weights weights(const std::byte* group) {
    return {load(reinterpret_cast<const float*>(group))};
  }
  static Inputs inputs(const float* x) {
    return {set1(*x)};
  }
  static Vec add_to(Vec sum, const Weights& w, const Inputs& x) {
    return fma(x.value, w.value, sum);
  }
};

/// Two weights of each output, or the two inputs that belong to them. The even one is added first.
struct Pair {
  Vec even, odd;
};
inline Vec add_pair(Vec sum, const Pair& w, const Pair& x) {
  return fma(x.odd, w.odd, fma(x.even, w.even, sum));
}

/// float16 weights, widened to float32. A step is a pair of k.
struct F16Product {
  using Input = float;
  static constexpr int kStep = 2;
  static constexpr int kRows = 4;
  using Weights = Pair;
  using Inputs = Pair;
  static Pair weights(const std::byte* group) {
    // Within 128 bits, move the even halves to the front and the odd ones to the back. Then put the
    // 64-bit pieces in order.
    const __m128i split = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
#if defined(__AVX512F__)
    const __m512i in_order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    const __m512i halves = _mm512_permutexvar_epi64(
        in_order, _mm512_shuffle_epi8(load_group(group), _mm512_broadcast_i32x4(split)));
    return {{_mm512_cvtph_ps(_mm512_castsi512_si256(halves))},
            {_mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1))}};
#else
    const auto half = [&](const std::byte* p) {
      const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
      return _mm256_permute4x64_epi64(
          _mm256_shuffle_epi8(pairs, _mm256_broadcastsi128_si256(split)), 0xD8);
    };
    const __m256i lo = half(group), hi = half(group + 32);
    return {
        {_mm256_cvtph_ps(_mm256_castsi256_si128(lo)), _mm256_cvtph_ps(_mm256_castsi256_si128(hi))},
        {_mm256_cvtph_ps(_mm256_extracti128_si256(lo, 1)),
         _mm256_cvtph_ps(_mm256_extracti128_si256(hi, 1))}};
#endif
  }
  static Pair inputs(const float* x) {
    return {set1(x[0]), set1(x[1])};
  }
  static Vec add_to(Vec sum, const Pair& w, const Pair& x) {
    return add_pair(sum, w, x);
  }
};

#if defined(__AVX512BF16__)
/// bf16 weights and inputs. The dot-product instruction adds two products at once, so one step of
/// the loop over K takes two values of K.
struct Bf16Product {
  using Input = Bf16;
  static constexpr int kStep = 2;
  static constexpr int kRows = 6;
  struct Weights {
    __m512bh pairs;
  };
  using Inputs = Weights;
  static Weights weights(const std::byte* group) { return {(__m512bh)load_group(group)}; }
  static Inputs inputs(const Bf16* x) {
    int32_t pair;
    __builtin_memcpy(&pair, x, sizeof pair);
    return {(__m512bh)_mm512_set1_epi32(pair)};
  }
  static Vec add_to(Vec sum, const Weights& w, const Inputs& x) {
    return {_mm512_dpbf16_ps(sum.v, w.pairs, x.pairs)};
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
#if defined(__AVX512F__)
  static Pair widen(__m512i pairs) {
    return {{_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))},
            {_mm512_castsi512_ps(
                _mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))))}};
  }
  static Pair weights(const std::byte* group) {
    return widen(load_group(group));
  }
#else
  static __m256 even(__m256i pairs) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
  }
  static __m256 odd(__m256i pairs) {
    return _mm256_castsi256_ps(
        _mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u))));
  }
  static Pair weights(const std::byte* group) {
    const __m256i lo = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(group));
    const __m256i hi = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(group + 32));
    return {{even(lo), even(hi)}, {odd(lo), odd(hi)}};
  }
#endif
  static Pair inputs(const Bf16* x) {
    uint32_t pair;
    __builtin_memcpy(&pair, x, sizeof pair);
    const uint32_t even_bits = pair << 16, odd_bits = pair & 0xFFFF0000u;
    float even_value, odd_value;
    __builtin_memcpy(&even_value, &even_bits, sizeof even_value);
    __builtin_memcpy(&odd_value, &odd_bits, sizeof odd_value);
    return {set1(even_value), set1(odd_value)};
  }
  static Vec add_to(Vec sum, const Pair& w, const Pair& x) {
    return add_pair(sum, w, x);
  }
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
      _mm_prefetch(reinterpret_cast<const char*>(w + kPrefetchBytes + v * kGroupBytes),
                   _MM_HINT_T1);
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
