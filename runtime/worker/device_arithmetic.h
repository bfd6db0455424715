#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/device/tensor_core_class.h"
#include "runtime/rank/rank_work.h"

namespace shoal {

/// A rank's device, as its tensor cores show it.
struct RankTensorCores {
  GpuName gpu;
  int32_t major = 0, minor = 0;
  TensorCoreHashes hashes;
};
template <typename Archive>
void fields(Archive& archive, RankTensorCores& r) {
  archive(r.gpu, r.major, r.minor, r.hashes);
}

/// "sm80" or "sm90", whatever the device's capability is; "unknown-12.1", with the capability, if
/// the results are those of no class.
std::string class_text(const RankTensorCores& rank);

/// The classes of a group, "sm90"; "sm80+sm90" if they differ.
std::string classes_text(const std::vector<RankTensorCores>& ranks);

/// One number for what all ranks' tensor cores give.
uint64_t group_hash(const std::vector<RankTensorCores>& ranks);

/// FAILED_PRECONDITION, naming the first rank whose tensor cores give other results than rank 0's.
/// It is a matter of policy (--reproducible), and no transport helps.
Status check_same_tensor_cores(const std::vector<RankTensorCores>& ranks);

/// FAILED_PRECONDITION, likewise a matter of policy, naming all devices of a group of several ranks
/// whose results are those of no class. That they are equal for a few factors does not show that
/// they always are. A device alone may be of any class.
Status check_known_tensor_cores(const std::vector<RankTensorCores>& ranks);

/// Multiplies the judged tiles on this rank's device, and lets all ranks see the results. Returns
/// those of all ranks, in rank order. Errors: those of multiply_judged_tiles().
Result<std::vector<RankTensorCores>> compare_tensor_cores(Device& device, RankContext& context);

}  // namespace shoal
