#include <algorithm>
#include <limits>

#include "kernels/reference/exp.h"
#include "kernels/reference/lane_sums.h"
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
    // -0 becomes +0, because which zero wins is chance.
    *sums = {argmax(logits + begin, end - begin).value + 0.0f, 0};
    if (sums->max == kLowest) continue;
    float lanes[kLanes] = {};
    for (int64_t i = begin; i < end; ++i) lanes[(i - begin) % kLanes] += exp(logits[i] - sums->max);
    sums->sum = sum_of_lanes(lanes);
  }
}

}  // namespace shoal::reference
