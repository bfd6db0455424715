#include "runtime/engine/request_queue.h"

#include <algorithm>
#include <set>
#include <utility>

#include "runtime/engine/fair_share.h"

namespace shoal {

int64_t RequestQueue::amount(const Held& held, QueueLimit limit) {
  constexpr int64_t Held::*kAmounts[] = {&Held::requests, &Held::tokens, &Held::bytes};
  return held.*kAmounts[static_cast<size_t>(limit)];  // in the order of QueueLimit
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

/// Evicts the latest requests of the client that holds the most by this limit, as long as the
/// request would pass it and that is fair. Returns whether the request keeps within it then.
bool RequestQueue::make_room(QueueLimit limit, const QueuedRequest& request, const Engine& engine,
                             Evicted* evicted) const {
  const auto greedy = heaviest(limit, *evicted);
  if (greedy == held_.end() || greedy->first == request.client) return false;
  const Held wanted = held_by(request.client) + of(request);
  const Held most{limits_.requests - engine.running,
                  limits_.tokens - std::max<int64_t>(engine.prompt_tokens - all_.tokens, 0),
                  limits_.bytes};
  Evicted::Part& part = evicted->parts[greedy->first];
  for (auto it = waiting_.rbegin(); it != waiting_.rend(); ++it) {
    if (it->second.client != greedy->first || it->first >= part.from) continue;
    const Held theirs = greedy->second - part.held, one = of(it->second);
    if (!is_fair({.held = amount(theirs, limit),
                  .kept = amount(theirs - one, limit),
                  .wanted = amount(wanted, limit),
                  .limit = amount(most, limit)}))
      return false;
    part = {part.held + one, it->first};
    evicted->left = evicted->left - one;
    evicted->ids.push_back(it->first);
    if (reached(request, engine, evicted->left) != limit) return true;
  }
  return false;
}

/// Takes back what has become needless, because a later limit evicted others too: of each client
/// the earliest requests first, so that its latest ones are the ones that go.
void RequestQueue::spare_needless(const QueuedRequest& request, const Engine& engine,
                                  Evicted* evicted) const {
  std::set<std::string> settled;
  for (size_t i = evicted->ids.size(); i-- > 0;) {
    const QueuedRequest& other = waiting_.at(evicted->ids[i]);
    if (settled.contains(other.client)) continue;
    const Held with_it = evicted->left + of(other);
    if (reached(request, engine, with_it)) {
      settled.insert(other.client);
    } else {
      evicted->left = with_it;
      evicted->ids.erase(evicted->ids.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
}

RequestQueue::Room RequestQueue::room_for(const QueuedRequest& request,
                                          const Engine& engine) const {
  Evicted evicted{.left = {all_.requests, engine.prompt_tokens, all_.bytes}};
  while (const std::optional<QueueLimit> limit = reached(request, engine, evicted.left))
    if (!make_room(*limit, request, engine, &evicted)) return {.reached = *limit};
  if (evicted.parts.size() > 1) spare_needless(request, engine, &evicted);
  return {.granted = true, .evict = std::move(evicted.ids)};
}

RequestQueue::HeldBy::const_iterator RequestQueue::heaviest(QueueLimit limit,
                                                            const Evicted& evicted) const {
  const auto kept = [&](const auto& client) {
    const auto found = evicted.parts.find(client.first);
    return amount(client.second, limit) -
           (found == evicted.parts.end() ? 0 : amount(found->second.held, limit));
  };
  return std::max_element(held_.begin(), held_.end(),
                          [&](const auto& a, const auto& b) { return kept(a) < kept(b); });
}

std::vector<uint64_t> RequestQueue::surplus_beside(const std::string& client,
                                                   int64_t length) const {
  const auto greedy = heaviest(QueueLimit::kRequests, {});
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
  held = held + of(request);
  all_ = all_ + of(request);
  waiting_.emplace_hint(waiting_.end(), id, std::move(request));
}

bool RequestQueue::remove(uint64_t id) {
  const auto found = waiting_.find(id);
  if (found == waiting_.end()) return false;
  const QueuedRequest& request = found->second;
  const auto held = held_.find(request.client);
  held->second = held->second - of(request);
  if (held->second.requests == 0) held_.erase(held);
  all_ = all_ - of(request);
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
