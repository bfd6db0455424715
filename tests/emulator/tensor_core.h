#pragma once
#include <cstdint>

/// The arithmetic of tensor cores for bfloat16 and tf32, as published for m16n8k16 and m16n8k8
/// (MMA-Sim, arXiv 2511.10909, whose authors compared it with hardware). An output is a sum of its
/// addend and of products: each product is exact, every term is cut towards zero to a multiple of
/// one power of two, which lies fraction_bits below the greatest exponent among the terms; and the
/// sum of the terms is cut towards zero to a float32, of which zero is always +0. judge_test
/// compares it with the authors' own program. tests/gpu checks whether a device computes the same.
namespace shoal::emulator {

struct TensorCore {
  /// Products of one sum of bfloat16; those behind it start from its result. Of tf32 it has half as
  /// many.
  int terms = 16;
  int fraction_bits = 25;  ///< of the grid
  /// The exponent that a zero term counts with. It limits how fine the grid can become, which shows
  /// in sums below 2^-126.
  int zero_exponent = -133;
};
/// sm_90 and later sum 16 products at once, sm_80 to sm_89 8 with a coarser grid.
TensorCore tensor_core_of(int major);

/// sum + the products of a[i] and b[i], which are 16 bfloat16 numbers each.
float multiply_row(const TensorCore& core, const uint16_t a[16], const uint16_t b[16], float sum);

/// sum[i][j] + the products of row i of a and column j of b, which is given by columns.
void multiply_tile(const TensorCore& core, const uint16_t a[16][16], const uint16_t b[8][16],
                   float sum[16][8]);

/// The same for 8 numbers of tf32, which are float32 of whose fraction the first 10 bits count.
float multiply_row(const TensorCore& core, const float a[8], const float b[8], float sum);
void multiply_tile(const TensorCore& core, const float a[16][8], const float b[8][8],
                   float sum[16][8]);

}  // namespace shoal::emulator
