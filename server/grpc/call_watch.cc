#include "server/grpc/call_watch.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/server_interceptor.h>
#include <string>
#include <utility>

namespace shoal {

namespace {

/// gRPC makes one of these for each call, and destroys it with the call.
class WatchedCall final : public grpc::experimental::Interceptor {
 public:
  WatchedCall(std::shared_ptr<Connections> connections, std::string peer)
      : connections_(std::move(connections)), peer_(std::move(peer)) {
    connections_->call_began(peer_);
  }
  ~WatchedCall() override { connections_->call_ended(peer_, has_message_); }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using Point = grpc::experimental::InterceptionHookPoints;
    if (methods->QueryInterceptionHookPoint(Point::POST_RECV_MESSAGE) &&
        methods->GetRecvMessage() != nullptr)
      connections_->message_came(peer_, !std::exchange(has_message_, true));
    methods->Proceed();
  }

 private:
  const std::shared_ptr<Connections> connections_;
  const std::string peer_;
  bool has_message_ = false;
};

class CallWatch final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit CallWatch(std::shared_ptr<Connections> connections)
      : connections_(std::move(connections)) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    return new WatchedCall(connections_, info->server_context()->peer());
  }

 private:
  const std::shared_ptr<Connections> connections_;
};

}  // namespace

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> make_call_watch(
    std::shared_ptr<Connections> connections) {
  return std::make_unique<CallWatch>(std::move(connections));
}

}  // namespace shoal
