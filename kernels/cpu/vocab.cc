#include "kernels/cpu/ops.h"
#include "kernels/cpu/vec.h"

namespace shoal::SHOAL_ISA {
namespace {

constexpr float kLowest = -__builtin_inff();

/// Returns the greatest of count values, or -infinity if there is none. NaN is never the greatest.
float greatest(const float* x, int64_t count) {
  Vec best = set1(kLowest);
  for_lanes(count, [&](int64_t i, int lanes) {
    const Vec v = load(x + i, lanes);
    best = max(lanes == kLanes ? v : select(lanes_between(0, lanes), v, best), best);
  });
  return max_of(best);
}

}  // namespace

ArgmaxResult argmax(const float* logits, int64_t cols) {
  const float best = greatest(logits, cols);
  if (best == kLowest) return {kLowest, 0};
  for (int64_t i = 0; i < cols; i += kLanes) {
    const int lanes = cols - i < kLanes ? static_cast<int>(cols - i) : kLanes;
    const uint32_t equal = equal_bits(load(logits + i, lanes), set1(best)) & ((1u << lanes) - 1);
    if (equal != 0) {
      const int64_t column = i + __builtin_ctz(equal);
      // Not `best`, because +0 and -0 compare equal: return the zero that is in this column.
      return {logits[column], static_cast<int32_t>(column)};
    }
  }
  return {kLowest, 0};
}

void chunk_sums(const float* logits, int64_t cols, ChunkSum* sums) {
  for (int64_t begin = 0; begin < cols; begin += kVocabChunk, ++sums) {
    const int64_t count = cols - begin < kVocabChunk ? cols - begin : kVocabChunk;
    const float* x = logits + begin;
    sums->max = greatest(x, count) + 0.0f;  // -0 becomes +0, because which zero wins is chance
    sums->sum = 0;
    if (sums->max == kLowest) continue;
    Vec sum = zero();
    for_lanes(count, [&](int64_t i, int lanes) {
      const Vec p = exp(sub(load(x + i, lanes), set1(sums->max)));
      sum = add(sum, lanes == kLanes ? p : select(lanes_between(0, lanes), p, zero()));
    });
    sums->sum = sum_of(sum);
  }
}

}  // namespace shoal::SHOAL_ISA
