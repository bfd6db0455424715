#include "runtime/transport/report.h"

#include <algorithm>

#include "runtime/base/log.h"
#include "runtime/transport/facts/host_facts_json.h"
#include "runtime/transport/nccl_bug_report.h"
#include "runtime/transport/shm_size.h"

namespace shoal {
namespace {

Json causes_json(const Status& status) {
  Json causes = Json::array();
  for (const Cause& cause : status.causes()) {
    causes.push_back({{"code", code_name(cause.code)},
                      {"where", text_or_null(cause.where)},
                      {"what", cause.what},
                      {"rank", cause.rank},
                      {"errno", number_or_null(cause.os_error)}});
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
          {"bound", name(need.bound)},
          {"dev_shm", consumers_json(need.dev_shm)},
          {"memory", consumers_json(need.memory)}};
}

Json refusals_json(const std::vector<Refusal>& refusals) {
  Json list = Json::array();
  for (const Refusal& refusal : refusals) {
    list.push_back({{"rung", refusal.rung},
                    {"phase", phase_name(refusal.phase)},
                    {"shared_memory", refusal.shared_memory()},
                    {"code", code_name(refusal.status.code())},
                    {"reason", refusal.reason()},
                    {"causes", causes_json(refusal.status)}});
  }
  return list;
}

/// Null: nothing but refusals ended the start, or it worked.
Json error_json(const Status& failure) {
  if (failure.ok()) return nullptr;
  return {{"code", code_name(failure.code())}, {"causes", causes_json(failure)}};
}

/// Null: nothing was measured, because there is one rank or no transport.
Json self_test_json(const SelfTestFigures& figures) {
  if (figures.latency_us <= 0) return nullptr;
  return {{"latency_us", figures.latency_us},
          {"bytes_per_s", figures.bytes_per_s},
          {"noisy", figures.noisy},
          {"verified_s", figures.seconds}};
}

/// Null: no rung is in use, or the bench has not measured it or the first one.
Json cost_json(const TransportReport& report) {
  if (report.rung.empty() || report.world_size == 1) return nullptr;
  const RungCost cost = report.cost();
  if (!cost.measured()) return nullptr;
  return {{"beside", report.first()}, {"8_kib", cost.small}, {"1_mib", cost.large}};
}

}  // namespace

void TransportReport::add_restart(std::string why) {
  ++restart_count;
  restarts.push_back(std::move(why));
  if (restarts.size() > kMostRestarts) restarts.erase(restarts.begin());
}

std::string TransportReport::first() const {
  return order.empty() ? rung : order.front();
}

RungCost TransportReport::cost() const {
  const Rung* used = find_rung(rung);
  const Rung* best = find_rung(first());
  return used == nullptr || best == nullptr ? RungCost() : cost_beside(*used, *best);
}

Verdict TransportReport::verdict() const {
  if (rung.empty()) return forbidden_by.empty() ? Verdict::kNone : Verdict::kForbidden;
  if (world_size == 1 || rung == first()) return Verdict::kFirst;
  return as_good(cost()) ? Verdict::kAsGood : Verdict::kSlower;
}

const char* verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kFirst:
      return "first";
    case Verdict::kAsGood:
      return "as-good";
    case Verdict::kSlower:
      return "slower";
    case Verdict::kForbidden:
      return "forbidden";
    case Verdict::kNone:
      return "none";
  }
  return "none";
}

Json to_json(const TransportReport& report) {
  Json needs = Json::array(), remedies = Json::array(), nccl = Json::array();
  for (const ShmNeed& need : report.needs) needs.push_back(need_json(need));
  for (const NcclUse& use : report.nccl) nccl.push_back(to_json(use));
  for (const Remedy& remedy : report.remedies) {
    remedies.push_back({{"kind", remedy.kind}, {"title", remedy.title}, {"text", remedy.text}});
  }
  return {{"schema", kTransportReportSchema},
          {"verdict", verdict_name(report.verdict())},
          {"rung", text_or_null(report.rung)},
          {"tp", report.world_size},
          {"order", report.order},
          {"degraded", report.rung.empty() ? Json() : Json(report.degraded())},
          {"allowed_by", text_or_null(report.allowed_by)},
          {"forbidden_by", text_or_null(report.forbidden_by)},
          {"failure",
           text_or_null(report.failure.ok() ? "" : explained(report.failure, kMostReasonBytes))},
          {"error", error_json(report.failure)},
          {"cost", cost_json(report)},
          {"refusals", refusals_json(report.refusals)},
          {"needs", std::move(needs)},
          {"shm_size",
           to_json(shm_size_for(report.facts, report.needs, report.headroom_bytes.value_or(0)))},
          {"nccl", std::move(nccl)},
          {"nccl_known_bugs", to_json(nccl_bug_notices(report.nccl))},
          {"headroom_bytes", report.headroom_bytes ? Json(*report.headroom_bytes) : Json()},
          {"self_test", self_test_json(report.self_test)},
          {"restarts", report.restarts},
          {"restart_count", report.restart_count},
          {"remedies", std::move(remedies)},
          {"waits", to_json(report.waits)},
          {"removed", Json::array()},
          {"kept", Json::array()},
          {"facts", Json::parse(to_json(report.facts))}};
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
