#include "kernels/packed_matrix.h"

#include <algorithm>
#include <cstring>

namespace shoal {
namespace {

/// Elements of one output in a leaf: 2-byte types hold pairs.
int64_t padded(Dtype dtype, int64_t k) {
  return dtype == Dtype::kF32 ? k : (k + 1) / 2 * 2;
}

}  // namespace

Result<PackedMatrix> PackedMatrix::allocate(Dtype dtype, int n, int k, std::vector<LeafStep> leaves) {
  PackedMatrix matrix;
  matrix.dtype_ = dtype;
  matrix.n_ = n;
  matrix.k_ = k;
  matrix.panel_bytes_ = padded(dtype, k) * kPanelOutputs * static_cast<int64_t>(dtype_bytes(dtype));
  for (const LeafStep& leaf : leaves) matrix.contributions_ = std::max(matrix.contributions_, leaf.contribution + 1);
  matrix.leaves_ = std::move(leaves);
  SHOAL_ASSIGN_OR_RETURN(matrix.data_,
                         AlignedBuffer::allocate(static_cast<size_t>(matrix.panels() * matrix.panel_bytes_)));
  return matrix;
}

std::byte* PackedMatrix::element(int row, int k) const {
  const int64_t bytes = static_cast<int64_t>(dtype_bytes(dtype_));
  const int64_t output = row % kPanelOutputs;
  // Leaves begin at even columns, so that the pairs of all leaves line up one after the other.
  const int64_t index = dtype_ == Dtype::kF32 ? k * int64_t{kPanelOutputs} + output
                                              : (k / 2 * int64_t{kPanelOutputs} + output) * 2 + k % 2;
  return data_.as<std::byte>() + row / kPanelOutputs * panel_bytes_ + index * bytes;
}

void PackedMatrix::pack_rows(int row, int rows, const void* source, int64_t row_stride) {
  const auto bytes = static_cast<int64_t>(dtype_bytes(dtype_));
  const auto* from = static_cast<const std::byte*>(source);
  for (int r = 0; r < rows; ++r, from += row_stride * bytes) {
    for (int k = 0; k < k_; ++k) std::memcpy(element(row + r, k), from + k * bytes, static_cast<size_t>(bytes));
  }
}

}  // namespace shoal
