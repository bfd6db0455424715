#pragma once
#include <bit>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <utility>

#include "runtime/base/cat.h"
#include "runtime/base/fd.h"
#include "server/intake/front_call.h"
#include "server/intake/intake.h"
#include "server/intake/live_request.h"

namespace shoal {

/// A call of the front below: "MAX_TOKENS PROMPT" in, and then a line for each token, "ID LOGPROB"
/// with the float's bits, and one for the end: "length", "stop", "cancelled", "refused REASON
/// RETRY_MS".
class LineCall final : public FrontCall, public std::enable_shared_from_this<LineCall> {
 public:
  LineCall(std::shared_ptr<Intake> intake, std::string id, Fd socket)
      : intake_(std::move(intake)), id_(std::move(id)), socket_(std::move(socket)) {}

  /// Serves the call to its end, on the connection's own thread.
  void serve() {
    intake_->enter(shared_from_this(), "line client");
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return may_read_ || over_; });
    const bool may_read = !over_;
    lock.unlock();
    const bool whole = may_read && read_line();
    if (whole) intake_->arrived(*this, line_.size());
    lock.lock();
    changed_.wait(lock, [&] { return over_ || !whole; });
    lock.unlock();
    intake_->leave(*this);
    ::shutdown(socket_.get(), SHUT_RDWR);
  }

  void read() override {
    const std::lock_guard lock(mutex_);
    may_read_ = true;
    changed_.notify_all();
  }
  uint64_t received() override {
    const std::lock_guard lock(mutex_);
    return line_.size();
  }
  void work() override {
    GenerationRequest request;
    char* prompt = nullptr;
    request.max_tokens = std::strtoll(line_.c_str(), &prompt, 10);
    request.prompt = prompt + 1;
    request.logprobs = 0;
    const auto live = LiveRequest::make(intake_, id_, shared_from_this());
    {
      const std::lock_guard lock(mutex_);
      if (over_) return;
      request_ = live;
    }
    const auto accepted = live->submit(std::move(request), {"line client"});
    if (!accepted.ok()) reject(accepted.error());
  }
  void reject(const RefusedRequest& why) override {
    const std::lock_guard lock(mutex_);
    end(refused(why));
  }
  void output_ready() override {
    const std::lock_guard lock(mutex_);
    if (over_) return;
    const LiveRequest::Output output = request_->take();
    for (const OutputDelta& delta : output.deltas) {
      for (const SampledToken& token : delta.tokens)
        write(cat(token.token_id, " ", std::bit_cast<uint32_t>(token.logprob)));
    }
    if (!output.end) return;
    request_->release_id();
    const FinishReason reason = output.end->finish.reason;
    end(output.end->refused               ? refused(*output.end->refused)
        : reason == FinishReason::kLength ? "length"
        : reason == FinishReason::kStop   ? "stop"
                                          : "cancelled");
  }
  void drop_if_slow(std::chrono::milliseconds) override {}  // its lines fit the socket's buffer

 private:
  /// False: the client has gone.
  bool read_line() {
    for (char byte = 0; ::recv(socket_.get(), &byte, 1, 0) == 1;) {
      if (byte == '\n') return true;
      const std::lock_guard lock(mutex_);
      line_ += byte;
    }
    return false;
  }
  static std::string refused(const RefusedRequest& why) {
    return cat("refused ", reason_of(why.why), " ", why.retry_ms);
  }
  // Both require that mutex_ is held.
  void write(const std::string& line) const {
    (void)::send(socket_.get(), (line + "\n").data(), line.size() + 1, MSG_NOSIGNAL);
  }
  void end(const std::string& line) {
    if (over_) return;
    write(line);
    over_ = true;
    changed_.notify_all();
  }

  const std::shared_ptr<Intake> intake_;
  const std::string id_;
  const Fd socket_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string line_;
  std::shared_ptr<LiveRequest> request_;
  bool may_read_ = false, over_ = false;
};

/// A front that is not a part of the program: lines over Unix sockets, one request for each
/// connection. It shows that a front only translates: what it shares with the others bounds memory,
/// decides who waits, and runs the request.
class LineFront {
 public:
  explicit LineFront(std::shared_ptr<Intake> intake) : intake_(std::move(intake)) {}

  /// The client's end of a new connection. None if the system has none.
  Fd connect() {
    int ends[2] = {-1, -1};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return Fd();
    const auto call =
        std::make_shared<LineCall>(intake_, cat("line-", threads_.size()), Fd(ends[1]));
    threads_.emplace_back([call] { call->serve(); });
    return Fd(ends[0]);
  }

 private:
  const std::shared_ptr<Intake> intake_;
  std::list<std::jthread> threads_;  // join in the end
};

}  // namespace shoal
