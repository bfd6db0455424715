#include "runtime/engine/request_queue.h"

#include <algorithm>
#include <utility>

#include "runtime/engine/fair_share.h"

namespace shoal {

int64_t RequestQueue::amount(const Held& held, QueueLimit of) {
  switch (of) {
    case QueueLimit::kRequests:
      return held.requests;
    case QueueLimit::kTokens:
      return held.tokens;
    case QueueLimit::kBytes:
      return held.bytes;
  }
  return 0;
}

RequestQueue::Held RequestQueue::held_by(const std::string& client) const {
  const auto found = held_.find(client);
  return found == held_.end() ? Held{} : found->second;
}

/// The first limit that the request would pass if this much were left beside it.
std::optional<QueueLimit> RequestQueue::reached(const QueuedRequest& request, const Engine& engine,
                                                const Held& left) const {
  if (engine.running + left.requests >= limits_.requests) return QueueLimit::kRequests;
  if (left.tokens > 0 && left.tokens + request.tokens > limits_.tokens) return QueueLimit::kTokens;
  if (left.requests > 0 && left.bytes + request.bytes > limits_.bytes) return QueueLimit::kBytes;
  return std::nullopt;
}

RequestQueue::Room RequestQueue::room_for(const QueuedRequest& request,
                                          const Engine& engine) const {
  // What is left when those that are evicted are gone.
  Held left{size(), engine.prompt_tokens, bytes_};
  std::optional<QueueLimit> limit = reached(request, engine, left);
  if (!limit) return {.granted = true};
  const auto greedy = heaviest(*limit);
  if (greedy == held_.end() || greedy->first == request.client) return {.reached = *limit};

  const Held own = held_by(request.client);
  const Held wanted{own.requests + 1, own.tokens + request.tokens, own.bytes + request.bytes};
  const Held most{limits_.requests - engine.running,
                  limits_.tokens - std::max<int64_t>(engine.prompt_tokens - tokens_, 0),
                  limits_.bytes};
  Held theirs = greedy->second;
  std::vector<uint64_t> evict;
  for (auto it = waiting_.rbegin(); limit && it != waiting_.rend(); ++it) {
    const QueuedRequest& other = it->second;
    if (other.client != greedy->first) continue;
    const int64_t held = amount(theirs, *limit);
    for (Held* counted : {&theirs, &left}) {
      counted->requests -= 1;
      counted->tokens -= other.tokens;
      counted->bytes -= other.bytes;
    }
    if (!is_fair({.held = held,
                  .kept = amount(theirs, *limit),
                  .wanted = amount(wanted, *limit),
                  .limit = amount(most, *limit)}))
      break;
    evict.push_back(it->first);
    limit = reached(request, engine, left);
  }
  if (limit) return {.reached = *limit};
  return {.granted = true, .evict = std::move(evict)};
}

RequestQueue::HeldBy::const_iterator RequestQueue::heaviest(QueueLimit of) const {
  return std::max_element(held_.begin(), held_.end(), [of](const auto& a, const auto& b) {
    return amount(a.second, of) < amount(b.second, of);
  });
}

std::vector<uint64_t> RequestQueue::surplus_beside(const std::string& client,
                                                   int64_t length) const {
  const auto greedy = heaviest(QueueLimit::kRequests);
  if (greedy == held_.end() || greedy->first == client) return {};
  std::vector<uint64_t> ids;
  int64_t theirs = greedy->second.requests;
  const int64_t wanted = held_by(client).requests + 1;
  for (auto it = waiting_.rbegin(); it != waiting_.rend(); ++it) {
    if (it->second.client != greedy->first) continue;
    if (!is_fair({.held = theirs, .kept = theirs - 1, .wanted = wanted, .limit = length})) break;
    --theirs;
    ids.push_back(it->first);
  }
  return ids;
}

void RequestQueue::add(uint64_t id, QueuedRequest request) {
  Held& held = held_[request.client];
  held.requests += 1;
  held.tokens += request.tokens;
  held.bytes += request.bytes;
  tokens_ += request.tokens;
  bytes_ += request.bytes;
  waiting_.emplace_hint(waiting_.end(), id, std::move(request));
}

bool RequestQueue::remove(uint64_t id) {
  const auto found = waiting_.find(id);
  if (found == waiting_.end()) return false;
  const QueuedRequest& request = found->second;
  const auto held = held_.find(request.client);
  held->second.requests -= 1;
  held->second.tokens -= request.tokens;
  held->second.bytes -= request.bytes;
  if (held->second.requests == 0) held_.erase(held);
  tokens_ -= request.tokens;
  bytes_ -= request.bytes;
  waiting_.erase(found);
  return true;
}

const QueuedRequest* RequestQueue::find(uint64_t id) const {
  const auto found = waiting_.find(id);
  return found == waiting_.end() ? nullptr : &found->second;
}

std::vector<uint64_t> RequestQueue::late(double now_s) const {
  std::vector<uint64_t> ids;
  for (const auto& [id, request] : waiting_) {
    if (now_s - request.since_s <= limits_.seconds) break;  // and so do all that came later
    ids.push_back(id);
  }
  return ids;
}

}  // namespace shoal
