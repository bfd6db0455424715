#pragma once
#include <cstdint>
#include <vector>

#include "runtime/base/aligned_buffer.h"
#include "runtime/base/dtype.h"
#include "runtime/base/reduce_tree.h"

namespace shoal {

/// Outputs of one panel: four 512-bit vectors of float32 accumulators.
inline constexpr int kPanelOutputs = 64;

/// The deepest fold stack of a product. 16 leaves need 5.
inline constexpr int kMaxFoldDepth = 8;

/// One leaf of a product's K dimension in the columns that this rank holds, and what follows it on
/// the fold stack.
struct LeafStep {
  int k_begin = 0;        ///< first column, relative to the rank's own; even
  int k_end = 0;          ///< one past the last; odd only for the last leaf of the model
  int merges = 0;         ///< stack folds after this leaf's sum has been pushed
  int contribution = -1;  ///< >= 0: the stack's one value is then this plane of the result
};

/// A weight matrix W [n outputs, k inputs] of a rank, rearranged so that a product streams it once,
/// in order: panels of kPanelOutputs outputs; in a panel, leaf after leaf; in a leaf, for 2-byte
/// types pairs of k
///     [pair][output][2], an odd last k padded with zero,
/// and for float32 [k][output]. Outputs past n are zero rows. Immutable once packed; shared by
/// threads.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  /// Allocates zeroed panels. leaves: their k ranges are contiguous from 0 to k; none where k is 0.
  /// A column-parallel matrix has the one leaf {0, k, 0, 0}. INVALID_ARGUMENT: the leaves do not
  /// cover k, begin at an odd column, or do not fold into contributions 0, 1, ...;
  /// RESOURCE_EXHAUSTED: memory is refused.
  static Result<PackedMatrix> allocate(Dtype dtype, int n, int k, std::vector<LeafStep> leaves);

  /// Copies rows [row, row + rows) from a row-major source (elements of dtype(), row_stride
  /// elements apart, k of them used). Rows may be packed in any order and by several threads where
  /// they fall into different panels.
  void pack_rows(int row, int rows, const void* source, int64_t row_stride);

  Dtype dtype() const { return dtype_; }
  int n() const { return n_; }
  int k() const { return k_; }
  int panels() const { return (n_ + kPanelOutputs - 1) / kPanelOutputs; }
  const std::vector<LeafStep>& leaves() const { return leaves_; }
  /// Planes of a product's result: contributions of this rank (1 for a column-parallel matrix).
  int contributions() const { return contributions_; }
  const std::byte* panel(int index) const { return data_.as<std::byte>() + index * panel_bytes_; }
  int64_t panel_bytes() const { return panel_bytes_; }
  size_t bytes() const { return data_.bytes(); }

 private:
  std::byte* element(int row, int k) const;

  Dtype dtype_ = Dtype::kF32;
  int n_ = 0;
  int k_ = 0;
  int contributions_ = 0;
  int64_t panel_bytes_ = 0;
  std::vector<LeafStep> leaves_;
  AlignedBuffer data_;
};

}  // namespace shoal
