#include "runtime/engine/request_queue.h"

#include <gtest/gtest.h>
#include <map>
#include <random>
#include <set>

namespace shoal {
namespace {

constexpr RequestQueue::Engine kIdle{};

/// Adds a request if there is room for it. Returns whether there was; those that are evicted are
/// gone.
bool offer(RequestQueue& queue, uint64_t id, const QueuedRequest& request,
           const RequestQueue::Engine& engine = kIdle, std::set<uint64_t>* gone = nullptr) {
  const RequestQueue::Room room = queue.room_for(request, engine);
  for (const uint64_t other : room.evict) {
    EXPECT_TRUE(queue.remove(other)) << other << " does not wait";
    if (gone != nullptr) gone->insert(other);
  }
  if (room.granted) queue.add(id, request);
  return room.granted;
}

QueuedRequest of(const std::string& client, int64_t tokens = 10, int64_t bytes = 100) {
  return {client, tokens, bytes};
}

TEST(RequestQueue, BoundsRequestsThatRunOrWait) {
  RequestQueue queue({.requests = 5});
  const RequestQueue::Engine two_run{.running = 2};
  for (uint64_t id = 1; id <= 3; ++id) EXPECT_TRUE(offer(queue, id, of("a"), two_run));
  const RequestQueue::Room room = queue.room_for(of("a"), two_run);
  EXPECT_FALSE(room.granted);
  EXPECT_EQ(room.reached, QueueLimit::kRequests);
  EXPECT_TRUE(queue.room_for(of("a"), {.running = 1}).granted) << "one of them has ended";
  EXPECT_TRUE(queue.remove(2));
  EXPECT_FALSE(queue.remove(2));
  EXPECT_TRUE(offer(queue, 4, of("a"), two_run));
}

TEST(RequestQueue, BoundsTokensAndBytesExceptOfARequestAlone) {
  RequestQueue queue({.tokens = 100, .bytes = 1000});
  EXPECT_TRUE(queue.room_for(of("a", 500, 5000), kIdle).granted);
  EXPECT_TRUE(offer(queue, 1, of("a", 60, 600)));
  const RequestQueue::Engine sixty{.prompt_tokens = 60};
  EXPECT_TRUE(queue.room_for(of("a", 40, 400), sixty).granted);
  EXPECT_EQ(queue.room_for(of("a", 41, 400), sixty).reached, QueueLimit::kTokens);
  EXPECT_EQ(queue.room_for(of("a", 40, 401), sixty).reached, QueueLimit::kBytes);
  EXPECT_EQ(queue.bytes(), 600);
}

TEST(RequestQueue, AClientAloneMayFillIt) {
  RequestQueue queue({.requests = 8});
  for (uint64_t id = 1; id <= 8; ++id) EXPECT_TRUE(offer(queue, id, of("greedy")));
  EXPECT_FALSE(offer(queue, 9, of("greedy"))) << "its own requests are not evicted for it";
}

TEST(RequestQueue, TheLatestOfTheGreedyClientAreEvictedUntilItHasHalf) {
  RequestQueue queue({.requests = 8});
  for (uint64_t id = 1; id <= 8; ++id) ASSERT_TRUE(offer(queue, id, of("greedy")));
  std::set<uint64_t> gone;
  for (uint64_t id = 9; id <= 12; ++id)
    EXPECT_TRUE(offer(queue, id, of(id % 2 == 0 ? "even" : "odd"), kIdle, &gone));
  EXPECT_EQ(gone, (std::set<uint64_t>{5, 6, 7, 8}));
  EXPECT_FALSE(offer(queue, 13, of("even"))) << "nobody has more than half";
  EXPECT_FALSE(offer(queue, 13, of("new")));
}

TEST(RequestQueue, OneLargeRequestTakesTheRoomOfSeveral) {
  RequestQueue queue({.bytes = 1000});
  for (uint64_t id = 1; id <= 10; ++id) ASSERT_TRUE(offer(queue, id, of("greedy")));
  std::set<uint64_t> gone;
  EXPECT_TRUE(offer(queue, 11, of("modest", 10, 300), kIdle, &gone));
  EXPECT_EQ(gone, (std::set<uint64_t>{8, 9, 10}));
  EXPECT_FALSE(offer(queue, 12, of("modest", 10, 600), kIdle, &gone))
      << "it would have more than the greedy one";
  EXPECT_EQ(queue.bytes(), 1000) << "and nobody was evicted for nothing";
}

TEST(RequestQueue, EachLimitHasItsOwnGreedyClient) {
  RequestQueue queue({.requests = 10, .bytes = 1000});
  for (uint64_t id = 1; id <= 7; ++id) ASSERT_TRUE(offer(queue, id, of("many", 10, 10)));
  for (uint64_t id = 8; id <= 10; ++id) ASSERT_TRUE(offer(queue, id, of("large", 10, 300)));
  EXPECT_EQ(queue.bytes(), 970);
  std::set<uint64_t> gone;
  EXPECT_TRUE(offer(queue, 11, of("modest", 10, 50), kIdle, &gone))
      << "places are short because of one client, and then bytes because of another one";
  EXPECT_EQ(gone, std::set<uint64_t>{10})
      << "whose place suffices, so that the first keeps its own";
}

TEST(RequestQueue, AClientThatIsGreedyByAnotherLimitIsNotEvictedForThis) {
  RequestQueue queue({.requests = 100, .bytes = 1000});
  for (uint64_t id = 1; id <= 3; ++id) ASSERT_TRUE(offer(queue, id, of("large", 10, 300)));
  for (uint64_t id = 4; id <= 13; ++id) ASSERT_TRUE(offer(queue, id, of("many", 10, 10)));
  std::set<uint64_t> gone;
  EXPECT_TRUE(offer(queue, 14, of("modest", 10, 100), kIdle, &gone));
  EXPECT_EQ(gone, std::set<uint64_t>{3}) << "many has most requests, but bytes are short";
}

TEST(RequestQueue, SeveralLimitsEvictTheLatestOfEachGreedyClient) {
  RequestQueue queue({.requests = 10, .tokens = 1000, .bytes = 1000});
  for (uint64_t id = 1; id <= 4; ++id) ASSERT_TRUE(offer(queue, id, of("tokens", 230, 10)));
  for (uint64_t id = 5; id <= 8; ++id) ASSERT_TRUE(offer(queue, id, of("bytes", 5, 230)));
  const RequestQueue::Engine engine{.prompt_tokens = 940};
  std::set<uint64_t> gone;
  EXPECT_TRUE(offer(queue, 9, of("modest", 100, 100), engine, &gone));
  EXPECT_EQ(gone, (std::set<uint64_t>{4, 8}));
  EXPECT_EQ(queue.room_for(of("bytes", 100, 400), {.prompt_tokens = 805}).reached,
            QueueLimit::kBytes)
      << "what it would evict is its own";
}

TEST(RequestQueue, TwoClientsDoNotEvictEachOther) {
  RequestQueue queue({.requests = 1});
  EXPECT_TRUE(offer(queue, 1, of("a")));
  EXPECT_FALSE(offer(queue, 2, of("b")));
  RequestQueue three({.requests = 3});
  for (uint64_t id = 1; id <= 3; ++id) ASSERT_TRUE(offer(three, id, of("a")));
  EXPECT_TRUE(offer(three, 4, of("b")));
  EXPECT_FALSE(offer(three, 5, of("b"))) << "a has two of three, and b would have two";
}

TEST(RequestQueue, TellsWhoHasWaitedForTooLong) {
  RequestQueue queue({.seconds = 2});
  queue.add(1, {"a", 1, 1, 10.0});
  queue.add(2, {"a", 1, 1, 11.5});
  EXPECT_TRUE(queue.late(12.0).empty());
  EXPECT_EQ(queue.late(12.1), std::vector<uint64_t>{1});
  EXPECT_EQ(queue.late(13.6), (std::vector<uint64_t>{1, 2}));
}

TEST(RequestQueue, WhatRunsNeitherCountsAsTheClientsNorIsEvicted) {
  RequestQueue queue({.requests = 10});
  const RequestQueue::Engine four_run{.running = 4};
  for (uint64_t id = 1; id <= 6; ++id) ASSERT_TRUE(offer(queue, id, of("greedy"), four_run));
  std::set<uint64_t> gone;
  for (uint64_t id = 7; id <= 9; ++id)
    EXPECT_TRUE(offer(queue, id, of("modest"), four_run, &gone)) << "half of the six places";
  EXPECT_EQ(gone, (std::set<uint64_t>{4, 5, 6}));
  EXPECT_FALSE(offer(queue, 10, of("modest"), four_run));
}

TEST(RequestQueue, TheSurplusIsWhatOneHasBeyondHalfOfALength) {
  RequestQueue queue({});
  for (uint64_t id = 1; id <= 7; ++id) ASSERT_TRUE(offer(queue, id, of("greedy")));
  for (uint64_t id = 8; id <= 9; ++id) ASSERT_TRUE(offer(queue, id, of("modest")));
  EXPECT_EQ(queue.surplus_beside("modest", 9), (std::vector<uint64_t>{7, 6, 5}));
  EXPECT_EQ(queue.surplus_beside("new", 8), (std::vector<uint64_t>{7, 6, 5}));
  EXPECT_TRUE(queue.surplus_beside("new", 14).empty());
  EXPECT_TRUE(queue.surplus_beside("greedy", 8).empty());
}

/// 10,000 requests of five clients of which one sends most. The others, which have one request here
/// at a time, are never refused, and the book is right at all times.
TEST(RequestQueue, ModestClientsAlwaysGetIn) {
  std::mt19937 random(7);
  const QueueLimits limits{.requests = 20, .tokens = 2000, .bytes = 20'000};
  RequestQueue queue(limits);
  std::map<uint64_t, QueuedRequest> here;
  for (uint64_t id = 1; id <= 10'000; ++id) {
    const bool greedy = random() % 5 != 0;
    const std::string client = greedy ? "greedy" : "modest" + std::to_string(random() % 4);
    const auto same = [&](const auto& entry) { return entry.second.client == client; };
    if (!greedy && std::any_of(here.begin(), here.end(), same)) continue;
    const auto tokens = static_cast<int64_t>(1 + random() % 200);
    const QueuedRequest request = of(client, tokens, 10 * static_cast<int64_t>(1 + random() % 200));
    RequestQueue::Engine engine;
    for (const auto& entry : here) engine.prompt_tokens += entry.second.tokens;
    std::set<uint64_t> gone;
    const bool taken = offer(queue, id, request, engine, &gone);
    EXPECT_TRUE(taken || greedy) << client << " is refused at " << id;
    for (const uint64_t other : gone) {
      EXPECT_EQ(here.at(other).client, "greedy");
      here.erase(other);
    }
    if (taken) here.emplace(id, request);
    if (random() % 4 == 0 && !here.empty()) {
      EXPECT_TRUE(queue.remove(here.begin()->first));
      here.erase(here.begin());
    }
    int64_t sum = 0, bytes = 0;
    for (const auto& entry : here) {
      sum += entry.second.tokens;
      bytes += entry.second.bytes;
    }
    ASSERT_EQ(queue.size(), static_cast<int64_t>(here.size()));
    ASSERT_EQ(queue.bytes(), bytes);
    ASSERT_TRUE(here.size() <= 20 && sum <= 2000 && bytes <= 20'000);
  }
  while (!here.empty()) {
    EXPECT_TRUE(queue.remove(here.begin()->first));
    here.erase(here.begin());
  }
  EXPECT_EQ(queue.bytes(), 0);
}

}  // namespace
}  // namespace shoal
