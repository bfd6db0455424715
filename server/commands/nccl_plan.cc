#include "server/commands/nccl_plan.h"

#include <algorithm>
#include <set>
#include <unistd.h>

#include "runtime/base/counted.h"
#include "runtime/base/log.h"
#include "runtime/base/quantity.h"
#include "runtime/base/shell_word.h"
#include "runtime/base/terminal.h"
#include "runtime/comm/device/nccl_api.h"
#include "runtime/transport/nccl_bug_report.h"
#include "runtime/transport/nccl_report.h"
#include "runtime/transport/remedy.h"
#include "runtime/transport/remedy_place.h"
#include "runtime/transport/report_text.h"
#include "runtime/transport/rungs/nccl_rungs.h"
#include "runtime/transport/rungs/rung.h"
#include "runtime/transport/shm_size.h"
#include "server/cli/command_io.h"
#include "server/cli/doctor_flags.h"
#include "server/cli/exit_code.h"
#include "server/host/transport_setup.h"

namespace shoal {
namespace {

constexpr int kDoesNotFit = 1;
constexpr const char* kDecides = "nccl-shm";
constexpr const char* kLean = "nccl-shm-lean";
constexpr const char* kPeers = "nccl-p2p";
constexpr const char* kPeersOff = "NCCL_P2P_DISABLE";
constexpr const char* kOnlyTheLeast =
    "there is room for the least that it needs, but how much more it needs is not known";
/// The layout of the JSON document.
constexpr int kPlanSchema = 2;

/// The result for one rung.
struct Line {
  ShmNeed need;  ///< of all communicators
  NcclSegments segments;
  /// NAME=VALUE under which the need is what it is.
  std::vector<std::string> settings;
  NcclUse use;
  Status room;  ///< checks the budget and the user's settings, but not whether there are devices

