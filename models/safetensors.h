#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

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

/// The tensors of a model directory (model.safetensors, or model.safetensors.index.json and its
/// shards), mapped read-only and shared. The kernel loads a page when it is touched, so each rank
/// reads only what it uses.
class Checkpoint {
 public:
  /// NOT_FOUND: the directory has no checkpoint; INVALID_ARGUMENT: damaged. A tensor of a dtype
  /// other than F32, F16 and BF16 is not an error here: tensor() refuses it.
  static Result<Checkpoint> open(const std::string& model_dir);
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

 private:
  struct Impl;
  Checkpoint();
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal
