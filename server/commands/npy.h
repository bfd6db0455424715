#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "runtime/base/fd.h"
#include "runtime/base/status.h"

namespace shoal {

/// Writes one float32 matrix, row by row, as NumPy's format version 1.0 (numpy.lib.format). Opened
/// before the work whose result it holds, so that a bad path is known at once; a file that this
/// made and did not finish is removed.
class NpyWriter {
 public:
  /// INVALID_ARGUMENT with errno: the path cannot be opened for writing. What is there stays as it
  /// is until begin().
  static Result<NpyWriter> open(const std::string& path);
  NpyWriter(NpyWriter&& other) noexcept;
  NpyWriter& operator=(NpyWriter&&) = delete;
  ~NpyWriter();

  /// Empties the file and writes the header of a C-order matrix [rows, columns].
  Status begin(int64_t rows, int64_t columns);
  /// The next values, in any portions. DATA_LOSS with errno: the disk is full, the reader is gone.
  Status append(std::span<const float> values);
  /// Closes the file. INTERNAL unless exactly rows x columns values have been appended.
  Status finish();

 private:
  NpyWriter(std::string path, Fd fd, bool created);
  std::string path_;
  Fd fd_;
  bool created_ = false;   // by us: ours to remove
  int64_t remaining_ = 0;  // values
};

}  // namespace shoal
