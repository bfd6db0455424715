#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/held_file.h"
#include "models/safetensors_header.h"
#include "runtime/base/dtype.h"
#include "runtime/base/status.h"

namespace shoal {

/// A tensor inside a mapped file. data may be unaligned, because the format promises no alignment.
/// It is valid as long as its Checkpoint lives.
struct TensorView {
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
  int64_t elements() const;
  size_t bytes() const { return static_cast<size_t>(elements()) * dtype_bytes(dtype); }
};

/// Where the tensors of an open checkpoint are, so that another process that has inherited its
/// descriptors can map the same files without looking at a path or at a header again.
struct CheckpointLayout {
  struct File {
    std::string path;  ///< names the file in messages
    int32_t fd = -1;
    uint64_t bytes = 0;  ///< when it was opened
  };
  struct Tensor {
    TensorEntry entry;
    uint32_t file = 0;
  };
  std::vector<File> files;
  std::vector<Tensor> tensors;
};
template <typename Archive>
void fields(Archive& archive, CheckpointLayout::File& f) {
  archive(f.path, f.fd, f.bytes);
}
template <typename Archive>
void fields(Archive& archive, CheckpointLayout::Tensor& t) {
  archive(t.entry.name, t.entry.dtype, t.entry.shape, t.entry.begin, t.entry.end, t.file);
}
template <typename Archive>
void fields(Archive& archive, CheckpointLayout& l) {
  archive(l.files, l.tensors);
}

using HeldFiles = std::vector<std::shared_ptr<HeldFile>>;

/// The tensors of a model directory (model.safetensors, or model.safetensors.index.json and its
/// shards), mapped read-only and shared. The kernel loads a page when it is touched, so each rank
/// reads only what it uses.
class Checkpoint {
 public:
  /// NOT_FOUND: the directory has no checkpoint; UNIMPLEMENTED: it has a pickled one;
  /// INVALID_ARGUMENT: damaged. A tensor of a dtype other than F32, F16 and BF16 is not an error
  /// here: tensor() refuses it. opened: gets each file that was opened, also if one of them is
  /// damaged.
  static Result<Checkpoint> open(const std::string& model_dir, HeldFiles* opened = nullptr);

  /// Maps the files of a checkpoint that was opened elsewhere. The descriptors are only read, and
  /// may be closed afterwards. DATA_LOSS, with the file: its size has changed since it was opened.
  /// INTERNAL: the layout is not one of an open checkpoint.
  static Result<Checkpoint> map(const CheckpointLayout& layout);
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  bool has(const std::string& name) const;
  /// Returns the tensor if it has the given shape (-1: any size). NOT_FOUND: no such tensor;
  /// INVALID_ARGUMENT: another shape; UNIMPLEMENTED: an unsupported dtype. The message names
  /// tensor, file and shapes.
  Result<TensorView> tensor(const std::string& name, const std::vector<int64_t>& shape) const;
  std::vector<std::string> names() const;
  uint64_t total_bytes() const;

  /// For map(), in a process that inherits the descriptors of files(). After open() only.
  CheckpointLayout layout() const;
  /// The files that open() holds open, for as long as anybody has this list.
  HeldFiles files() const;

 private:
  struct Impl;
  Checkpoint();
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal
