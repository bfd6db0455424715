#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"

namespace shoal {

/// One tensor of a safetensors header, already checked: its offsets are inside the file, and its
/// size is shape x dtype.
struct TensorEntry {
  std::string name;
  std::string dtype;  ///< as written: BF16, F16, F32, I64 ...
  std::vector<int64_t> shape;
  uint64_t begin = 0;  ///< from the start of the file
  uint64_t end = 0;
};

/// Parses the header of a file. head holds the first bytes of the file: at least 8 and, if the file
/// is long enough, the whole header. The file has file_bytes in all. INVALID_ARGUMENT naming the
/// tensor for anything damaged: lengths past the end, overlapping tensors, shapes that overflow,
/// unknown dtypes. Holes between tensors are allowed. Source: the safetensors format description.
Result<std::vector<TensorEntry>> parse_safetensors_header(std::string_view head,
                                                          uint64_t file_bytes,
                                                          std::string_view what);

/// How many bytes of a file parse_safetensors_header() needs, from the first 8 of them.
inline constexpr uint64_t kSafetensorsLengthBytes = 8;
uint64_t safetensors_head_bytes(std::string_view first);

/// Parses model.safetensors.index.json, which maps each tensor name to its shard, a plain file name
/// in the same directory. INVALID_ARGUMENT naming the tensor if the shard is anything else (a path,
/// "..", not a string).
Result<std::map<std::string, std::string>> parse_safetensors_index(std::string_view text,
                                                                   std::string_view what);

}  // namespace shoal
