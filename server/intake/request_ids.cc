#include "server/intake/request_ids.h"

#include "runtime/base/text_values.h"
#include "server/intake/live_request.h"

namespace shoal {

namespace {
// Enough for Abort to distinguish "just finished" from "unknown". Bounded, because ids come from
// clients.
constexpr size_t kRememberedIds = 4096;
constexpr size_t kMaxRequestIdBytes = 256;  // it is echoed in every message
}  // namespace

/// Refuses what is not text to a terminal, because the id is logged and a client could forge log
/// lines with it.
RequestError RequestIds::check(const std::string& id) {
  if (id.size() > kMaxRequestIdBytes)
    return invalid_field(
        RequestField::kRequestId,
        cat("request_id must have at most ", kMaxRequestIdBytes, " bytes, not ", id.size()));
  if (printable(id) != id)
    return invalid_field(RequestField::kRequestId,
                         "request_id must not have control characters, separators of lines, or "
                         "marks of bidirectional text");
  return {};
}

LiveRequest* RequestIds::find(const std::string& id) const {
  const auto found = in_use_.find(id);
  return found == in_use_.end() ? nullptr : found->second;
}

void RequestIds::add(LiveRequest* request) {
  in_use_.emplace(request->id(), request);
}

void RequestIds::release(const LiveRequest& request) {
  const auto found = in_use_.find(request.id());
  if (found == in_use_.end() || found->second != &request) return;
  in_use_.erase(found);
  if (!released_set_.insert(request.id()).second) return;
  released_.push_back(request.id());
  if (released_.size() > kRememberedIds) {
    released_set_.erase(released_.front());
    released_.pop_front();
  }
}

}  // namespace shoal
