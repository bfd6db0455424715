#pragma once
#include <cstdint>
#include <cuda_runtime.h>
#include <type_traits>

#include "kernels/cuda/machine.cuh"
#include "kernels/cuda/product.cuh"

/// How a product multiplies what is in block memory, for each type of weights: the columns of a
/// stage, whose rows have 128 bytes, and of a step; and what a step adds to a warp's sums. This
/// decides the bits of a product. output, token: where the warp's sums begin in the tile.
namespace shoal::cuda {

/// Calls body(t, operand B) for each fragment of tokens. A step takes 32 bytes of each token, which
/// are 16 columns of bf16, or 8 of float32.
template <class Tile, class Body>
__device__ inline void for_token_fragments(const unsigned char* stage, int token, int step,
                                           const Body& body) {
  using Tokens = typename Tile::Tokens;
  const int lane = lane_of_warp(), chunk = step * 2 + lane / 8 % 2;
  const unsigned char* const tokens = stage + Tile::Weights::kBytes;
  if constexpr (Tile::kTokenFragments == 1) {
    uint32_t one[2];
    load_matrices(one, tokens + Tokens::place(token + lane % 8, chunk));
    body(0, one[0], one[1]);
  } else {
#pragma unroll
    for (int t = 0; t < Tile::kTokenFragments; t += 2) {
      const int row = token + t * kFragmentTokens + lane / 16 * 8 + lane % 8;
      uint32_t two[4];
      load_matrices(two, tokens + Tokens::place(row, chunk));
      body(t, two[0], two[1]);
      body(t + 1, two[2], two[3]);
    }
  }
}

/// No operands: every step is loaded when it is multiplied.
struct NothingHeld {
  static constexpr bool kHeld = false;
};

/// bf16 weights and inputs, on tensor cores.
struct Bf16Format {
  using Weight = uint16_t;
  using Input = uint16_t;
  static constexpr int kStageColumns = 64;
  static constexpr int kStepColumns = 16;
  /// The fewest columns of a step that is computed whole, because the others hold zeros.
  static constexpr int kLeastColumns = kStepColumns;

  /// What a warp multiplies in a step.
  template <class Tile>
  struct Operands {
    uint32_t weights[Tile::kOutputFragments][4];
    uint32_t tokens[Tile::kTokenFragments][2];

    __device__ void load(const unsigned char* stage, int output, int token, int step) {
#pragma unroll
      for (int f = 0; f < Tile::kOutputFragments; ++f) {
        const int row = output + f * kFragmentOutputs + lane_of_warp() % 16;
        load_matrices(weights[f],
                      stage + Tile::Weights::place(row, step * 2 + lane_of_warp() / 16));
      }
      for_token_fragments<Tile>(stage, token, step, [&](int t, uint32_t first, uint32_t second) {
        tokens[t][0] = first, tokens[t][1] = second;
      });
    }
    __device__ void add(Sums<Tile>& sums) const {
#pragma unroll
      for (int t = 0; t < Tile::kTokenFragments; ++t) {
#pragma unroll
        for (int f = 0; f < Tile::kOutputFragments; ++f)
          multiply_add(sums.value[f][t], weights[f], tokens[t]);
      }
    }
  };

  template <class Tile>
  __device__ static void add_step(Sums<Tile>& sums, const unsigned char* stage, int output,
                                  int token, int step, int /*columns*/) {
    Operands<Tile> operands;
    operands.load(stage, output, token, step);
    operands.add(sums);
  }

  /// Whether a step has so many products that the operands of the next step can be loaded during
  /// them. A step of a small tile has too few, so a small tile loads a whole stage first (Held).
  template <class Tile>
  static constexpr bool kLoadsAhead = (Tile::kOutputFragments * Tile::kTokenFragments) >= 32;
  /// A whole stage, each step of which is loaded while the one before it is multiplied.
  template <class Tile, class LoadMore>
  __device__ static void add_stage(Sums<Tile>& sums, const unsigned char* stage, int output,
                                   int token, const LoadMore& load_more) {
    Operands<Tile> operands[2];
    operands[0].load(stage, output, token, 0);
    load_more();
#pragma unroll
    for (int step = 0; step < kStageColumns / kStepColumns; ++step) {
      if ((step + 1) * kStepColumns < kStageColumns)
        operands[(step + 1) % 2].load(stage, output, token, step + 1);
      operands[step % 2].add(sums);
    }
  }

  /// All operands of a stage. In a small tile nearly every product waits for the one before it, so
  /// nothing would hide the loading of each step's operands.
  template <class Tile>
  struct AllSteps {
    static constexpr bool kHeld = true;
    static constexpr int kSteps = kStageColumns / kStepColumns;
    Operands<Tile> operands[kSteps];

