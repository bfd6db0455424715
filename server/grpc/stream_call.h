#pragma once
#include <chrono>
#include <memory>
#include <utility>

#include "server/grpc/byte_methods.h"

namespace shoal {

/// True if the deadline that the client set has passed.
inline bool deadline_passed(const grpc::CallbackServerContext& context) {
  return context.deadline() <= std::chrono::system_clock::now();
}

/// gRPC's side of one call, for which `Stream` does the work. gRPC owns it until OnDone, which it
/// calls once, as the last call.
template <typename Stream>
class StreamCall final : public ByteReactor {
 public:
  StreamCall(std::shared_ptr<Stream> stream, grpc::CallbackServerContext* context)
      : stream_(std::move(stream)), context_(context) {}

  void OnReadDone(bool ok) override { stream_->read_done(ok); }
  void OnWriteDone(bool ok) override { stream_->written(ok); }
  void OnCancel() override { stream_->client_gone(); }
  void OnDone() override {
    stream_->call_done();
    delete this;
  }

  /// After this, the outstanding write fails and OnCancel is called.
  void cancel() { context_->TryCancel(); }
  bool late() const { return deadline_passed(*context_); }

 private:
  const std::shared_ptr<Stream> stream_;
  grpc::CallbackServerContext* const context_;
};

}  // namespace shoal
