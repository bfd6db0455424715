#include "runtime/worker/model_work.h"

#include <unistd.h>

#include "runtime/engine/step_plan.h"
#include "runtime/worker/model_runner.h"

namespace shoal {

ModelWork::ModelWork() = default;
ModelWork::~ModelWork() = default;

Result<std::string> ModelWork::begin(RankContext& context) {
  const RankStart& place = context.start();
  SHOAL_ASSIGN_OR_RETURN(const ModelStart start,
                         decode<ModelStart>(place.work, "start of a model's rank"));
  answers_ = place.rank == 0;
  Status unsaid;
  const auto progress = [&](const LoadProgress& done) {
    if (unsaid.ok()) unsaid = context.loaded(done);
  };
  SHOAL_ASSIGN_OR_RETURN(
      runner_, ModelRunner::load(start, {place.rank, place.world_size}, place.cpus, progress));
  SHOAL_RETURN_IF_ERROR(unsaid);
  // The weights are mapped, and the mapping outlives the descriptors.
  for (const CheckpointLayout::File& file : start.checkpoint.files) ::close(file.fd);
  SHOAL_RETURN_IF_ERROR(context.enter(Phase::kTouch));
  SHOAL_RETURN_IF_ERROR(runner_->take_memory(context.communicator()));
  runner_->set_after_part([&context] { return context.moved(); });
  SHOAL_RETURN_IF_ERROR(context.enter(Phase::kWarmUp));
  SHOAL_RETURN_IF_ERROR(runner_->warm_up());
  return encode(ModelReady{runner_->kernels_name(), runner_->weight_bytes(), runner_->kv_bytes()});
}

Result<std::string> ModelWork::step(uint64_t, std::string_view bytes) {
  SHOAL_ASSIGN_OR_RETURN(const StepPlan plan, decode<StepPlan>(bytes, "step plan"));
  SHOAL_ASSIGN_OR_RETURN(const StepResult result, runner_->run(plan));
  return answers_ ? encode(result) : std::string();
}

}  // namespace shoal
