#include "server/commands/nccl_plan.h"

#include "runtime/comm/device/nccl_api.h"
#include "runtime/transport/nccl_report.h"
#include "runtime/transport/remedy.h"
#include "runtime/transport/rungs/nccl_rungs.h"
#include "runtime/transport/rungs/rung.h"
#include "server/cli/command_io.h"
#include "server/cli/exit_code.h"
#include "server/host/engine_host.h"

namespace shoal {
namespace {

constexpr int kDoesNotFit = 1;
constexpr const char* kDecides = "nccl-shm";

/// The result for one rung.
struct Line {
  ShmNeed need;
  NcclUse use;
  Status fits;  ///< checks the budget and the user's settings, but not whether there are devices
};

struct Plan {
  std::string version;
  RungContext context;
  std::vector<Line> lines;
  std::vector<Remedy> remedies;  ///< what would make nccl-shm fit
  bool fits = false;             ///< whether nccl-shm fits
};

Status judge(const Rung& rung, const RungContext& context, const ShmNeed& need) {
  SHOAL_RETURN_IF_ERROR(context.user.error);
  SHOAL_RETURN_IF_ERROR(check_essential(rung.name, rung.environment(context, 0), context.user));
  return check_budget(need, context.facts, context.budget);
}

Plan make_plan(const DoctorFlags& flags) {
  TransportFlags flags_of_place = flags.transport;
  // Do not query devices, whichever this machine has.
  flags_of_place.device.kind = DeviceKind::kCpu;
  const LadderOptions options = ladder_options(flags.transport, flags.tensor_parallel_size, 0);
  Plan plan{nccl_version_text(flags.nccl_version->code()),
            RungContext(flags.tensor_parallel_size,
                        facts_for(flags_of_place, flags.tensor_parallel_size)),
            {},
            {},
            false};
  RungContext& context = plan.context;
  context.facts.gpu.nccl_version = flags.nccl_version->code();
  context.facts.gpu.ranks_per_gpu = flags.transport.device.ranks_per_gpu;
  context.user = read_nccl_user_settings();
  context.reproducible = flags.transport.device.reproducible;
  context.budget = options.budget;
  std::vector<Shortage> shortages;
  for (const Rung& rung : rungs(DeviceKind::kCuda)) {
    if (nccl_rung_transport(rung.name).empty()) continue;
    const ShmNeed need = rung.need(context);
    Line line{need, plan_nccl_use(rung.name, context), judge(rung, context, need)};
    if (std::string_view(rung.name) == kDecides) {
      plan.fits = line.fits.ok();
      if (!plan.fits)
        shortages.push_back(
            {need, line.fits, context.budget.headroom_bytes, context.budget.reserved_bytes});
    }
    plan.lines.push_back(std::move(line));
  }
  plan.remedies = remedies(context.facts, shortages);
  return plan;
}

Json consumers_json(const Line& line) {
  Json consumers = Json::array();
  for (const auto* list : {&line.need.dev_shm, &line.need.memory}) {
    for (const Consumer& one : *list) {
      consumers.push_back({{"what", one.what},
                           {"bytes", one.bytes},
                           {"files", one.inodes},
                           {"in_dev_shm", list == &line.need.dev_shm}});
    }
  }
  return consumers;
}

Json plan_json(const Plan& plan) {
  Json lines = Json::array(), remedies = Json::array();
  for (const Line& line : plan.lines) {
    lines.push_back({{"rung", line.need.rung},
                     {"dev_shm_bytes", line.need.dev_shm_bytes()},
                     {"memory_bytes", line.need.memory_bytes()},
                     {"fits", line.fits.ok()},
                     {"reason", line.fits.ok() ? "" : line.fits.to_string(700)},
                     {"consumers", consumers_json(line)},
                     {"nccl", to_json(line.use)}});
  }
  for (const Remedy& one : plan.remedies)
    remedies.push_back({{"kind", one.kind}, {"title", one.title}, {"text", one.text}});
  const ShmDirFacts& dir = plan.context.facts.dev_shm;
  return {{"nccl_version", plan.version},
          {"tp", plan.context.world_size},
          {"dev_shm",
           {{"path", dir.path}, {"size_bytes", dir.size_bytes}, {"free_bytes", dir.free_bytes}}},
          {"headroom_bytes", plan.context.budget.headroom_bytes},
          {"fits", plan.fits},
          {"rungs", std::move(lines)},
          {"remedies", std::move(remedies)}};
}

std::string plan_text(const Plan& plan) {
  const ShmDirFacts& dir = plan.context.facts.dev_shm;
  std::string text = cat(plan.context.world_size, " ranks of NCCL ", plan.version, "; ", dir.path,
                         " has ", dir.free_bytes, " B free of ", dir.size_bytes, ", ",
                         plan.context.budget.headroom_bytes, " B are left for others\n");
  for (const Line& line : plan.lines) {
    text += cat(line.fits.ok() ? "  fits    " : "  refused ", line.need.rung, ": ",
                line.need.dev_shm_bytes(), " B");
    if (line.use.predicted_channels > 0)
      text += cat(", ", line.use.predicted_channels, " channels");
    text += "\n";
    for (const Consumer& one : line.need.dev_shm)
      text += cat("      ", one.bytes, " B  ", one.what, "\n");
    for (const Consumer& one : line.need.memory)
      text += cat("      ", one.bytes, " B  ", one.what, " (memory)\n");
    for (const std::string& assumption : line.use.assumptions)
      text += cat("      at most: ", assumption, "\n");
    if (!line.fits.ok()) text += cat("      ", line.fits.to_string(700), "\n");
  }
  for (const Remedy& one : plan.remedies)
    text += cat("remedy (", one.kind, "): ", one.title, "\n", one.text, "\n");
  return text;
}

}  // namespace

int run_nccl_plan(const DoctorFlags& flags) {
  const Plan plan = make_plan(flags);
  const Status written =
      write_stdout(flags.json ? json_text(plan_json(plan)) + "\n" : plan_text(plan));
  if (!written.ok()) return report_failure(at(Stage::kRequest, written));
  return plan.fits ? 0 : kDoesNotFit;
}

}  // namespace shoal
