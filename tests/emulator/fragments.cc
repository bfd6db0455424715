#include "tests/emulator/fragments.h"

#include <bit>
#include <cstring>

#include "tests/emulator/lanes.h"
#include "tests/emulator/tensor_core.h"

namespace shoal::emulator {
namespace {

/// Half `half` of a register that holds two bfloat16 numbers.
uint16_t half_of(uint32_t word, int half) {
  return static_cast<uint16_t>(half == 0 ? word : word >> 16);
}

}  // namespace

void multiply_fragments(void* const operands[]) {
  uint16_t a[16][16], b[8][16];
  float sum[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& mine = *static_cast<const Fragments*>(operands[lane]);
    const int row = lane / 4, column = lane % 4 * 2;
    for (int half = 0; half < 2; ++half) {
      for (int i = 0; i < 4; ++i)  // row, row + 8; then the same at column + 8
        a[row + i % 2 * 8][column + i / 2 * 8 + half] = half_of(mine.a[i], half);
      for (int i = 0; i < 2; ++i) b[row][column + i * 8 + half] = half_of(mine.b[i], half);
    }
    for (int i = 0; i < 4; ++i) sum[row + i / 2 * 8][column + i % 2] = mine.sum[i];
  }
  multiply_tile(facts_of_launch().tensor_core, a, b, sum);
  for (int lane = 0; lane < 32; ++lane) {
    const auto& mine = *static_cast<const Fragments*>(operands[lane]);
    for (int i = 0; i < 4; ++i) mine.sum[i] = sum[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
  }
}

void multiply_tf32_fragments(void* const operands[]) {
  float a[16][8], b[8][8], sum[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& mine = *static_cast<const Fragments*>(operands[lane]);
    const int row = lane / 4, column = lane % 4;
    for (int i = 0; i < 4; ++i)
      a[row + i % 2 * 8][column + i / 2 * 4] = std::bit_cast<float>(mine.a[i]);
    for (int i = 0; i < 2; ++i) b[row][column + i * 4] = std::bit_cast<float>(mine.b[i]);
    for (int i = 0; i < 4; ++i) sum[row + i / 2 * 8][column * 2 + i % 2] = mine.sum[i];
  }
  multiply_tile(facts_of_launch().tensor_core, a, b, sum);
  for (int lane = 0; lane < 32; ++lane) {
    const auto& mine = *static_cast<const Fragments*>(operands[lane]);
    for (int i = 0; i < 4; ++i) mine.sum[i] = sum[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
  }
}

template <int kMatrices>
void deal_rows(void* const operands[]) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < kMatrices; ++i) {
      const auto* row = static_cast<const MatrixRow*>(operands[8 * i + lane / 4]);
      std::memcpy(static_cast<MatrixRow*>(operands[lane])->to + i, row->bytes + lane % 4 * 4, 4);
    }
  }
}
template void deal_rows<2>(void* const operands[]);
template void deal_rows<4>(void* const operands[]);

void deal_transposed_rows(void* const operands[]) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      auto* const to =
          reinterpret_cast<unsigned char*>(static_cast<MatrixRow*>(operands[lane])->to + i);
      for (int half = 0; half < 2; ++half) {
        const auto* row = static_cast<const MatrixRow*>(operands[8 * i + lane % 4 * 2 + half]);
        std::memcpy(to + 2 * half, row->bytes + lane / 4 * 2, 2);
      }
    }
  }
}

void exchange(void* const operands[]) {
  for (int lane = 0; lane < 32; ++lane) {
    auto* const mine = static_cast<Exchanged*>(operands[lane]);
    if (mine != nullptr) mine->got = static_cast<Exchanged*>(operands[lane ^ mine->apart])->given;
  }
}

}  // namespace shoal::emulator
