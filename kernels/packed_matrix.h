#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/aligned_buffer.h"
#include "runtime/base/dtype.h"
#include "runtime/base/reduce_tree.h"

namespace shoal {

/// Number of outputs in one panel: four 512-bit vectors of float32 accumulators.
inline constexpr int kPanelOutputs = 64;

/// One leaf of a product's K dimension, in the columns that this rank holds, and the folds that
/// follow it on the stack.
struct LeafStep {
  int k_begin = 0;  ///< first column, relative to the rank's own; even
  int k_end = 0;    ///< one past the last; odd only for the last leaf of the model
  int merges = 0;   ///< stack folds after this leaf's sum has been pushed
  /// If >= 0, the stack's one value is then written to this plane of the result.
  int contribution = -1;
};

/// A weight matrix W [n outputs, k inputs] of a rank, rearranged so that a product reads it once,
/// from start to end. It consists of panels of kPanelOutputs outputs. In a panel, leaf follows
/// leaf. In a leaf, 2-byte types are stored in pairs of k
///     [pair][output][2], an odd last k padded with zero,
/// and float32 as [k][output]. Outputs past n are zero rows. Immutable once packed, so threads may
/// share it.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  /// Allocates zeroed panels. leaves: their k ranges are contiguous from 0 to k; there are none if
  /// k is 0. A column-parallel matrix has the one leaf {0, k, 0, 0}. INVALID_ARGUMENT: the leaves
  /// do not cover k, begin at an odd column, or do not fold into contributions 0, 1, ...
  /// RESOURCE_EXHAUSTED: there is not enough memory.
  static Result<PackedMatrix> allocate(Dtype dtype, int n, int k, std::vector<LeafStep> leaves);

  /// Copies rows [row, row + rows) from a row-major source: elements of dtype(), rows row_stride
  /// elements apart, the first k of each used. Rows may be packed in any order, and by several
  /// threads if these work on different panels.
  void pack_rows(int row, int rows, const void* source, int64_t row_stride);

  /// A panel consists of strips of 32 KiB, which are packed one after the other: who reads each of
  /// them at once finds it in the processor's cache. pack_strip() is pack_rows() of one strip.
  int strips() const;
  std::span<const std::byte> strip(int panel_index, int strip_index) const;
  void pack_strip(int strip_index, int row, int rows, const void* source, int64_t row_stride);

  Dtype dtype() const { return dtype_; }
  int n() const { return n_; }
  int k() const { return k_; }
  int panels() const { return (n_ + kPanelOutputs - 1) / kPanelOutputs; }
  const std::vector<LeafStep>& leaves() const { return leaves_; }
  /// Number of planes in a product's result: the contributions of this rank (1 if the matrix is
  /// column-parallel).
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
