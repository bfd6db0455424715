#include "server/host/transport_setup.h"

#include <algorithm>

#include "runtime/base/log.h"
#include "runtime/base/quantity.h"
#include "runtime/device/module_loader.h"
#include "runtime/transport/facts/call_filter.h"
#include "runtime/transport/facts/cgroup_facts.h"
#include "runtime/transport/facts/fact_names.h"
#include "runtime/transport/rungs/gpu_checks.h"
#include "runtime/transport/rungs/nccl_rungs.h"
#include "runtime/transport/rungs/rung.h"
#include "runtime/transport/self_test.h"
#include "server/cli/command_io.h"
#include "server/host/device_choice.h"
#include "server/host/start_log.h"

namespace shoal {
namespace {

constexpr const char* kShmDir = "/dev/shm";
/// The memory that the ranks' processes use before they have loaded anything: their own and the
/// self-test's. A process takes 2.3 MiB with a pool of slots, and 4.0 MiB over tcp, which holds a
/// part of a message.
int64_t ranks_bytes(int world_size) {
  constexpr int64_t kProcessBytes = int64_t{17} << 18;  // 4.25 MiB
  return world_size * (kProcessBytes + self_test_bytes(world_size));
}

/// What the order leaves out. Without --transport the ladder goes down to --min-transport, and no
/// step with --on-shm-shortage=fail.
void set_left_out(const TransportFlags& flags, LadderOptions* options) {
  if (!flags.transport) return;
  bool allowed = flags.degrade_on_shm_shortage;
  for (const Rung& rung : rungs(flags.device.kind)) {
    if (std::find(flags.order.begin(), flags.order.end(), rung.name) == flags.order.end()) {
      options->order_by = cat("--transport ", *flags.transport);
      if (allowed) options->left_out.emplace_back(rung.name);
    }
    if (rung.name == flags.min_transport) allowed = false;
  }
}

}  // namespace

SweepResult clean_stale() {
  Result<SweepResult> swept = remove_stale(kShmDir, is_known_nccl_file);
  if (swept.ok()) return std::move(swept).value();
  log_warning(cat("--clean-stale: ", explained(swept.status())));
  return {};
}

std::vector<std::string> sweep_lines(const SweepResult& swept) {
  const auto line = [](const char* done, const LeftFile& file) {
    return cat(done, " ", file.path, ", ", bytes_text(file.bytes));
  };
  std::vector<std::string> lines;
  for (const LeftFile& file : swept.removed) lines.push_back(line("removed", file));
  for (const LeftFile& file : swept.kept) {
    const bool unknown = file.state == LeftFileState::kUnknown;
    lines.push_back(
        cat(line("kept", file), ": ", unknown ? "it may be somebody's own" : to_text(file.state)));
  }
  return lines;
}

Result<HostFacts> facts_for(TransportFlags* flags, int world_size) {
  SHOAL_RETURN_IF_ERROR(check_call_filter());
  if (flags->clean_stale) {
    for (const std::string& line : sweep_lines(clean_stale()))
      say_done("", cat("--clean-stale: ", line));
  }
  FactsRequest request;
  request.is_nccl_size = is_known_nccl_file;
  if (world_size > 1) {
    request.probe_bytes = find_rung(flags->order.front())->need(world_size).dev_shm_bytes();
  } else {
    request.probe_cma = false;
  }
  HostFacts facts = gather_host_facts(request);
  // One rank takes no page of a tmpfs, so that the kernel drops all of the page cache before it
  // kills.
  if (world_size == 1) count_page_cache_in_full({}, &facts.cgroup);
  if (!facts.proc_mounted)
    log_warning("/proc is not mounted: limits of memory and processes of a container are not seen");
  choose_device(flags, world_size, &facts.gpu);
  return facts;
}

void set_device(const DeviceFlags& flags, const GpuFacts& gpu, RankStart* start) {
  start->device = flags.kind;
  start->ranks_per_gpu = flags.ranks_per_gpu;
  start->cuda_module = flags.cuda_module;
  // Found here, because a rank is not started by the path of the program.
  if (flags.kind == DeviceKind::kCuda) {
    start->gpus = group_gpus(gpu);
    if (Result<std::string> module = find_cuda_module(flags.cuda_module); module.ok())
      start->cuda_module = std::move(module).value();
  }
  start->nccl_library = flags.nccl_library;
  start->reproducible = flags.reproducible;
  if (flags.kind != DeviceKind::kCuda) return;
  const std::string devices = devices_to_compile_for(gpu);
  start->compiles_kernels = !devices.empty();
  if (devices.empty()) return;
  log_warning(cat("the CUDA module has no machine code for ", devices,
                  ", so the driver compiles the kernels, which takes minutes the first time; "
                  "compile the module for this GPU (CMAKE_CUDA_ARCHITECTURES), or wait"));
}

LadderOptions ladder_options(const TransportFlags& flags, int world_size, int64_t reserved_bytes) {
  LadderOptions options;
  options.order = flags.order;
  set_left_out(flags, &options);
  options.degrade_on_shm_shortage = flags.degrade_on_shm_shortage;
  options.min_transport = flags.min_transport;
  options.budget = {static_cast<int64_t>(flags.shm_headroom_bytes),
                    reserved_bytes + ranks_bytes(world_size)};
  options.reproducible = flags.device.reproducible;
  if (flags.device.kind == DeviceKind::kCuda) options.nccl = read_nccl_user_settings();
  options.names = {"--on-shm-shortage=fail",
                   "--min-transport",
                   "--startup-timeout",
                   "--max-restarts",
                   reserved_bytes > 0 ? "the model" : "the ranks",
                   "shoal doctor MODEL, with the same flags, prints a remedy to paste"};
  options.on_phase = log_phase;
  options.on_verified = log_verified;
  options.on_refused = log_refused;
  return options;
}

}  // namespace shoal
