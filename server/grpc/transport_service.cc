#include <grpcpp/grpcpp.h>
#include <utility>

#include "models/tokenizer/unicode.h"
#include "server/grpc/grpc_status.h"
#include "server/grpc/services.h"

#include "shoal/v1/transport.grpc.pb.h"

namespace shoal {

namespace {

constexpr size_t kReasonBytes = 900;

// protobuf's strings must be UTF-8: a client refuses the whole message if one of them is not.
// Paths, environment variables and NCCL's messages may have any bytes, so they are converted.

void write_consumers(const std::vector<Consumer>& consumers, bool in_dev_shm, v1::Need* need) {
  for (const Consumer& consumer : consumers) {
    v1::Consumer* one = need->add_consumers();
    one->set_what(to_valid_utf8(consumer.what));
    one->set_bytes(consumer.bytes);
    one->set_in_dev_shm(in_dev_shm);
  }
}

void write_nccl(const NcclUse& use, v1::NcclUse* out) {
  out->set_rung(use.rung);
  out->set_version(to_valid_utf8(use.version));
  out->set_library(to_valid_utf8(use.library));
  out->set_predicted_bytes(use.predicted_bytes);
  out->set_used_bytes(use.used_bytes.value_or(0));
  out->set_tried(use.tried);
  out->set_logged(use.logged);
  for (const auto& [kind, count] : use.transports)
    (*out->mutable_transports())[to_valid_utf8(kind)] += count;
  out->set_channels(use.channels);
  out->set_last_error(to_valid_utf8(use.last_error));
  out->set_bound(name(use.bound));
}

void write_self_test(const SelfTestFigures& figures, v1::SelfTest* out) {
  out->set_latency_us(figures.latency_us);
  out->set_bytes_per_s(figures.bytes_per_s);
  out->set_verified_s(figures.seconds);
  out->set_noisy(figures.noisy);
}

void write_waits(const GroupWaits& waits, v1::Waits* out) {
  for (const double share : waits.of_rank) out->add_of_rank(share);
  for (const double share : waits.for_rank) out->add_for_rank(share);
  if (!waits.last) return;
  out->set_rank(waits.last->rank);
  out->set_share(waits.last->share);
  out->set_text(to_text(waits));
}

void write_report(const TransportReport& report, v1::TransportReport* out) {
  out->set_rung(report.rung);
  out->set_tensor_parallel_size(report.world_size);
  for (const std::string& rung : report.order) out->add_order(rung);
  out->set_degraded(report.degraded());
  out->set_verdict(verdict_name(report.verdict()));
  for (const Refusal& refusal : report.refusals) {
    v1::Refusal* one = out->add_refusals();
    one->set_rung(refusal.rung);
    one->set_phase(phase_name(refusal.phase));
    one->set_shared_memory(refusal.shared_memory());
    one->set_code(code_name(refusal.status.code()));
    one->set_reason(to_valid_utf8(refusal.status.to_string(kReasonBytes)));
  }
  for (const ShmNeed& need : report.needs) {
    v1::Need* one = out->add_needs();
    one->set_rung(need.rung);
    one->set_dev_shm_bytes(need.dev_shm_bytes());
    one->set_dev_shm_inodes(need.dev_shm_inodes());
    one->set_memory_bytes(need.memory_bytes());
    write_consumers(need.dev_shm, true, one);
    write_consumers(need.memory, false, one);
  }
  for (const NcclUse& use : report.nccl) write_nccl(use, out->add_nccl());
  for (const Remedy& remedy : report.remedies) {
    v1::Remedy* one = out->add_remedies();
    one->set_kind(remedy.kind);
    one->set_title(to_valid_utf8(remedy.title));
    one->set_text(to_valid_utf8(remedy.text));
  }
  for (const std::string& restart : report.restarts) out->add_restarts(to_valid_utf8(restart));
  out->set_restart_count(report.restart_count);
  write_self_test(report.self_test, out->mutable_self_test());
  if (report.waits) write_waits(*report.waits, out->mutable_waits());
  out->set_headroom_bytes(report.headroom_bytes.value_or(0));
  Json document = to_json(report);
  document["version"] = SHOAL_VERSION;
  out->set_json(json_text(document));
}

class TransportService final : public WithByteMethods<v1::Transport::CallbackService> {
 public:
  explicit TransportService(ServiceParts parts) : parts_(std::move(parts)) {
    constexpr int kGetReport = 0;
    answer<v1::GetReportRequest, v1::TransportReport>(
        kGetReport, [this](const Context& context) { return check_key(context, parts_); },
        [this](const v1::GetReportRequest&, v1::TransportReport* out) { return report(out); });
  }

 private:
  grpc::Status report(v1::TransportReport* out) const {
    const ServingState::View view = parts_.state->view();
    if (!view.deployment.transport_report) return to_grpc_status(model_is_loading());
    write_report(view.deployment.transport_report(), out);
    return grpc::Status::OK;
  }

  const ServiceParts parts_;
};

}  // namespace

std::unique_ptr<grpc::Service> make_transport_service(const ServiceParts& parts) {
  return std::make_unique<TransportService>(parts);
}

}  // namespace shoal