  /// False if only a lower bound of the need is known, because then nobody can tell.
  bool fits() const { return room.ok() && need.bound != Bound::kAtLeast; }
};

struct Plan {
  std::string version;
  std::string asked = {};  ///< " (2.27: its last known patch)"; empty: for the version itself
  bool known = false;      ///< what this version takes
  RungContext context;
  std::vector<Line> lines = {};
  std::vector<Remedy> remedies = {};  ///< what would make nccl-shm fit
  bool room = false;                  ///< whether there is room for what is known of its need
  bool fits = false;                  ///< whether nccl-shm fits
  Status settings = {};               ///< why the user's settings forbid it
  ShmSize size = {};                  ///< of a /dev/shm for all communicators over any of the rungs
  std::vector<NcclBugNotice> bugs = {};
};

/// Whether Shoal sets it so that its ranks leave out peers. Ranks of another engine that do not
/// leave them out take no more, so that nobody's figures depend on it.
bool turns_peers_off(const RungSetting& setting) {
  return setting.name == kPeersOff && setting.value == "1";
}

/// What the user has set decides first: without it the figures mean nothing.
Status judge_settings(const Rung& rung, const RungContext& context) {
  SHOAL_RETURN_IF_ERROR(context.user.error);
  std::vector<RungSetting> settings = rung.environment(context, 0);
  std::erase_if(settings, turns_peers_off);
  return check_essential(rung.name, settings, context.user);
}

Status judge(const Rung& rung, const RungContext& context, const ShmNeed& need) {
  SHOAL_RETURN_IF_ERROR(judge_settings(rung, context));
  return check_budget(need, context.facts, context.budget);
}

/// What a rank's NCCL must find in its environment so that it takes what is computed here, the
/// user's own settings too. What only steers its log is left out.
std::vector<std::string> settings_of(const Rung& rung, const RungContext& context) {
  std::vector<std::string> settings;
  const auto add = [&settings](const std::string& name, const std::string& value) {
    const std::string line = cat(name, "=", value);
    const bool known = std::find(settings.begin(), settings.end(), line) != settings.end();
    if (!known && !name.starts_with("NCCL_DEBUG") && name != "NCCL_CONF_FILE")
      settings.push_back(line);
  };
  for (const SettingOutcome& outcome : settle(rung.environment(context, 0), context.user)) {
    // One without a value makes room for a setting of the user's, which follows.
    if (!outcome.value.empty()) add(outcome.name, outcome.value);
  }
  for (const NcclUserSetting& own : context.user.list) add(own.name, own.value);
  return settings;
}

Line line_of(const Rung& rung, const RungContext& context) {
  const NcclNeed all = nccl_rung_need(rung.name, context).value_or(NcclNeed());
  return {all.need, all.segments, settings_of(rung, context), plan_nccl_use(rung.name, context),
          judge(rung, context, all.need)};
}

/// What the plan says of all its lines together.
void add_size_and_bugs(const DoctorFlags& flags, Plan* plan) {
  std::vector<ShmNeed> needs;
  std::vector<NcclUse> uses;
  for (const Line& line : plan->lines) {
    needs.push_back(line.need);
    uses.push_back(line.use);
  }
  const RungContext& context = plan->context;
  plan->size = shm_size_for(context.facts, needs, context.budget.headroom_bytes);
  plan->bugs = nccl_bug_notices(flags.nccl_version->code(), uses);
}

Result<Plan> make_plan(const DoctorFlags& flags) {
  const TransportFlags& transport = flags.serve.engine.transport;
  const int ranks = flags.serve.engine.tensor_parallel_size;
  TransportFlags flags_of_place = transport;
  // Do not query devices, whichever this machine has.
  flags_of_place.device.kind = DeviceKind::kCpu;
  flags_of_place.device.automatic = false;
  SHOAL_ASSIGN_OR_RETURN(HostFacts facts, facts_for(&flags_of_place, ranks));
  const LadderOptions options = ladder_options(transport, ranks, 0);
  Plan plan{.version = nccl_version_text(flags.nccl_version->code()),
            .known = is_known_nccl(*flags.nccl_version),
            .context = RungContext(ranks, std::move(facts))};
  RungContext& context = plan.context;
  context.communicators = flags.communicators;
  context.facts.gpu.nccl_version = flags.nccl_version->code();
  context.facts.gpu.ranks_per_gpu = transport.device.ranks_per_gpu;
  if (const NcclVersion& asked = *flags.nccl_version; asked.last_patch)
    plan.asked = cat(" (", asked.major, ".", asked.minor, ": its last known patch)");
  context.user = read_nccl_user_settings();
  context.reproducible = transport.device.reproducible;
  context.budget = options.budget;
  std::vector<Shortage> shortages;
  for (const Rung& rung : rungs(DeviceKind::kCuda)) {
    if (nccl_rung_transport(rung.name).empty()) continue;
    Line line = line_of(rung, context);
    if (std::string_view(rung.name) == kDecides) {
      plan.room = line.room.ok();
      plan.fits = line.fits();
      plan.settings = judge_settings(rung, context);
      if (!line.room.ok() && plan.settings.ok())
        shortages.push_back(
            {line.need, line.room, context.budget.headroom_bytes, context.budget.reserved_bytes});
    }
    plan.lines.push_back(std::move(line));
  }
  add_size_and_bugs(flags, &plan);
  plan.remedies = remedies(context.facts, context.world_size, shortages, clean_stale_command(),
                           flags.communicators);
  return plan;
}

Json consumers_json(const Line& line, int communicators) {
  Json consumers = Json::array();
  for (const auto* list : {&line.need.dev_shm, &line.need.memory}) {
    for (const Consumer& one : *list) {
      consumers.push_back({{"what", one.what},
                           {"bytes", one.bytes},
                           {"bytes_per_communicator", one.bytes / communicators},
                           {"files", one.inodes},
                           {"in_dev_shm", list == &line.need.dev_shm}});
    }
  }
  return consumers;
}

Json segments_json(const NcclSegments& segments) {
  return {{"data", number_or_null(segments.data)},
          {"control", number_or_null(segments.control)},
          {"pool", number_or_null(segments.pool)},
          {"nvls", number_or_null(segments.nvls)}};
}

/// Null: it fits.
Json reason_json(const Line& line) {
  if (!line.room.ok()) return line.room.to_string(700);
  return line.fits() ? Json(nullptr) : Json(kOnlyTheLeast);
}

Json plan_json(const Plan& plan) {
  Json lines = Json::array(), remedies = Json::array();
  for (const Line& line : plan.lines) {
    lines.push_back(
        {{"rung", line.need.rung},
         {"dev_shm_bytes", line.need.dev_shm_bytes()},
         {"dev_shm_bytes_per_communicator", line.need.dev_shm_bytes() / plan.context.communicators},
         {"memory_bytes", line.need.memory_bytes()},
         {"bound", name(line.need.bound)},
         {"fits", line.fits()},
         {"reason", reason_json(line)},
         {"segments", segments_json(line.segments)},
         {"settings", line.settings},
         {"consumers", consumers_json(line, plan.context.communicators)},
         {"nccl", to_json(line.use)}});
  }
  for (const Remedy& one : plan.remedies)
    remedies.push_back({{"kind", one.kind}, {"title", one.title}, {"text", one.text}});
  const ShmDirFacts& dir = plan.context.facts.dev_shm;
  return {{"schema", kPlanSchema},
          {"version", SHOAL_VERSION},
          {"nccl_version", plan.version},
          {"nccl_known", plan.known},
          {"tp", plan.context.world_size},
          {"communicators", plan.context.communicators},
          {"dev_shm",
           {{"path", dir.path},
            {"size_bytes", number_or_null(dir.size_bytes)},
            {"free_bytes", dir.size_bytes == 0 ? Json() : Json(dir.free_bytes)}}},
          {"headroom_bytes", plan.context.budget.headroom_bytes},
          {"fits", plan.fits},
          {"rungs", std::move(lines)},
          {"shm_size", to_json(plan.size)},
          {"known_bugs", to_json(plan.bugs)},
          {"remedies", std::move(remedies)}};
}

/// "9650176 B (9.2 MiB) for each of 2 communicators", or the bytes alone if there is one.
std::string for_each(int64_t bytes, int communicators) {
  const std::string each = bytes_text(bytes / communicators);
  return communicators == 1 ? each : cat(each, " for each of ", communicators, " communicators");
}

/// The reasons that people have been told.
using Told = std::set<std::string>;

std::string reason_text(const Status& why) {
  return explained(why, 700);
}

/// Why a transport was refused, as it stands below its line. A reason that the report has already
/// given is not repeated.
std::string told_once(const Status& why, Told* told) {
  const std::string reason = reason_text(why);
  return indented(told->insert(reason).second ? reason : "for the same reason as above", "      ");
}

std::string line_text(const Line& line, int communicators, Told* told) {
  const char* const verdict = !line.room.ok() ? "  refused "
                              : line.fits()   ? "  fits    "
                                              : "  unknown ";
  std::string text = cat(verdict, line.need.rung, ": ", words(line.need.bound),
                         bytes_text(line.need.dev_shm_bytes()));
  if (communicators > 1) text += cat(", ", for_each(line.need.dev_shm_bytes(), communicators));
  if (line.use.predicted_channels > 0)
    text += cat(", ", counted(line.use.predicted_channels, "channel"));
  text += "\n";
  for (const Consumer& one : line.need.dev_shm)
    text += cat("      ", for_each(one.bytes, communicators), "  ", one.what, "\n");
  for (const Consumer& one : line.need.memory)
    text += cat("      ", for_each(one.bytes, communicators), "  ", one.what, " (memory)\n");
  for (const std::string& assumption : line.use.assumptions)
    text += cat("      assumed: ", assumption, "\n");
  if (!line.room.ok()) text += told_once(line.room, told);
  return text;
}

/// Whether this rung fits, although the one that decides does not.
bool fits_beside(const Plan& plan, const char* rung) {
  return !plan.fits && std::any_of(plan.lines.begin(), plan.lines.end(), [rung](const Line& line) {
    return line.need.rung == rung && line.fits();
  });
}

/// Whether ranks must make do with one channel and small buffers to fit.
bool fits_only_lean(const Plan& plan) {
  return fits_beside(plan, kLean);
}

/// Why the verdict is not that of a transport that needs no room.
std::string peers_text(const Plan& plan) {
  if (!fits_beside(plan, kPeers)) return "";
  return cat(kPeers,
             " fits, but only for GPUs that reach each other's memory. They are not looked ",
             "at here, so that ", kDecides, " decides.\n");
}

/// What the user's setting means for Shoal's own ranks, although it does not change the verdict.
std::string peers_note(const Plan& plan) {
  const NcclUserSetting* const theirs = plan.context.user.find(kPeersOff);
  if (theirs == nullptr || theirs->value == "1" || !plan.settings.ok()) return "";
  return cat("note: ", theirs->name, "=", theirs->value, " of ", theirs->source,
             ": Shoal's own ranks need it unset or 1 for every transport but ", kPeers,
             "; another engine uses P2P where its GPUs can, and needs no more of /dev/shm then\n");
}

/// What to choose where several sizes and settings follow, each for another transport.
std::string choice_text(const Plan& plan) {
  if (!fits_only_lean(plan)) return "";
  const std::string& path = plan.context.facts.dev_shm.path;
  return cat(
      "either leave ", path, " as it is and export the settings of ", kLean, " below,\nor enlarge ",
      path, plan.remedies.empty() ? "" : " as a remedy below says", " so that ", kDecides,
      " fits; the size for every transport below is larger, because nccl-socket takes more\n");
}

/// The transport whose settings are printed to be pasted; nullptr: there is none.
const Line* exported(const Plan& plan) {
  if (!plan.settings.ok()) return nullptr;
  const char* const rung = fits_only_lean(plan) ? kLean : kDecides;
  for (const Line& line : plan.lines)
    if (line.need.rung == rung) return &line;
  return nullptr;
}

/// The settings under which the figures of one transport hold, as lines to copy. Another engine
/// needs them in its environment, because it does not set them by itself.
std::string exports_text(const Plan& plan) {
  const Line* const line = exported(plan);
  if (line == nullptr) return "";
  std::string text =
      cat("the figures of ", line->need.rung,
          " hold with these settings, for any engine; --json has those ", "of the others:\n");
  for (const std::string& setting : line->settings) {
    if (setting == cat(kPeersOff, "=1"))
      text +=
          "  # only if these GPUs cannot reach each other's memory: it turns P2P (NVLink) off\n";
    if (setting == "NCCL_SOCKET_IFNAME==lo") text += "  # \"=lo\" means exactly lo\n";
    const size_t value = setting.find('=') + 1;
    text += cat("  export ", setting.substr(0, value), shell_word(setting.substr(value)), "\n");
  }
  return text;
}

std::string plan_verdict(const Plan& plan, bool colour) {
  const auto word = [colour](const char* text, Paint paint) {
    return cat(painted(text, paint, colour), ": ");
  };
  const std::string no = word("NO", Paint::kRed);
  const ShmDirFacts& dir = plan.context.facts.dev_shm;
  const std::string ranks = cat(group_text(plan.context.world_size, plan.context.communicators),
                                " of NCCL ", plan.version, plan.asked);
  const bool one = plan.context.world_size == 1 && plan.context.communicators == 1;
  const char* const fit = one ? " fits " : " fit ";
  if (!plan.settings.ok())
    return cat(no, ranks, " cannot use ", kDecides, ": ", reason_text(plan.settings), "\n");
  const std::string room = cat(
      dir.path, ", which has ", bytes_text(dir.free_bytes), " free of ", bytes_text(dir.size_bytes),
      "; ", bytes_text(plan.context.budget.headroom_bytes), " are left for others\n");
  if (plan.fits) return cat(word("OK", Paint::kGreen), ranks, fit, "into ", room);
  if (fits_only_lean(plan))
    return cat(word("SLOWER", Paint::kYellow), ranks, fit, "only with the settings of ", kLean,
               " into ", room);
  if (!plan.room) return cat(no, ranks, one ? " does" : " do", " not fit into ", room);
  return cat(word("UNKNOWN", Paint::kYellow), "whether ", ranks, fit, "into ", room);
}

/// default_ranks: the line that says that their number is a default; empty: it is none.
std::string plan_text(const Plan& plan, const std::string& default_ranks, bool colour) {
  std::string text = plan_verdict(plan, colour) + peers_text(plan) + peers_note(plan) +
                     default_ranks + choice_text(plan);
  Told told = {reason_text(plan.settings)};
  for (const Line& line : plan.lines) text += line_text(line, plan.context.communicators, &told);
  text += to_text(plan.size, group_text(plan.context.world_size, plan.context.communicators));
  text += exports_text(plan) + to_text(plan.remedies);
  const Line* const line = exported(plan);
  return text + to_text(plan.context.facts.gpu.nccl_version, plan.bugs,
                        line == nullptr ? std::vector<std::string>() : line->settings);
}

}  // namespace

int run_nccl_plan(const DoctorFlags& flags) {
  const Result<Plan> plan = make_plan(flags);
  if (!plan.ok()) return report_failure(at(Stage::kStart, plan.status()));
  const Status written = write_stdout(
      flags.json ? json_text(plan_json(*plan)) + "\n"
                 : plan_text(*plan, default_ranks_line(flags), wants_colour(STDOUT_FILENO)));
  if (!written.ok()) return report_failure(at(Stage::kRequest, written));
  return plan->fits ? 0 : kDoesNotFit;
}

}  // namespace shoal
