#include "server/grpc/connections/liveness_probe.h"

#include <algorithm>
#include <grpcpp/grpcpp.h>

namespace shoal {

void LivenessProbe::start(grpc::Server& server) {
  stub_ = openengine::v1::Control::NewStub(server.InProcessChannel(grpc::ChannelArguments()));
  last_ = Clock::now();
}

void LivenessProbe::probe(std::chrono::milliseconds most) {
  const Clock::time_point now = Clock::now();
  const std::chrono::nanoseconds passed = now - std::exchange(last_, now);
  if (ping_ != nullptr && !ping_->answered) {
    silent_ns_ += std::min<std::chrono::nanoseconds>(passed, most).count();
    return;
  }
  silent_ns_ = 0;
  if (ping_ != nullptr) answered_ns_ += std::min<std::chrono::nanoseconds>(passed, most).count();
  ping_ = std::make_shared<Ping>();
  stub_->async()->GetServerInfo(&ping_->context, &ping_->request, &ping_->response,
                                [ping = ping_](const grpc::Status&) { ping->answered = true; });
}

}  // namespace shoal
