#include "server/grpc/connections/call_watch.h"

#include <google/protobuf/descriptor.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/server_interceptor.h>
#include <set>
#include <string_view>
#include <utility>

#include "runtime/base/cat.h"

namespace shoal {

namespace {

using Brought = Connections::Brought;

/// gRPC makes one of these for each call, and destroys it with the call.
class WatchedCall final : public grpc::experimental::Interceptor {
 public:
  WatchedCall(std::shared_ptr<Connections> connections, std::string peer, Brought with_a_message)
      : connections_(std::move(connections)),
        peer_(std::move(peer)),
        with_a_message_(with_a_message) {
    connections_->call_began(peer_);
  }
  ~WatchedCall() override { connections_->call_ended(peer_, brought_); }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using Point = grpc::experimental::InterceptionHookPoints;
    if (methods->QueryInterceptionHookPoint(Point::POST_RECV_MESSAGE) &&
        methods->GetRecvMessage() != nullptr)
      connections_->message_came(peer_, std::exchange(brought_, with_a_message_), with_a_message_);
    methods->Proceed();
  }

 private:
  const std::shared_ptr<Connections> connections_;
  const std::string peer_;
  const Brought with_a_message_;
  Brought brought_ = Brought::kNothing;
};

using Names = std::set<std::string, std::less<>>;

/// The names of the services' methods whose calls may bring several messages, as gRPC writes them.
Names methods_with_many(const std::vector<std::string>& services) {
  Names methods;
  const auto* const pool = google::protobuf::DescriptorPool::generated_pool();
  for (const std::string& name : services) {
    const google::protobuf::ServiceDescriptor* const service = pool->FindServiceByName(name);
    for (int i = 0; service != nullptr && i < service->method_count(); ++i) {
      const google::protobuf::MethodDescriptor& method = *service->method(i);
      if (method.client_streaming()) methods.insert(cat("/", name, "/", method.name()));
    }
  }
  return methods;
}

class CallWatch final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  CallWatch(std::shared_ptr<Connections> connections, Names with_many)
      : connections_(std::move(connections)), with_many_(std::move(with_many)) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    const bool many = with_many_.find(std::string_view(info->method())) != with_many_.end();
    return new WatchedCall(connections_, info->server_context()->peer(),
                           many ? Brought::kOneOfMany : Brought::kAll);
  }

 private:
  const std::shared_ptr<Connections> connections_;
  const Names with_many_;
};

}  // namespace

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> make_call_watch(
    std::shared_ptr<Connections> connections, const std::vector<std::string>& services) {
  return std::make_unique<CallWatch>(std::move(connections), methods_with_many(services));
}

}  // namespace shoal
