#include "runtime/worker/model_work.h"

#include <unistd.h>

#include "runtime/base/counted.h"
#include "runtime/base/quantity.h"
#include "runtime/engine/step_plan.h"
#include "runtime/worker/arithmetic.h"
#include "runtime/worker/model_runner.h"
#include "runtime/worker/test_kernels.h"

namespace shoal {
namespace {

/// Says whose fault a failure on a device is, as far as the front must know it to start the group
/// again.
Status blame_device(const Status& status, bool has_run) {
  if (status.fault() != Fault::kOwn) return status;
  // Memory that the device had when the group last ran may come back, for example once the driver
  // has cleared up after the rank that died.
  if (has_run && status.code() == Code::kResourceExhausted)
    return status.blamed_on(Fault::kShortage);
  // A library that was exchanged meanwhile, for example: nobody can go on with the same bits.
  if (has_run && status.code() == Code::kFailedPrecondition)
    return status.because_of(Code::kAborted, "the group cannot go on as it was")
        .blamed_on(Fault::kPolicy);
  if (status.code() != Code::kInternal) return status;
  // A CUDA error stays with its process, and any later call may be the one that notices it. So it
  // is like the rank's death: a new process may find the device well again.
  return status
      .because_of(Code::kAborted, "the GPU has failed; the kernel's log (dmesg, Xid) may say why")
      .blamed_on(Fault::kDeath);
}

/// Whether what the lost rank had of the device is free again. Asked before the weights are read,
/// because the driver may take a while to clear up after a process.
Status check_room(const Device& device, int64_t needed_bytes) {
  SHOAL_ASSIGN_OR_RETURN(const Device::Room room, device.memory_info());
  if (room.free_bytes >= static_cast<uint64_t>(needed_bytes)) return {};
  return Status::error(
      Code::kResourceExhausted,
      cat(device.text(), " has ", bytes_text(static_cast<int64_t>(room.free_bytes)), " free of ",
          bytes_text(static_cast<int64_t>(room.total_bytes)),
          ", and the rank that was lost had at least ", bytes_text(needed_bytes),
          " of it: they are not free yet, or others have taken them (nvidia-smi lists who)"));
}

}  // namespace

Status check_alike(const std::vector<ModelReady>& ranks) {
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    if (ranks[rank].kv_blocks == ranks[0].kv_blocks) continue;
    return Status::error(Code::kInternal,
                         cat("rank ", rank, " has ", counted(ranks[rank].kv_blocks, "block"),
                             " of KV cache, and rank 0 has ", ranks[0].kv_blocks));
  }
  return {};
}

ModelWork::ModelWork() = default;
ModelWork::~ModelWork() = default;

Result<std::string> ModelWork::begin(RankContext& context) {
  Result<std::string> ready = begin_model(context);
  if (!ready.ok() && on_device_) return blame_device(ready.status(), context.start().has_run);
  return ready;
}

Result<std::string> ModelWork::begin_model(RankContext& context) {
  const RankStart& place = context.start();
  SHOAL_ASSIGN_OR_RETURN(const ModelStart start,
                         decode<ModelStart>(place.work, "start of a model's rank"));
  answers_ = place.rank == 0;
  on_device_ = start.device == DeviceKind::kCuda;
  SHOAL_ASSIGN_OR_RETURN(const KernelTable* kernels, kernels_of_rank(start.kernels, place));
  // Before the weights, because it takes milliseconds and they take minutes.
  SHOAL_RETURN_IF_ERROR(check_arithmetic(*kernels, context));
  SHOAL_ASSIGN_OR_RETURN(const std::vector<RankTensorCores> devices, check_device(start, context));
  Status unsaid;
  const auto progress = [&](const LoadProgress& done) {
    if (unsaid.ok()) unsaid = context.loaded(done);
  };
  const ModelRunner::RankPlace mine{.world = {place.rank, place.world_size},
                                    .cpus = place.cpus,
                                    .device = context.device(),
                                    .collective_timeout_ms = place.collective_timeout_ms};
  SHOAL_ASSIGN_OR_RETURN(runner_, ModelRunner::load(start, *kernels, mine, progress));
  SHOAL_RETURN_IF_ERROR(unsaid);
  // The weights are mapped, and the mapping outlives the descriptors.
  for (const CheckpointLayout::File& file : start.checkpoint.files) ::close(file.fd);
  SHOAL_RETURN_IF_ERROR(context.enter(Phase::kTouch));
  SHOAL_RETURN_IF_ERROR(runner_->take_memory(context.communicator()));
  runner_->set_signs({.moved = [&] { return context.moved(); },
                      .waits = [&](const auto&... said) { return context.waits(said...); }});
  SHOAL_RETURN_IF_ERROR(context.enter(Phase::kWarmUp));
  SHOAL_RETURN_IF_ERROR(runner_->warm_up());
  SHOAL_ASSIGN_OR_RETURN(const std::optional<KvRoom> room, settle_kv_cache(start, context));
  ModelReady ready{.kernels = kernels->name,
                   .arithmetic = expected_fingerprint().text(),
                   .weight_bytes = runner_->weight_bytes(),
                   .kv_bytes = runner_->kv_bytes(),
                   .kv_blocks = runner_->kv_blocks(),
                   .weight_sum = runner_->weight_sum(),
                   .room = room};
  if (on_device_) name_device(devices, place.reproducible, start.library, &ready);
  return encode(ready);
}

