#include "runtime/worker/device_arithmetic.h"

#include <algorithm>

#include "runtime/base/archive.h"
#include "runtime/base/cat.h"
#include "runtime/device/judged_tiles.h"

namespace shoal {
namespace {

std::string named(const std::vector<RankTensorCores>& ranks, size_t rank) {
  return cat(to_text(ranks[rank].gpu), " of rank ", rank, " (", class_text(ranks[rank]), ")");
}

}  // namespace

std::string class_text(const RankTensorCores& rank) {
  switch (class_of(rank.hashes)) {
    case TensorCoreClass::kSm80:
      return "sm80";
    case TensorCoreClass::kSm90:
      return "sm90";
    case TensorCoreClass::kUnknown:
      break;
  }
  return cat("unknown-", rank.major, ".", rank.minor);
}

std::string classes_text(const std::vector<RankTensorCores>& ranks) {
  std::vector<std::string> classes;
  for (const RankTensorCores& rank : ranks) classes.push_back(class_text(rank));
  std::sort(classes.begin(), classes.end());
  classes.erase(std::unique(classes.begin(), classes.end()), classes.end());
  std::string text;
  for (const std::string& one : classes) text += cat(text.empty() ? "" : "+", one);
  return text;
}

uint64_t group_hash(const std::vector<RankTensorCores>& ranks) {
  uint64_t hash = judged::kEmptyHash;
  for (const RankTensorCores& rank : ranks) {
    for (const uint64_t part : {rank.hashes.bf16, rank.hashes.tf32}) {
      hash = judged::added_to_hash(hash, static_cast<uint32_t>(part));
      hash = judged::added_to_hash(hash, static_cast<uint32_t>(part >> 32));
    }
  }
  return hash;
}

Status check_same_tensor_cores(const std::vector<RankTensorCores>& ranks) {
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    if (ranks[rank].hashes == ranks[0].hashes) continue;
    return Status::error(
               Code::kFailedPrecondition,
               cat("the tensor cores of ", named(ranks, 0), " and ", named(ranks, rank),
                   " gave different results for the same factors, so that answers would depend on "
                   "the rank; choose GPUs of one kind with CUDA_VISIBLE_DEVICES, or accept it with "
                   "--reproducible=off"))
        .blamed_on(Fault::kPolicy);
  }
  return {};
}

Status check_known_tensor_cores(const std::vector<RankTensorCores>& ranks) {
  std::string unknown;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (class_of(ranks[rank].hashes) == TensorCoreClass::kUnknown)
      unknown += cat(unknown.empty() ? "" : ", ", named(ranks, rank));
  }
  if (ranks.size() < 2 || unknown.empty()) return {};
  return Status::error(
             Code::kFailedPrecondition,
             cat("the tensor cores of ", unknown,
                 " sum like those of no class that is known, so that nothing shows that they sum "
                 "alike; use a single GPU, choose others with CUDA_VISIBLE_DEVICES, or accept it "
                 "with --reproducible=off"))
      .blamed_on(Fault::kPolicy);
}

Result<std::vector<RankTensorCores>> compare_tensor_cores(Device& device, RankContext& context) {
  RankTensorCores mine;
  mine.gpu = device.name();
  SHOAL_RETURN_IF_ERROR(device.check(
      device.module().capability(device.index(), &mine.major, &mine.minor), "ask for capability"));
  SHOAL_ASSIGN_OR_RETURN(mine.hashes, hash_tensor_cores(device));
  SHOAL_ASSIGN_OR_RETURN(const std::vector<std::string> parts, context.exchange(encode(mine)));
  std::vector<RankTensorCores> ranks;
  for (const std::string& part : parts) {
    SHOAL_ASSIGN_OR_RETURN(ranks.emplace_back(),
                           decode<RankTensorCores>(part, "a rank's tensor cores"));
  }
  return ranks;
}

}  // namespace shoal
