#include "runtime/comm/tree_sum.h"

#include <algorithm>
#include <cstring>

namespace shoal {
namespace {

constexpr size_t kTile = 512;  // floats; a few tiles and the planes' current lines fit in 32 KiB
constexpr size_t kLineFloats = 16;  // in one cache line

// The pointers never overlap, because tree_sum alternates its tiles. Therefore the compiler can use
// vectors without checking for overlap.
void add(const float* __restrict a, const float* __restrict b, float* __restrict sum,
         size_t count) {
  for (size_t i = 0; i < count; ++i) sum[i] = a[i] + b[i];
}

}  // namespace

void tree_sum(const FoldProgram& program, std::span<const float* const> planes, float* out,
              size_t count) {
  // Two tiles per level: if the left side of a sum is in one of them, the sum goes to the other.
  alignas(64) float tiles[kMaxFoldDepth][2][kTile];
  const float* stack[kMaxFoldDepth];
  for (size_t begin = 0; begin < count; begin += kTile) {
    const size_t width = std::min(kTile, count - begin);
    int depth = 0;
    for (size_t plane = 0; plane < planes.size(); ++plane) {
      stack[depth++] = planes[plane] + begin;
      for (int merge = program.merges[plane]; merge > 0; --merge) {
        const int left = depth - 2;
        const bool root = merge == 1 && plane + 1 == planes.size();
        float* sum = root ? out + begin : tiles[left][stack[left] == tiles[left][0] ? 1 : 0];
        add(stack[left], stack[left + 1], sum, width);
        stack[left] = sum;
        depth = left + 1;
      }
    }
    if (planes.size() == 1) std::memcpy(out + begin, planes[0] + begin, width * sizeof(float));
  }
}

Slice slice_of(int rank, int world_size, size_t count) {
  const size_t lines = (count + kLineFloats - 1) / kLineFloats;
  const auto cut = [&](size_t r) {
    return std::min(count, lines * r / static_cast<size_t>(world_size) * kLineFloats);
  };
  return {cut(static_cast<size_t>(rank)), cut(static_cast<size_t>(rank) + 1)};
}

}  // namespace shoal
