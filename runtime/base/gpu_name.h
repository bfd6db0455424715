#pragma once
#include <cstdint>
#include <string>

namespace shoal {

/// One GPU as messages name it. CUDA's numbers shift when a GPU is lost; its UUID stays.
struct GpuName {
  int32_t number = 0;     ///< CUDA's, at the time of the look at the devices that has found it
  std::string uuid = {};  ///< "GPU-..."; empty: nobody has asked
  std::string name = {};  ///< "NVIDIA H100 80GB HBM3"
};
template <typename Archive>
void fields(Archive& archive, GpuName& m) {
  archive(m.number, m.uuid, m.name);
}

/// "GPU 0 (GPU-8f0c..., NVIDIA H100 80GB HBM3)", without what is not known.
std::string to_text(const GpuName& gpu);

/// Whether both are one GPU: by their UUIDs, because CUDA's numbers are those of one process. By
/// the numbers if nobody has asked for a UUID.
bool is_same_gpu(const GpuName& a, const GpuName& b);

}  // namespace shoal
