#include "models/weight_sum.h"

#include <algorithm>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace shoal {
namespace {

/// The same for every number of threads.
constexpr size_t kPieceBytes = size_t{1} << 20;

}  // namespace

void WeightSum::add(const void* data, size_t bytes) {
  const auto* const from = static_cast<const std::byte*>(data);
  const size_t first = pieces_.size(), pieces = (bytes + kPieceBytes - 1) / kPieceBytes;
  pieces_.resize(first + pieces);
  pool_.split(static_cast<int64_t>(pieces), [&](int64_t begin, int64_t end) {
    for (auto piece = static_cast<size_t>(begin); piece < static_cast<size_t>(end); ++piece) {
      const size_t at = piece * kPieceBytes;
      pieces_[first + piece] = XXH3_64bits(from + at, std::min(kPieceBytes, bytes - at));
    }
  });
  pieces_.push_back(bytes);  // so that bytes cannot move from one part to the next
}

uint64_t WeightSum::value() const {
  return XXH3_64bits(pieces_.data(), pieces_.size() * sizeof(uint64_t));
}

}  // namespace shoal
