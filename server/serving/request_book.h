#pragma once
#include <cstdint>
#include <mutex>

#include "server/serving/request_figures.h"

namespace shoal {

/// The one lock under which the requests of a server change, and what is counted about them.
/// The Intake (calls, ids, output), the ServingState (whether requests are taken) and the
/// InferenceLoop (queue, engine) share one book, so that a request changes in all of them at once.
/// Nobody calls a front, an OpenRequest or a step function, or destroys one, while it holds the
/// lock. Thread-safe.
class RequestBook {
 public:
  /// The ranges of lengths that are counted depend on max_model_len, in tokens.
  explicit RequestBook(int32_t max_model_len) : counts_(max_model_len) {}

  /// Holds the lock. A function that takes one expects its caller to hold that of the book which
  /// they share.
  class Lock : public std::unique_lock<std::mutex> {
   public:
    explicit Lock(const RequestBook& book) : std::unique_lock<std::mutex>(book.mutex_) {}
  };

  /// What has been counted since the start.
  RequestCounts counts() const {
    const Lock lock(*this);
    return counts_;
  }
  RequestCounts& counts(const Lock&) { return counts_; }

 private:
  mutable std::mutex mutex_;
  RequestCounts counts_;
};

}  // namespace shoal
