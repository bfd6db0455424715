#include "server/grpc/transport_service.h"

#include <grpcpp/grpcpp.h>

#include "models/tokenizer/unicode.h"
#include "server/grpc/grpc_status.h"

#include "shoal/v1/transport.grpc.pb.h"

namespace shoal {

namespace wire = shoal::v1;

namespace {

constexpr size_t kReasonBytes = 900;

// protobuf's strings must be UTF-8: a client refuses the whole message if one of them is not.
// Paths, environment variables and NCCL's messages may have any bytes, so they are converted.

void write_consumers(const std::vector<Consumer>& consumers, bool in_dev_shm, wire::Need* need) {
  for (const Consumer& consumer : consumers) {
    wire::Consumer* one = need->add_consumers();
    one->set_what(to_valid_utf8(consumer.what));
    one->set_bytes(consumer.bytes);
    one->set_in_dev_shm(in_dev_shm);
  }
}

void write_nccl(const NcclUse& use, wire::NcclUse* out) {
  out->set_rung(use.rung);
  out->set_version(to_valid_utf8(use.version));
  out->set_library(to_valid_utf8(use.library));
  out->set_predicted_bytes(use.predicted_bytes);
  out->set_used_bytes(use.used_bytes);
  out->set_tried(use.tried);
  out->set_logged(use.logged);
  for (const auto& [kind, count] : use.transports)
    (*out->mutable_transports())[to_valid_utf8(kind)] += count;
  out->set_channels(use.channels);
  out->set_last_error(to_valid_utf8(use.last_error));
}

void write_report(const TransportReport& report, wire::TransportReport* out) {
  out->set_rung(report.rung);
  out->set_tensor_parallel_size(report.world_size);
  for (const std::string& rung : report.order) out->add_order(rung);
  out->set_degraded(report.degraded());
  for (const Refusal& refusal : report.refusals) {
    wire::Refusal* one = out->add_refusals();
    one->set_rung(refusal.rung);
    one->set_phase(phase_name(refusal.phase));
    one->set_shared_memory(refusal.shared_memory());
    one->set_code(code_name(refusal.status.code()));
    one->set_reason(to_valid_utf8(refusal.status.to_string(kReasonBytes)));
  }
  for (const ShmNeed& need : report.needs) {
    wire::Need* one = out->add_needs();
    one->set_rung(need.rung);
    one->set_dev_shm_bytes(need.dev_shm_bytes());
    one->set_dev_shm_inodes(need.dev_shm_inodes());
    one->set_memory_bytes(need.memory_bytes());
    write_consumers(need.dev_shm, true, one);
    write_consumers(need.memory, false, one);
  }
  for (const NcclUse& use : report.nccl) write_nccl(use, out->add_nccl());
  for (const Remedy& remedy : report.remedies) {
    wire::Remedy* one = out->add_remedies();
    one->set_kind(remedy.kind);
    one->set_title(to_valid_utf8(remedy.title));
    one->set_text(to_valid_utf8(remedy.text));
  }
  for (const std::string& restart : report.restarts) out->add_restarts(to_valid_utf8(restart));
  out->mutable_self_test()->set_latency_us(report.latency_us);
  out->mutable_self_test()->set_bytes_per_s(report.bytes_per_s);
  out->mutable_self_test()->set_verified_s(report.verified_s);
  out->set_headroom_bytes(report.headroom_bytes);
  out->set_json(json_text(to_json(report)));
}

class TransportService final : public wire::Transport::CallbackService {
 public:
  explicit TransportService(std::shared_ptr<ServingState> state) : state_(std::move(state)) {}

  grpc::ServerUnaryReactor* GetReport(grpc::CallbackServerContext* context,
                                      const wire::GetReportRequest*,
                                      wire::TransportReport* out) override {
    const ServingState::View view = state_->view();
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    if (!view.deployment.transport_report) {
      reactor->Finish(to_grpc_status(model_is_loading()));
      return reactor;
    }
    write_report(view.deployment.transport_report(), out);
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  const std::shared_ptr<ServingState> state_;
};

}  // namespace

std::unique_ptr<grpc::Service> make_transport_service(std::shared_ptr<ServingState> state) {
  return std::make_unique<TransportService>(std::move(state));
}

}  // namespace shoal
