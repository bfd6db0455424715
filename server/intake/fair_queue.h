#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <optional>
#include <string>
#include <utility>

#include "runtime/engine/fair_share.h"

namespace shoal {

/// A queue in which clients take turns, so that nobody waits for all that another client has
/// queued. Items of one client come in the order in which it added them. Not thread-safe.
template <typename Item>
class FairQueue {
 public:
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  /// Whether an item of another client is here.
  bool any_but(const std::string& client) const {
    return lines_.size() > 1 || (lines_.size() == 1 && lines_.front().client != client);
  }

  void push(const std::string& client, Item item) {
    auto line = find(client);
    if (line == lines_.end()) line = lines_.insert(line, Line{client, {}});
    line->items.push_back(std::move(item));
    ++size_;
  }

  /// Takes the next item of the first client in turn for which may(client) is true. That client is
  /// then the last in turn.
  template <typename May>
  std::optional<Item> pop_if(May may) {
    const auto line = std::find_if(lines_.begin(), lines_.end(),
                                   [&](const Line& one) { return may(one.client); });
    if (line == lines_.end()) return std::nullopt;
    Item item = std::move(line->items.front());
    line->items.pop_front();
    lines_.splice(lines_.end(), lines_, line);
    shrink(line);
    return item;
  }
  std::optional<Item> pop() {
    return pop_if([](const std::string&) { return true; });
  }

  /// Makes room for an item of this client in a queue of at most `most` items: takes the latest
  /// item of the client that has the most, if that is another one and this is_fair().
  std::optional<Item> evict_for(const std::string& client, size_t most) {
    const auto line = std::max_element(
        lines_.begin(), lines_.end(),
        [](const Line& a, const Line& b) { return a.items.size() < b.items.size(); });
    if (line == lines_.end() || line->client == client) return std::nullopt;
    const auto held = static_cast<int64_t>(line->items.size());
    const auto own = find(client);
    if (!is_fair({.held = held,
                  .kept = held - 1,
                  .wanted = own == lines_.end() ? 1 : static_cast<int64_t>(own->items.size()) + 1,
                  .limit = static_cast<int64_t>(most)}))
      return std::nullopt;
    Item item = std::move(line->items.back());
    line->items.pop_back();
    shrink(line);
    return item;
  }

  /// No effect if the item is not here.
  void remove(const std::string& client, const Item& item) {
    const auto line = find(client);
    if (line == lines_.end()) return;
    const auto found = std::find(line->items.begin(), line->items.end(), item);
    if (found == line->items.end()) return;
    line->items.erase(found);
    shrink(line);
  }

 private:
  struct Line {
    std::string client;
    std::deque<Item> items;  // at least one
  };
  using Lines = std::list<Line>;  // in the order of their turns

  typename Lines::iterator find(const std::string& client) {
    return std::find_if(lines_.begin(), lines_.end(),
                        [&](const Line& one) { return one.client == client; });
  }

  /// One item of the line was taken.
  void shrink(typename Lines::iterator line) {
    --size_;
    if (line->items.empty()) lines_.erase(line);
  }

  Lines lines_;
  size_t size_ = 0;
};

}  // namespace shoal
