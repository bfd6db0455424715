#include "runtime/rank/rank_device.h"

#include "runtime/base/json.h"
#include "runtime/device/module_loader.h"

namespace shoal {
namespace {

constexpr size_t kFactsBytes = size_t{256} << 10;

}  // namespace

Result<std::string> device_versions(const ShoalCudaModule& module) {
  std::string text(kFactsBytes, '\0');
  if (const int32_t error = module.facts(text.data(), text.size()); error != 0) {
    return Status::error(Code::kFailedPrecondition,
                         cat("ask the CUDA driver: ", module.error_text(error)));
  }
  text.resize(text.find('\0'));
  SHOAL_ASSIGN_OR_RETURN(const Json facts, parse_json(text, "the module's facts"));
  SHOAL_ASSIGN_OR_RETURN(const std::optional<int64_t> driver,
                         json_int(facts, "driver_version", "the module's facts"));
  return cat("module ", module.build_id, ", CUDA ", module.cuda_runtime_version, ", driver ",
             driver.value_or(0));
}

Status check_same_versions(const std::vector<std::string>& of_ranks) {
  for (size_t rank = 1; rank < of_ranks.size(); ++rank) {
    if (of_ranks[rank] == of_ranks[0]) continue;
    return Status::error(
        Code::kFailedPrecondition,
        cat("ranks must use the same versions: rank 0 has ", of_ranks[0].substr(0, 200), "; rank ",
            rank, " has ", of_ranks[rank].substr(0, 200),
            "; was the module or the driver replaced while the ranks started?"));
  }
  return {};
}

Result<std::shared_ptr<Device>> open_rank_device(const RankStart& start, const Exchange& exchange) {
  SHOAL_ASSIGN_OR_RETURN(const std::string path, find_cuda_module(start.cuda_module));
  SHOAL_ASSIGN_OR_RETURN(const ShoalCudaModule* const module, load_cuda_module(path));
  SHOAL_ASSIGN_OR_RETURN(std::string mine, device_versions(*module));
  SHOAL_ASSIGN_OR_RETURN(const std::vector<std::string> all, exchange(std::move(mine)));
  SHOAL_RETURN_IF_ERROR(check_same_versions(all));
  const int index = start.rank / start.ranks_per_gpu;
  Result<std::shared_ptr<Device>> device = Device::open(*module, index);
  if (!device.ok()) {
    return device.status().while_doing(cat("rank ", start.rank, " with --ranks-per-gpu ",
                                           start.ranks_per_gpu, " uses GPU ", index));
  }
  return device;
}

}  // namespace shoal