    __device__ void load(const unsigned char* stage, int output, int token) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) operands[step].load(stage, output, token, step);
    }
    /// Adds step number `step` of a stage of `columns` columns. Does nothing if the stage ends
    /// before that step.
    __device__ void add(Sums<Tile>& sums, int step, int columns) const {
      if (step * kStepColumns < columns) operands[step].add(sums);
    }
  };
  template <class Tile>
  using Held = std::conditional_t<Tile::kOutputFragments * Tile::kTokenFragments <= 4,
                                  AllSteps<Tile>, NothingHeld>;
};

/// float16 weights and float32 inputs, on tensor cores as tf32. It holds the weights exactly, and
/// the inputs are rounded.
struct F16Format {
  using Weight = uint16_t;
  using Input = float;
  template <class Tile>
  using Held = NothingHeld;
  template <class Tile>
  static constexpr bool kLoadsAhead = false;
  static constexpr int kStageColumns = 32;
  static constexpr int kStepColumns = 8;
  static constexpr int kLeastColumns = kStepColumns;

  template <class Tile>
  __device__ static void add_step(Sums<Tile>& sums, const unsigned char* stage, int output,
                                  int token, int step, int /*columns*/) {
    uint32_t weights[Tile::kOutputFragments][4];
#pragma unroll
    for (int f = 0; f < Tile::kOutputFragments; ++f) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // A chunk of weights is a step's columns, of which a lane has two.
        const int row = output + f * kFragmentOutputs + half * 8 + lane_of_warp() / 4;
        const auto* const chunk =
            reinterpret_cast<const Weight*>(stage + Tile::Weights::place(row, step));
        weights[f][half] = __float_as_uint(from_f16(chunk[lane_of_warp() % 4]));
        weights[f][half + 2] = __float_as_uint(from_f16(chunk[lane_of_warp() % 4 + 4]));
      }
    }
    for_token_fragments<Tile>(stage, token, step, [&](int t, uint32_t first, uint32_t second) {
      const uint32_t rounded[2] = {to_tf32(__uint_as_float(first)),
                                   to_tf32(__uint_as_float(second))};
#pragma unroll
      for (int f = 0; f < Tile::kOutputFragments; ++f)
        multiply_add_tf32(sums.value[f][t], weights[f], rounded);
    });
  }
};

/// float32 weights and inputs: chains of fused multiply-adds. A lane has the sums that it would
/// have of a tensor core.
struct F32Format {
  using Weight = float;
  using Input = float;
  template <class Tile>
  using Held = NothingHeld;
  template <class Tile>
  static constexpr bool kLoadsAhead = false;
  static constexpr int kStageColumns = 32;
  static constexpr int kStepColumns = 4;
  /// Every column is counted, because a chain can be -0, which an added zero would change.
  static constexpr int kLeastColumns = 1;

  template <class Tile>
  __device__ static void add_step(Sums<Tile>& sums, const unsigned char* stage, int output,
                                  int token, int step, int columns) {
    const int lane = lane_of_warp();
    Four weights[Tile::kOutputFragments][2];
#pragma unroll
    for (int f = 0; f < Tile::kOutputFragments; ++f) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = output + f * kFragmentOutputs + half * 8 + lane / 4;
        weights[f][half] = four_at(stage + Tile::Weights::place(row, step));
      }
    }
#pragma unroll
    for (int t = 0; t < Tile::kTokenFragments; ++t) {
      const int row = token + t * kFragmentTokens + lane % 4 * 2;
      const unsigned char* const tokens = stage + Tile::Weights::kBytes;
      const Four inputs[2] = {four_at(tokens + Tile::Tokens::place(row, step)),
                              four_at(tokens + Tile::Tokens::place(row + 1, step))};
#pragma unroll
      for (int k = 0; k < kStepColumns; ++k) {
        if (k < columns) add_column(sums, weights, inputs, t, k);
      }
    }
  }

 private:
  __device__ static Four four_at(const unsigned char* chunk) {
    return *reinterpret_cast<const Four*>(chunk);
  }

  template <class Tile>
  __device__ static void add_column(Sums<Tile>& sums,
                                    const Four (&weights)[Tile::kOutputFragments][2],
                                    const Four (&inputs)[2], int t, int k) {
#pragma unroll
    for (int f = 0; f < Tile::kOutputFragments; ++f) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& sum = sums.value[f][t][i];
        sum = __fmaf_rn(weights[f][i / 2].value[k], inputs[i % 2].value[k], sum);
      }
    }
  }
};

}  // namespace shoal::cuda
