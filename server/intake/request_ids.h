#pragma once
#include <deque>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "server/serving/refused_request.h"

namespace shoal {

class LiveRequest;

/// Which ids of requests are in use, and which were a short time ago. It is part of Intake, whose
/// book guards it.
class RequestIds {
 public:
  /// Why a client may not choose this id: it is too long, or not text to a terminal.
  static RequestError check(const std::string& id);

  /// The request that has this id; nullptr: none.
  LiveRequest* find(const std::string& id) const;
  /// Precondition: nobody has the request's id. Call release() before the request is destroyed.
  void add(LiveRequest* request);
  /// The id can be used again, and is remembered for a while. No effect if another request has it.
  void release(const LiveRequest& request);
  /// Whether the id was released among the last few thousand.
  bool was_released(const std::string& id) const { return released_set_.contains(id); }

  const auto& in_use() const { return in_use_; }

 private:
  std::unordered_map<std::string, LiveRequest*> in_use_;
  std::deque<std::string> released_;  // oldest first
  std::unordered_set<std::string> released_set_;
};

}  // namespace shoal
