#pragma once
#include <deque>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "server/grpc/generate_call.h"
#include "server/grpc/stream_call.h"

namespace shoal {

class InferStream;

/// The streams that are open. A stream that waits for its client's next request holds room for that
/// request. Nobody can count this room before the request has come. Therefore at most 64 streams
/// may be open, and at most 32 of one client. If there are too many, one without requests is ended.
/// Thread-safe.
class OpenStreams {
 public:
  /// False if there are too many, and each of them has requests. Otherwise call leave() later.
  bool enter(const std::shared_ptr<InferStream>& stream, const std::string& client);
  void leave(const InferStream* stream);

 private:
  struct Entry {
    std::weak_ptr<InferStream> stream;
    std::string client;
  };
  static constexpr size_t kMost = 64;
  static constexpr size_t kMostOfClient = 32;
  size_t count(const std::string& client) const;

  std::mutex mutex_;
  std::map<const InferStream*, Entry> streams_;
};

/// One call of ModelStreamInfer. Its requests pass through the intake and the loop each by itself,
/// and what they produce is sent as it comes. The intake's and the loop's threads, gRPC's threads
/// and the watchdog for slow readers call it, and its mutex orders them. The requests and the
/// call's reactor share its ownership.
class InferStream final : public std::enable_shared_from_this<InferStream> {
 public:
  using Reactor = GenerateStream::Reactor;

  InferStream(ServiceParts parts, std::shared_ptr<const Dialect> dialect,
              std::shared_ptr<OpenStreams> open)
      : parts_(std::move(parts)), dialect_(std::move(dialect)), open_(std::move(open)) {}

  /// Returns the reactor, which gRPC owns from then on. Precondition: OpenStreams::enter() has
  /// returned true for this stream.
  Reactor* start(grpc::CallbackServerContext* context, const std::string& client);

  /// When the stream has had its last request answered, or was opened; nullopt while it has some.
  std::optional<RunningClock::time_point> idle_since();
  /// Ends the call, unless it has requests.
  void end_if_idle();

 private:
  using Call = StreamCall<InferStream>;
  friend Call;
  class Item;
  using Items = std::deque<std::shared_ptr<Item>>;
  void read_done(bool ok);
  void written(bool ok);
  void client_gone();
  void call_done();
  void read_next();
  void output_ready();
  void drop_if_slow(std::chrono::milliseconds limit);

  // These require that mutex_ is held.
  void pump();
  bool write_from(const std::shared_ptr<Item>& item);
  void lose_client();

  const ServiceParts parts_;
  const std::shared_ptr<const Dialect> dialect_;
  const std::shared_ptr<OpenStreams> open_;
  std::mutex mutex_;
  Call* call_ = nullptr;            // null before start() and after gRPC is done
  grpc::ByteBuffer request_bytes_;  // gRPC uses it while reading_ is set
  grpc::ByteBuffer response_;       // gRPC uses it while writing_ is set
  RequestOrigin origin_;
  Items items_;  // the requests that have not been answered, the one that is to write next first
  std::shared_ptr<Item> leaving_;             // its last message is being written
  std::chrono::nanoseconds write_started_{};  // by the probe's clock
  RunningClock::time_point idle_since_ = RunningClock::now();
  bool reading_ = false;
  bool writing_ = false;
  bool all_read_ = false;  // the client sends no more requests
  bool finished_ = false;  // Finish has been called
  bool gone_ = false;
  bool slow_ = false;
};

}  // namespace shoal
