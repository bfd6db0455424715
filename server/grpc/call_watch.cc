#include "server/grpc/call_watch.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/server_interceptor.h>
#include <string>
#include <utility>

#include "server/grpc/grpc_status.h"
#include "server/grpc/protobuf_log.h"

namespace shoal {

namespace {

/// gRPC makes one of these for each call, and destroys it with the call.
class WatchedCall final : public grpc::experimental::Interceptor {
 public:
  WatchedCall(std::shared_ptr<Connections> connections, std::string peer, bool one_request)
      : connections_(std::move(connections)), peer_(std::move(peer)), one_request_(one_request) {
    connections_->call_began(peer_);
  }
  ~WatchedCall() override { connections_->call_ended(peer_); }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using Point = grpc::experimental::InterceptionHookPoints;
    if (one_request_ && methods->QueryInterceptionHookPoint(Point::POST_RECV_MESSAGE) &&
        methods->GetRecvMessage() == nullptr) {
      why_unread_ =
          cat("the request is not a message of this method's type: ", take_protobuf_complaint());
    }
    if (!why_unread_.empty() && methods->QueryInterceptionHookPoint(Point::PRE_SEND_STATUS)) {
      methods->ModifySendStatus(to_grpc_status(Status::error(Code::kInvalidArgument, why_unread_),
                                               {.reason = "INVALID_REQUEST"}));
    }
    methods->Proceed();
  }

 private:
  const std::shared_ptr<Connections> connections_;
  const std::string peer_;
  // In a stream of requests, no message means the end of the stream.
  const bool one_request_;
  std::string why_unread_;
};

class CallWatch final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit CallWatch(std::shared_ptr<Connections> connections)
      : connections_(std::move(connections)) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    using Type = grpc::experimental::ServerRpcInfo::Type;
    const bool one_request = info->type() == Type::UNARY || info->type() == Type::SERVER_STREAMING;
    return new WatchedCall(connections_, info->server_context()->peer(), one_request);
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
