#include "runtime/rank/rank_device.h"

#include "runtime/base/counted.h"
#include "runtime/base/json.h"
#include "runtime/device/module_loader.h"

namespace shoal {
namespace {

constexpr size_t kFactsBytes = size_t{256} << 10;
constexpr char kWhat[] = "the module's facts";

Result<Json> facts_of(const ShoalCudaModule& module) {
  std::string text(kFactsBytes, '\0');
  if (const int32_t error = module.facts(text.data(), text.size()); error != 0) {
    return Status::error(Code::kFailedPrecondition,
                         cat("ask the CUDA driver: ", module.error_text(error)));
  }
  text.resize(text.find('\0'));
  return parse_json(text, kWhat);
}

/// The device that was chosen for this rank when the group was started first.
GpuName chosen_gpu(const RankStart& start) {
  const int index = start.rank / start.ranks_per_gpu;
  const auto at = static_cast<size_t>(index);
  return at < start.gpus.size() ? start.gpus[at] : GpuName{index};
}

/// The same device with the number that CUDA gives it now. Without a UUID the number is all that is
/// known. FAILED_PRECONDITION: it is gone.
Result<GpuName> find_gpu(const ShoalCudaModule& module, GpuName gpu) {
  if (gpu.uuid.empty()) return gpu;
  SHOAL_ASSIGN_OR_RETURN(const Json facts, facts_of(module));
  const auto devices = facts.find("devices");
  int32_t number = 0;
  for (const Json& device : devices == facts.end() ? Json::array() : *devices) {
    SHOAL_ASSIGN_OR_RETURN(const auto uuid, json_string(device, "uuid", kWhat));
    if (uuid == gpu.uuid) return GpuName{number, std::move(gpu.uuid), std::move(gpu.name)};
    ++number;
  }
  return Status::error(
      Code::kFailedPrecondition,
      cat(to_text(gpu), " is gone: CUDA shows ", counted(number, "GPU"),
          " now, and none has its UUID; dmesg may say more (Xid). If CUDA_VISIBLE_DEVICES has "
          "numbers, another GPU may have its number now, so name GPUs by their UUIDs there"));
}

/// The error for a device that this rank lacks. If the group has run before, its ranks have had
/// this device. It may come back then, so the lack counts as a shortage.
Status lack_of(const GpuName& gpu, const RankStart& start, const Status& why) {
  const Status lack = why.while_doing(cat("rank ", start.rank, " with --ranks-per-gpu ",
                                          start.ranks_per_gpu, " uses ", to_text(gpu)));
  return start.has_run ? lack.blamed_on(Fault::kShortage) : lack;
}

}  // namespace

Result<std::string> device_versions(const ShoalCudaModule& module) {
  SHOAL_ASSIGN_OR_RETURN(const Json facts, facts_of(module));
  SHOAL_ASSIGN_OR_RETURN(const std::optional<int64_t> driver,
                         json_int(facts, "driver_version", kWhat));
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
  const GpuName chosen = chosen_gpu(start);
  Result<std::string> mine = device_versions(*module);
  if (!mine.ok()) return lack_of(chosen, start, mine.status());
  SHOAL_ASSIGN_OR_RETURN(const std::vector<std::string> all, exchange(std::move(mine).value()));
  SHOAL_RETURN_IF_ERROR(check_same_versions(all));
  Result<GpuName> now = find_gpu(*module, chosen);
  if (!now.ok()) return lack_of(chosen, start, now.status());
  Result<std::shared_ptr<Device>> device = Device::open(*module, std::move(now).value());
  if (!device.ok()) return lack_of(chosen, start, device.status());
  return device;
}

}  // namespace shoal
