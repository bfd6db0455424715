#include "server/host/device_choice.h"

#include <algorithm>

#include "runtime/base/log.h"
#include "runtime/device/cublas_api.h"
#include "runtime/device/module_loader.h"
#include "runtime/supervisor/gpu_probe.h"
#include "runtime/transport/nccl_bug_report.h"
#include "runtime/transport/rungs/gpu_checks.h"
#include "runtime/transport/rungs/nccl_rungs.h"
#include "runtime/transport/rungs/rung.h"

namespace shoal {
namespace {

/// The time that devices have to answer. Creating contexts on eight of them takes some seconds.
constexpr double kGpuSeconds = 20;

void take(DeviceKind kind, TransportFlags* flags) {
  flags->device.kind = kind;
  flags->order.clear();
  for (const Rung& rung : rungs(kind)) flags->order.emplace_back(rung.name);
}

void probe(const TransportFlags& flags, int world_size, GpuFacts* gpu) {
  const DeviceFlags& device = flags.device;
  std::vector<std::string> cublas;
  if (!device.reproducible)
    cublas =
        device.cublas_library.empty() ? cublas_library_names() : std::vector{device.cublas_library};
  probe_gpus({.cuda_module = device.cuda_module,
              .nccl_library = device.nccl_library,
              .cublas_libraries = std::move(cublas),
              .ranks = world_size,
              .ranks_per_gpu = device.ranks_per_gpu,
              .deadline_s = std::min(kGpuSeconds, flags.startup_timeout_s / 4)},
             gpu);
}

/// A library that was found and will not be used is a reason for slower ranks that somebody can
/// cure.
void warn_of_refused_nccl(const TransportFlags& flags, const GpuFacts& gpu) {
  const bool wanted =
      std::any_of(flags.order.begin(), flags.order.end(),
                  [](const std::string& rung) { return !nccl_rung_transport(rung).empty(); });
  const std::string why = why_nccl_is_refused(gpu.nccl_version, gpu.nccl_path);
  if (wanted && !why.empty()) log_warning(why);
}

void warn_of_refused_cublas(const DeviceFlags& device, const GpuFacts& gpu) {
  if (!device.reproducible && !gpu.cublas_error.empty())
    log_warning(cat("own kernels compute every product, because ", gpu.cublas_error));
}

}  // namespace

Status check_for_model(const DeviceFlags& device, const GpuFacts& gpu) {
  SHOAL_RETURN_IF_ERROR(check_devices(gpu));
  return device.reproducible ? check_same_arithmetic(gpu) : Status();
}

void stay_on_cpu(std::string_view why, TransportFlags* flags) {
  log_info(cat("--device auto: the CPU, because ", why));
  take(DeviceKind::kCpu, flags);
}

void choose_device(TransportFlags* flags, int world_size, GpuFacts* gpu) {
  const DeviceFlags& device = flags->device;
  if (device.kind == DeviceKind::kCuda) {
    probe(*flags, world_size, gpu);
    warn_of_refused_cublas(device, *gpu);
    return warn_of_refused_nccl(*flags, *gpu);
  }
  if (!device.automatic || !find_cuda_module(device.cuda_module).ok()) return;
  // If a module is named, it is tried even if no driver was found.
  if (device.cuda_module.empty() && gpu->count == 0 && gpu->driver_version.empty()) return;
  probe(*flags, world_size, gpu);
  if (const Status refused = check_for_model(device, *gpu); !refused.ok())
    return stay_on_cpu(refused.message(), flags);
  take(DeviceKind::kCuda, flags);
  warn_of_refused_cublas(device, *gpu);
  warn_of_refused_nccl(*flags, *gpu);
}

}  // namespace shoal
