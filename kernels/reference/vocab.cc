#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/reference/ops.h"

namespace shoal::reference {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

ArgmaxResult argmax(const float* logits, int64_t cols) {
  ArgmaxResult best{kLowest, 0};
  for (int64_t i = 0; i < cols; ++i) {
    if (logits[i] > best.value) best = {logits[i], static_cast<int32_t>(i)};
  }
  return best;
}

void chunk_sums(const float* logits, int64_t cols, ChunkSum* sums) {
  for (int64_t begin = 0; begin < cols; begin += kVocabChunk, ++sums) {
    const int64_t end = std::min<int64_t>(begin + kVocabChunk, cols);
    *sums = {argmax(logits + begin, end - begin).value, 0};
    if (sums->max == kLowest) continue;
    for (int64_t i = begin; i < end; ++i) sums->sum += std::exp(logits[i] - sums->max);
  }
}

}  // namespace shoal::reference
