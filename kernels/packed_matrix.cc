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

/// What is stored together in a panel is a group: one float32 or a pair of 2-byte values, four
/// bytes either way.
constexpr int kGroupBytes = 4;
/// Each row writes into every group of a strip. A strip is no longer than a cache of the first
/// level, so that its lines stay there from row to row.
constexpr int kStripGroups = 128;
constexpr int64_t kStripBytes = int64_t{kStripGroups} * kPanelOutputs * kGroupBytes;

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

int PackedMatrix::strips() const {
  return static_cast<int>((panel_bytes_ + kStripBytes - 1) / kStripBytes);
}

std::span<const std::byte> PackedMatrix::strip(int panel_index, int strip_index) const {
  const int64_t begin = strip_index * kStripBytes;
  return {panel(panel_index) + begin,
          static_cast<size_t>(std::min(kStripBytes, panel_bytes_ - begin))};
}

void PackedMatrix::pack_strip(int strip_index, int row, int rows, const void* source,
                              int64_t row_stride) {
  const auto bytes = static_cast<int>(dtype_bytes(dtype_));
  const int per_group = kGroupBytes / bytes, first = strip_index * kStripGroups,
            end = std::min(first + kStripGroups, k_ / per_group);
  const auto* from = static_cast<const std::byte*>(source);
  for (int r = 0; r < rows; ++r) {
    const std::byte* source_row = from + r * row_stride * bytes;
    std::byte* to = element(row + r, first * per_group);
    for (int group = first; group < end; ++group, to += kPanelOutputs * kGroupBytes) {
      std::memcpy(to, source_row + int64_t{group} * kGroupBytes, kGroupBytes);
    }
  }
  if (strip_index + 1 < strips() || k_ % per_group == 0) return;
  for (int r = 0; r < rows; ++r) {  // the odd last column is half of a group
    std::memcpy(element(row + r, k_ - 1), from + (r * row_stride + k_ - 1) * bytes,
                static_cast<size_t>(bytes));
  }
}

void PackedMatrix::pack_rows(int row, int rows, const void* source, int64_t row_stride) {
  for (int strip = 0; strip < strips(); ++strip) pack_strip(strip, row, rows, source, row_stride);
}

}  // namespace shoal
