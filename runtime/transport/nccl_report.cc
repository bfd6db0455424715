#include "runtime/transport/nccl_report.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "runtime/base/counted.h"
#include "runtime/base/quantity.h"
#include "runtime/comm/device/nccl_api.h"
#include "runtime/transport/nccl_log.h"
#include "runtime/transport/rungs/nccl_rungs.h"
#include "runtime/transport/rungs/rung.h"

namespace shoal {
namespace {

/// Explains the size in a message of NCCL's, "... (size 9637888)" or "extend ... to 9637892 bytes".
/// Empty: there is no known size in it.
std::string explained(const std::string& warning) {
  for (const char* mark : {"(size ", " to "}) {
    const size_t at = warning.rfind(mark);
    if (at == std::string::npos) continue;
    const std::string meaning =
        explain_nccl_size(std::strtoll(warning.c_str() + at + std::strlen(mark), nullptr, 10));
    if (!meaning.empty()) return cat(" [", meaning, "]");
  }
  return "";
}

std::string shown(const std::map<std::string, int>& transports) {
  std::string text;
  for (const auto& [kind, count] : transports)
    text += cat(text.empty() ? "" : ", ", kind, " x ", count);
  return text;
}

/// What the variable will be for NCCL; empty: nobody sets it.
std::string in_force(const NcclUse& use, std::string_view variable) {
  for (const SettingOutcome& one : use.settings)
    if (one.name == variable) return one.value;
  return "";
}

/// Our ranks are processes on one host, register no windows and call NCCL outside of graphs.
std::vector<NcclBugCondition> conditions_of(const NcclUse& use, const GpuFacts& gpu) {
  std::vector<NcclBugCondition> conditions;
  const std::string_view transport = nccl_rung_transport(use.rung);
  const bool cumem_host = in_force(use, "NCCL_CUMEM_HOST_ENABLE") != "0";
  if (transport == "SHM")
    conditions.push_back(cumem_host ? NcclBugCondition::kCumemHost : NcclBugCondition::kFiles);
  if (in_force(use, "NCCL_NVLS_ENABLE") != "0") conditions.push_back(NcclBugCondition::kNvls);
#ifdef __aarch64__
  if (transport == "NET") conditions.push_back(NcclBugCondition::kArmNetwork);
#endif
  const auto some_gpu = [&gpu](auto is) {  // GPUs that nobody has looked at may be any
    return gpu.devices.empty() ||
           std::any_of(gpu.devices.begin(), gpu.devices.end(), [&is](const GpuDevice& device) {
             return is(std::atoi(device.compute_capability.c_str()));
           });
  };
  if (some_gpu([](int major) { return major == 12; }))
    conditions.push_back(NcclBugCondition::kGeforceBlackwell);
  if (some_gpu([](int major) { return major < 10; }))
    conditions.push_back(NcclBugCondition::kBeforeBlackwell);
  return conditions;
}

Json user_json(const std::vector<NcclUserSetting>& user) {
  Json list = Json::array();
  for (const NcclUserSetting& one : user)
    list.push_back({{"name", one.name}, {"value", one.value}, {"source", one.source}});
  return list;
}

Json settings_json(const std::vector<SettingOutcome>& settings) {
  Json list = Json::array();
  for (const SettingOutcome& one : settings) {
    list.push_back({{"name", one.name},
                    {"wanted", one.wanted},
                    {"value", text_or_null(one.value)},
                    {"winner", name(one.winner)},
                    {"source", text_or_null(one.source)}});
  }
  return list;
}

}  // namespace

NcclUse plan_nccl_use(const std::string& rung, const RungContext& context) {
  NcclUse use;
  use.rung = rung;
  const NcclNeed need = nccl_rung_need(rung, context).value_or(NcclNeed());
  const GpuFacts& gpu = context.facts.gpu;
  use.version = nccl_version_text(gpu.nccl_version > 0 ? gpu.nccl_version : NcclVersion().code());
  use.library = gpu.nccl_path;
  use.settings = settle(find_rung(rung)->environment(context, 0), context.user);
  use.user = context.user.list;
  use.library_version = gpu.nccl_version;
  use.conditions = conditions_of(use, gpu);
  use.predicted_bytes = need.need.dev_shm_bytes() / context.communicators;
  use.predicted_channels =
      use.predicted_bytes > 0 && nccl_rung_transport(rung) == "SHM" ? need.channels : 0;
  use.bound = need.need.bound;
  use.assumptions = need.assumptions;
  const auto file =
      std::find_if(use.settings.begin(), use.settings.end(),
                   [](const SettingOutcome& one) { return one.name == "NCCL_DEBUG_FILE"; });
  use.logged = file != use.settings.end() && file->winner == kSettingIsSet;
  return use;
}

void add_nccl_logs(const std::vector<std::string>& logs, NcclUse* use) {
  use->tried = true;
  use->transports.clear();
  int64_t used_bytes = 0;
  for (size_t rank = 0; rank < logs.size(); ++rank) {
    const NcclLog log = parse_nccl_log(logs[rank]);
    if (!log.version.empty()) use->version = log.version;
    for (const auto& [kind, count] : log.transports) use->transports[kind] += count;
    use->channels = std::max(use->channels, log.channels);
    used_bytes += log.dev_shm_charged;
    use->cumem_fallback = use->cumem_fallback || log.cumem_fallback;
    if (use->last_error.empty() && !log.last_warning.empty())
      use->last_error = cat("[rank ", rank, "] ", log.last_warning, explained(log.last_warning));
  }
  // Since 2.30.7 NCCL does not log what it takes (rank_equipment.cc): no bytes there say nothing.
  if (used_bytes > 0) see_nccl_bytes(used_bytes, use);
}

void see_nccl_bytes(int64_t bytes, NcclUse* use) {
  use->used_bytes = std::max(use->used_bytes.value_or(0), bytes);
}

Status check_nccl_use(const NcclUse& use) {
  const std::string wanted(nccl_rung_transport(use.rung));
  for (const auto& [kind, count] : use.transports) {
    if (kind.starts_with(wanted + "/")) continue;
    return Status::error(
        Code::kFailedPrecondition,
        cat("NCCL connects by ", shown(use.transports), ", not by ", wanted, " alone as ", use.rung,
            " says; ",
            use.used_bytes ? cat("it took ", bytes_text(*use.used_bytes), " of /dev/shm where ")
                           : "",
            bytes_text(use.predicted_bytes), use.used_bytes ? "" : " of /dev/shm",
            " were planned"));
  }
  return {};
}

Json to_json(const NcclUse& use) {
  return {{"rung", use.rung},
          {"version", use.version},
          {"library", text_or_null(use.library)},
          {"settings", settings_json(use.settings)},
          {"user_settings", user_json(use.user)},
          {"predicted_bytes", use.predicted_bytes},
          {"predicted_channels", number_or_null(use.predicted_channels)},
          {"bound", name(use.bound)},
          {"assumptions", use.assumptions},
          {"tried", use.tried},
          {"logged", use.logged},
          {"transports", use.transports},
          {"channels", number_or_null(use.channels)},
          {"used_bytes", use.used_bytes ? Json(*use.used_bytes) : Json()},
          {"cumem_fallback", use.cumem_fallback},
          {"last_error", text_or_null(use.last_error)}};
}

std::string to_text(const NcclUse& use) {
  std::string text =
      cat("  NCCL ", use.version, use.library.empty() ? "" : " of ", use.library, " on ", use.rung,
          ": ", words(use.bound), bytes_text(use.predicted_bytes), " of /dev/shm predicted");
  if (use.predicted_channels > 0) text += cat(" with ", counted(use.predicted_channels, "channel"));
  if (use.used_bytes) text += cat(", ", bytes_text(*use.used_bytes), " used");
  if (use.tried && use.logged) {
    text += cat(", ", counted(use.channels, "channel"));
    if (!use.transports.empty()) text += cat(" via ", shown(use.transports));
  }
  const bool of_user =
      std::any_of(use.settings.begin(), use.settings.end(), [](const SettingOutcome& one) {
        return one.name == "NCCL_DEBUG_FILE" && one.winner == kUserWon;
      });
  if (use.tried && !use.logged)
    text += of_user ? "; its log is the user's" : "; its log could not be kept";
  text += "\n";
  for (const std::string& assumption : use.assumptions)
    text += cat("      assumed: ", assumption, "\n");
  for (const SettingOutcome& one : use.settings) {
    if (one.winner == kSettingIsSet) continue;
    text += cat("      ", one.name, ": ", name(one.winner), " (",
                one.value.empty() ? "" : one.value + " of ", one.source, "), ", one.wanted,
                " was wanted\n");
  }
  if (use.cumem_fallback) text += "      cuMem host memory was asked for and does not work here\n";
  if (!use.last_error.empty()) text += cat("      its last error: ", use.last_error, "\n");
  return text;
}

}  // namespace shoal
