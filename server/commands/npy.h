#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "runtime/base/fd.h"
#include "runtime/base/status.h"

namespace shoal {

/// Writes one float32 matrix, row by row, in NumPy's format version 1.0 (numpy.lib.format). Open it
/// before computing the matrix, so that a bad path is reported at once. A file that this object
/// created and did not finish is removed.
class NpyWriter {
 public:
  /// Error: INVALID_ARGUMENT with errno if the path cannot be opened for writing. An existing file
  /// keeps its content until begin().
  static Result<NpyWriter> open(const std::string& path);
  NpyWriter(NpyWriter&& other) noexcept;
  NpyWriter& operator=(NpyWriter&&) = delete;
  ~NpyWriter();

  /// Empties the file and writes the header of a C-order matrix [rows, columns].
  Status begin(int64_t rows, int64_t columns);
  /// Appends the next values, in portions of any size. Error: DATA_LOSS with errno if the disk is
  /// full or the reader is gone.
  Status append(std::span<const float> values);
  /// Closes the file. Error: INTERNAL unless exactly rows x columns values have been appended.
  Status finish();

 private:
  NpyWriter(std::string path, Fd fd, bool created);
  std::string path_;
  Fd fd_;
  bool created_ = false;   // true: we created the file, so we may remove it
  int64_t remaining_ = 0;  // values that are still to come
};

}  // namespace shoal
