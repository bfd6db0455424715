#pragma once
#include <cstdint>

/// What the lanes of a warp exchange when they use a tensor core. These functions see all lanes at
/// once, which ThreadSanitizer must not take for a race.
namespace shoal::emulator {

/// One lane's part of the operands of m16n8k16, as PTX lays them out: a is 16 x 16 by rows, b is
/// 16 x 8 by columns, and sum is 16 x 8.
struct Fragments {
  const uint32_t (&a)[4];
  const uint32_t (&b)[2];
  float (&sum)[4];
};
/// Adds the product to the sums of a warp, with the arithmetic of the running device. Each of the
/// 32 operands is a lane's Fragments.
void multiply_fragments(void* const operands[]);
/// The same for m16n8k8 of tf32: a is 16 x 8, and b is 8 x 8. The operands are Fragments, too.
void multiply_tf32_fragments(void* const operands[]);

/// The row of a matrix that one lane has read, and where the lane wants its elements.
struct MatrixRow {
  unsigned char bytes[16];
  uint32_t* to;
};
/// Gives every lane its elements of 2 or 4 matrices. Each of the 32 operands is a lane's MatrixRow.
template <int kMatrices>
void deal_rows(void* const operands[]);
/// The same, but lane l gets elements l / 4 of rows 2 (l % 4) and the next, as if the matrices were
/// transposed.
void deal_transposed_rows(void* const operands[]);

/// What a lane gives to another one, and what it gets from the lane whose number differs in the
/// bits of `apart`.
struct Exchanged {
  float given;
  int apart;
  float got;
};
/// Each of the 32 operands is a lane's Exchanged. The lane to get from must take part too.
void exchange(void* const operands[]);

}  // namespace shoal::emulator
