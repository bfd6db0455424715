#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/dtype.h"
#include "runtime/base/status.h"

namespace shoal {

/// A tensor inside a mapped file. data may be unaligned (the format promises nothing) and is valid
/// while its Checkpoint lives.
struct TensorView {
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
  int64_t elements() const;
  size_t bytes() const { return static_cast<size_t>(elements()) * dtype_bytes(dtype); }
};

/// One tensor of a safetensors header, checked: offsets inside the file, size = shape x dtype.
struct TensorEntry {
  std::string name;
  std::string dtype;  ///< as written: BF16, F16, F32, I64 ...
  std::vector<int64_t> shape;
  uint64_t begin = 0;  ///< from the start of the file
  uint64_t end = 0;
};

/// Parses the header of a file of file_bytes whose first bytes are head (at least 8 and, where the
/// file has them, the whole header). INVALID_ARGUMENT naming the tensor for anything damaged:
/// lengths past the end, overlap, holes are allowed, shapes that overflow, unknown dtypes. Source:
/// the safetensors format description.
Result<std::vector<TensorEntry>> parse_safetensors_header(std::string_view head,
                                                          uint64_t file_bytes,
                                                          std::string_view what);

/// Parses model.safetensors.index.json: tensor name to shard, a plain file name of the same
/// directory. INVALID_ARGUMENT naming the tensor where it is anything else (a path, "..", not a
/// string).
Result<std::map<std::string, std::string>> parse_safetensors_index(std::string_view text,
                                                                   std::string_view what);

/// The tensors of a model directory (model.safetensors, or model.safetensors.index.json and its
/// shards), mapped read-only and shared: pages come in when touched, so each rank reads only what
/// it uses.
class Checkpoint {
 public:
  /// NOT_FOUND: no checkpoint there; INVALID_ARGUMENT: damaged; UNIMPLEMENTED: a tensor the index
  /// names has a dtype other than F32, F16, BF16 (said when asked for it).
  static Result<Checkpoint> open(const std::string& model_dir);
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  bool has(const std::string& name) const;
  /// The tensor, with the shape asked for (-1: any). NOT_FOUND / INVALID_ARGUMENT name tensor,
  /// file, shapes.
  Result<TensorView> tensor(const std::string& name, const std::vector<int64_t>& shape) const;
  std::vector<std::string> names() const;
  uint64_t total_bytes() const;

 private:
  struct Impl;
  Checkpoint();
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal
