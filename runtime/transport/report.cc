#include "runtime/transport/report.h"

#include <algorithm>
#include <cstdio>

#include "runtime/transport/facts/host_facts_json.h"

namespace shoal {
namespace {

constexpr size_t kRefusalBytes = 700;

Json causes_json(const Status& status) {
  Json causes = Json::array();
  for (const Cause& cause : status.causes()) {
    Json one = {{"code", code_name(cause.code)},
                {"where", cause.where},
                {"what", cause.what},
                {"rank", cause.rank}};
    if (cause.os_error != 0) one["errno"] = cause.os_error;
    causes.push_back(std::move(one));
  }
  return causes;
}

Json consumers_json(const std::vector<Consumer>& consumers) {
  Json list = Json::array();
  for (const Consumer& consumer : consumers) {
    list.push_back(
        {{"what", consumer.what}, {"bytes", consumer.bytes}, {"inodes", consumer.inodes}});
  }
  return list;
}

Json need_json(const ShmNeed& need) {
  return {{"rung", need.rung},
          {"dev_shm_bytes", need.dev_shm_bytes()},
          {"dev_shm_inodes", need.dev_shm_inodes()},
          {"memory_bytes", need.memory_bytes()},
          {"descriptors", need.descriptors},
          {"dev_shm", consumers_json(need.dev_shm)},
          {"memory", consumers_json(need.memory)}};
}

std::string figure(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

/// The lines of `text`, each after `indent`.
std::string indented(const std::string& text, const std::string& indent) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    out += indent + text.substr(at, end - at) + "\n";
    at = end + 1;
  }
  return out;
}

std::string chosen_text(const TransportReport& report) {
  if (report.rung.empty()) return cat("no transport works for ", report.world_size, " ranks\n");
  std::string text = cat("transport ", report.rung, " for ", report.world_size,
                         report.world_size == 1 ? " rank" : " ranks");
  if (report.latency_us > 0) {
    text += cat(": 8 KiB all-reduce ", figure("%.1f", report.latency_us), " us, 1 MiB at ",
                figure("%.2f", report.bytes_per_s / 1e9), " GB/s, verified in ",
                figure("%.2f", report.verified_s), " s");
  }
  return text + "\n";
}

}  // namespace

void TransportReport::add_restart(std::string why) {
  ++restart_count;
  restarts.push_back(std::move(why));
  if (restarts.size() > kMostRestarts) restarts.erase(restarts.begin());
}

Json to_json(const TransportReport& report) {
  Json refusals = Json::array(), needs = Json::array(), remedies = Json::array(),
       nccl = Json::array();
  for (const Refusal& refusal : report.refusals) {
    refusals.push_back({{"rung", refusal.rung},
                        {"phase", phase_name(refusal.phase)},
                        {"shared_memory", refusal.shared_memory()},
                        {"code", code_name(refusal.status.code())},
                        {"reason", refusal.status.to_string(kRefusalBytes)},
                        {"causes", causes_json(refusal.status)}});
  }
  for (const ShmNeed& need : report.needs) needs.push_back(need_json(need));
  for (const NcclUse& use : report.nccl) nccl.push_back(to_json(use));
  for (const Remedy& remedy : report.remedies) {
    remedies.push_back({{"kind", remedy.kind}, {"title", remedy.title}, {"text", remedy.text}});
  }
  return {{"rung", report.rung},
          {"tp", report.world_size},
          {"order", report.order},
          {"degraded", report.degraded()},
          {"refusals", std::move(refusals)},
          {"needs", std::move(needs)},
          {"nccl", std::move(nccl)},
          {"headroom_bytes", report.headroom_bytes},
          {"self_test",
           {{"latency_us", report.latency_us},
            {"bytes_per_s", report.bytes_per_s},
            {"verified_s", report.verified_s}}},
          {"restarts", report.restarts},
          {"restart_count", report.restart_count},
          {"remedies", std::move(remedies)},
          {"facts", Json::parse(to_json(report.facts))}};
}

std::string to_text(const TransportReport& report) {
  std::string text = chosen_text(report);
  std::string before;
  for (const Refusal& refusal : report.refusals) {
    const std::string why = refusal.status.to_string(kRefusalBytes);
    text += cat("  refused ", refusal.rung, " (", phase_name(refusal.phase), ")",
                why == before ? ": for the same reason\n" : "\n");
    if (why != before) text += indented(why, "    ");
    before = why;
  }
  for (const ShmNeed& need : report.needs) {
    text += cat(need.rung == report.rung ? "* " : "  ", "need of ", need.rung, ": ",
                need.dev_shm_bytes(), " B in ", report.facts.dev_shm.path, ", ",
                need.memory_bytes(), " B of memory\n");
    for (const Consumer& consumer : need.dev_shm)
      text += cat("      ", consumer.bytes, " B  ", consumer.what, "\n");
    for (const Consumer& consumer : need.memory)
      text += cat("      ", consumer.bytes, " B  ", consumer.what, " (memory)\n");
  }
  for (const NcclUse& use : report.nccl) {
    if (use.tried || report.rung.empty()) text += to_text(use);
  }
  if (report.restart_count > static_cast<int64_t>(report.restarts.size()))
    text += cat("  restarts: ", report.restart_count, ", the last of them:\n");
  for (const std::string& restart : report.restarts) text += cat("  restarted: ", restart, "\n");
  for (const Remedy& remedy : report.remedies) {
    text += cat("remedy (", remedy.kind, "): ", remedy.title, "\n", indented(remedy.text, "    "));
  }
  return text;
}

std::string summary(const TransportReport& report) {
  std::string text = report.rung.empty() ? "none" : report.rung;
  for (const Refusal& refusal : report.refusals) {
    text += cat("; ", refusal.rung, " refused (", phase_name(refusal.phase),
                "): ", refusal.status.causes().back().what);
  }
  return text;
}

}  // namespace shoal
