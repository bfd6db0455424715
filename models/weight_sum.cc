#include "models/weight_sum.h"

#include <algorithm>

namespace shoal {
namespace {

/// The same for every number of threads.
constexpr size_t kPieceBytes = size_t{1} << 20;

}  // namespace

void WeightSum::add(const void* data, size_t bytes) {
  const auto* const from = static_cast<const std::byte*>(data);
  const size_t pieces = (bytes + kPieceBytes - 1) / kPieceBytes, first = add_parts(pieces);
  pool_.split(static_cast<int64_t>(pieces), [&](int64_t begin, int64_t end) {
    for (auto piece = static_cast<size_t>(begin); piece < static_cast<size_t>(end); ++piece) {
      const size_t at = piece * kPieceBytes;
      set_part(first + piece, from + at, std::min(kPieceBytes, bytes - at));
    }
  });
  parts_.push_back(bytes);  // so that bytes cannot move from one call to the next
}

size_t WeightSum::add_parts(size_t count) {
  const size_t first = parts_.size();
  parts_.resize(first + count);
  return first;
}

void WeightSum::set_part(size_t part, const void* data, size_t bytes) {
  parts_[part] = kernels_.checksum(data, bytes);
}

uint64_t WeightSum::value() const {
  return kernels_.checksum(parts_.data(), parts_.size() * sizeof(uint64_t));
}

}  // namespace shoal
