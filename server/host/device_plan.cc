#include "server/host/device_plan.h"

#include "models/device_limits.h"
#include "runtime/base/counted.h"
#include "runtime/base/log.h"
#include "runtime/base/reduce_tree.h"
#include "server/host/device_choice.h"
#include "server/host/host_resources.h"

namespace shoal {
namespace {

void choose_device_for(const ModelFiles& model, const GpuFacts& gpu, EngineFlags* flags) {
  TransportFlags* const transport = &flags->transport;
  if (!transport->device.automatic || transport->device.kind != DeviceKind::kCuda) return;
  const int most = leaf_count(model.config.num_attention_heads, DeviceKind::kCuda);
  Status refused = check_device_model(model.config);
  if (refused.ok() && flags->tensor_parallel_size > most) {
    refused = Status::error(Code::kInvalidArgument,
                            cat("this model has at most ", counted(most, "rank"), " on GPUs"));
  }
  if (!refused.ok()) return stay_on_cpu(refused.message(), transport);
  log_info(cat("--device auto: ", gpu.devices.front().name, ", compute capability ",
               gpu.devices.front().compute_capability));
}

}  // namespace

Result<EnginePlan> plan_on_device(EngineFlags* flags, const ModelFiles& model,
                                  const GpuFacts& gpu) {
  choose_device_for(model, gpu, flags);
  const DeviceFlags& device = flags->transport.device;
  HostResources host = host_resources(gpu);
  // Whoever asks for devices gets what the ranks find there at that time, or an error with those
  // numbers.
  if (!device.automatic) {
    for (DevicePart& part : host.devices) part.taken_bytes = 0;
  }
  Result<EnginePlan> plan = plan_engine(*flags, model, host);
  if (plan.ok() || !device.automatic || device.kind != DeviceKind::kCuda) return plan;
  stay_on_cpu(plan.status().message(), &flags->transport);
  return plan_engine(*flags, model, host);
}

}  // namespace shoal
