#include "kernels/packed_matrix.h"

#include <algorithm>
#include <cstring>

namespace shoal {
namespace {

/// Number of elements that one output takes over k columns. 2-byte types are stored in pairs.
int64_t padded(Dtype dtype, int64_t k) {
  return dtype == Dtype::kF32 ? k : (k + 1) / 2 * 2;
}

/// Checks the leaves by playing the fold through, because kernels trust them and check nothing.
Status check_leaves(const std::vector<LeafStep>& leaves, int k, int* contributions) {
  const auto wrong = [&](size_t leaf, const char* what) {
    return Status::error(Code::kInvalidArgument,
                         cat("leaf ", leaf, " of ", leaves.size(), ", columns [",
                             leaves[leaf].k_begin, ", ", leaves[leaf].k_end, "): ", what));
  };
  int column = 0, depth = 0;
  for (size_t i = 0; i < leaves.size(); ++i) {
    const LeafStep& leaf = leaves[i];
    if (leaf.k_begin != column || leaf.k_end <= leaf.k_begin) return wrong(i, "not contiguous");
    if (leaf.k_begin % 2 != 0) return wrong(i, "begins at an odd column");
    if (++depth > kMaxFoldDepth) return wrong(i, "the fold stack is too deep");
    if (leaf.merges < 0 || leaf.merges >= depth) return wrong(i, "folds more than the stack holds");
    depth -= leaf.merges;
    if (leaf.contribution >= 0) {
      if (leaf.contribution != *contributions || depth != 1)
        return wrong(i, "ends a contribution out of turn");
      ++*contributions;
      depth = 0;
    }
    column = leaf.k_end;
  }
  if (column != k || depth != 0) {
    return Status::error(
        Code::kInvalidArgument,
        cat("leaves cover ", column, " of ", k, " columns and leave ", depth, " sums unfolded"));
  }
  return {};
}

}  // namespace

Result<PackedMatrix> PackedMatrix::allocate(Dtype dtype, int n, int k,
                                            std::vector<LeafStep> leaves) {
  PackedMatrix matrix;
  SHOAL_RETURN_IF_ERROR(check_leaves(leaves, k, &matrix.contributions_));
  matrix.dtype_ = dtype;
  matrix.n_ = n;
  matrix.k_ = k;
  matrix.panel_bytes_ = padded(dtype, k) * kPanelOutputs * static_cast<int64_t>(dtype_bytes(dtype));
  matrix.leaves_ = std::move(leaves);
  SHOAL_ASSIGN_OR_RETURN(
      matrix.data_,
      AlignedBuffer::allocate(static_cast<size_t>(matrix.panels() * matrix.panel_bytes_)));
  return matrix;
}

std::byte* PackedMatrix::element(int row, int k) const {
  const auto bytes = static_cast<int64_t>(dtype_bytes(dtype_));
  const int64_t output = row % kPanelOutputs;
  // Leaves begin at even columns, so the pairs of all leaves follow one another without a gap.
  const int64_t index = dtype_ == Dtype::kF32
                            ? int64_t{k} * kPanelOutputs + output
                            : (int64_t{k / 2} * kPanelOutputs + output) * 2 + k % 2;
  return data_.as<std::byte>() + row / kPanelOutputs * panel_bytes_ + index * bytes;
}

void PackedMatrix::pack_rows(int row, int rows, const void* source, int64_t row_stride) {
  // A group is what is stored together in a panel: one float32 or a pair of 2-byte values, four
  // bytes either way. Columns are packed in strips, so that the panel's cache lines that a strip
  // touches stay in the cache from row to row.
  constexpr int kGroupBytes = 4, kStripGroups = 128;
  const auto bytes = static_cast<int>(dtype_bytes(dtype_));
  const int per_group = kGroupBytes / bytes, whole_groups = k_ / per_group;
  const auto* from = static_cast<const std::byte*>(source);
  for (int strip = 0; strip < whole_groups; strip += kStripGroups) {
    const int strip_end = std::min(strip + kStripGroups, whole_groups);
    for (int r = 0; r < rows; ++r) {
      const std::byte* source_row = from + r * row_stride * bytes;
      std::byte* to = element(row + r, strip * per_group);
      for (int group = strip; group < strip_end; ++group, to += kPanelOutputs * kGroupBytes) {
        std::memcpy(to, source_row + int64_t{group} * kGroupBytes, kGroupBytes);
      }
    }
  }
  for (int k = whole_groups * per_group; k < k_; ++k) {
    for (int r = 0; r < rows; ++r) {
      std::memcpy(element(row + r, k), from + (r * row_stride + k) * bytes,
                  static_cast<size_t>(bytes));
    }
  }
}

}  // namespace shoal