void ModelWork::name_device(const std::vector<RankTensorCores>& devices, bool reproducible,
                            const ProductLibrary& library, ModelReady* ready) const {
  ready->kernels = "cuda";
  ready->arithmetic = cat("cuda-", classes_text(devices), "-", runner_->leaves(),
                          reproducible ? "" : "-off", library.text());
  ready->tensor_cores = group_hash(devices);
}

/// The tensor cores of all ranks, if they are fit for a group and for the streams that it goes on
/// with. None on CPUs.
Result<std::vector<RankTensorCores>> ModelWork::check_device(const ModelStart& start,
                                                             RankContext& context) {
  if (!on_device_) return std::vector<RankTensorCores>();
  const bool has_run = context.start().has_run;
  if (has_run) SHOAL_RETURN_IF_ERROR(check_room(*context.device(), start.least_device_bytes));
  SHOAL_ASSIGN_OR_RETURN(const std::vector<RankTensorCores> ranks,
                         compare_tensor_cores(*context.device(), context));
  if (context.start().reproducible) SHOAL_RETURN_IF_ERROR(check_same_tensor_cores(ranks));
  if (has_run && start.tensor_cores != group_hash(ranks)) {
    return Status::error(Code::kAborted,
                         cat("the tensor cores of the GPUs are now of class ", classes_text(ranks),
                             ", and give other results than when the ranks last ran, so that open "
                             "streams cannot go on"))
        .blamed_on(Fault::kPolicy);
  }
  if (context.start().reproducible) SHOAL_RETURN_IF_ERROR(check_known_tensor_cores(ranks));
  return ranks;
}

/// Takes the whole KV cache, after all ranks have taken all other memory. Its size is the largest
/// for which every rank has room. Returns the room that this rank has found on its device, or
/// nullopt if the rank has no device.
Result<std::optional<KvRoom>> ModelWork::settle_kv_cache(const ModelStart& start,
                                                         RankContext& context) {
  SHOAL_ASSIGN_OR_RETURN(const std::optional<KvRoom> mine, runner_->kv_room());
  if (!mine) return mine;
  SHOAL_ASSIGN_OR_RETURN(const std::vector<std::string> parts, context.exchange(encode(*mine)));
  std::vector<KvRoom> rooms;
  for (const std::string& part : parts) {
    SHOAL_ASSIGN_OR_RETURN(rooms.emplace_back(), decode<KvRoom>(part, "a rank's room"));
  }
  SHOAL_ASSIGN_OR_RETURN(const int32_t blocks,
                         kv_blocks_that_fit(rooms, {start.limits.kv_blocks, start.least_kv_blocks,
                                                    start.device_memory_share}));
  SHOAL_RETURN_IF_ERROR(runner_->take_kv_cache(blocks));
  return mine;
}

Result<std::string> ModelWork::step(uint64_t, std::string_view bytes) {
  SHOAL_ASSIGN_OR_RETURN(const StepPlan plan, decode<StepPlan>(bytes, "step plan"));
  const Result<StepResult> result = runner_->run(plan);
  if (!result.ok()) return on_device_ ? blame_device(result.status(), true) : result.status();
  return answers_ ? encode(*result) : std::string();
}

}  // namespace shoal
