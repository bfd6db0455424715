#pragma once
#include <atomic>
#include <chrono>
#include <memory>

#include "runtime/base/deadline.h"

#include "openengine/v1/services.grpc.pb.h"

namespace grpc {
class Server;
}

namespace shoal {

/// Measures the time in which gRPC's threads were free to work. A client is slow only by this
/// clock: as long as no thread of gRPC can complete its write, nobody knows whether it has read.
/// The time in which this process was stopped does not count either.
class LivenessProbe {
 public:
  /// The server must outlive the calls of probe().
  void start(grpc::Server& server);

  /// Adds the time since the last call, at most `most` of it, if gRPC has answered the call that
  /// was made then; and makes another one, within this process. Must be called by one thread.
  void probe(std::chrono::milliseconds most);

  /// How long gRPC has not answered the last call, by the clock of probe(). May be called from any
  /// thread.
  std::chrono::nanoseconds silent_for() const { return std::chrono::nanoseconds(silent_ns_); }

  /// May be called from any thread.
  std::chrono::nanoseconds answered() const { return std::chrono::nanoseconds(answered_ns_); }

 private:
  struct Ping {
    grpc::ClientContext context;
    openengine::v1::GetServerInfoRequest request;
    openengine::v1::ServerInfo response;
    std::atomic<bool> answered = false;
  };
  std::unique_ptr<openengine::v1::Control::Stub> stub_;
  std::shared_ptr<Ping> ping_;
  Clock::time_point last_;
  std::atomic<int64_t> answered_ns_ = 0;
  std::atomic<int64_t> silent_ns_ = 0;  // since the open call was made
};

}  // namespace shoal
