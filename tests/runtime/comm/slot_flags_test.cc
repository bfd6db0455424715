// A rank that misses its wake-up looks again by itself after a while, so that collectives only
// become slow. Here nothing but the wake-up ends the sleep in time.
#include "runtime/comm/slot_flags.h"

#include <array>
#include <chrono>
#include <functional>
#include <gtest/gtest.h>
#include <thread>

#include "runtime/base/deadline.h"
#include "tests/guard.h"
#include "tests/moved_clock.h"

namespace shoal {
namespace {

constexpr int kLongMs = static_cast<int>(kGuardMs);

/// Lets rank 0 sleep until rank 1 has published a step. Once it sleeps, `act` is called for rank 1.
/// Returns how long the sleep took, in seconds.
double sleep_until(const std::function<void(SharedFlags&)>& act) {
  std::array<RankControl, 2> controls{};
  auto* bytes = reinterpret_cast<std::byte*>(controls.data());
  SharedFlags sleeper({0, 2}, bytes);
  SharedFlags peer({1, 2}, bytes);
  const Clock::time_point began = Clock::now();
  std::thread waker([&] {
    while (!(peer.word(1) & kSleepers)) std::this_thread::yield();
    // The flag is set just before the system call. Acting before it would end it at once.
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    act(peer);
  });
  sleeper.sleep(1, 1, kLongMs);
  const double seconds = seconds_since(began);
  waker.join();
  return seconds;
}

TEST(SlotFlagsTest, APublicationWakesASleeper) {
  EXPECT_LT(sleep_until([](SharedFlags& peer) { peer.publish(1, 7); }), 0.75e-3 * kLongMs);
}

TEST(SlotFlagsTest, ARankThatLeavesWakesASleeper) {
  EXPECT_LT(sleep_until([](SharedFlags& peer) { peer.close(); }), 0.75e-3 * kLongMs);
}

TEST(SlotFlagsTest, WhatHasHappenedAlreadyIsNotWaitedFor) {
  std::array<RankControl, 2> controls{};
  auto* bytes = reinterpret_cast<std::byte*>(controls.data());
  SharedFlags sleeper({0, 2}, bytes);
  SharedFlags peer({1, 2}, bytes);
  const Clock::time_point began = Clock::now();
  peer.publish(1, 7);
  sleeper.sleep(1, 1, kLongMs);
  peer.close();
  sleeper.sleep(1, 2, kLongMs);
  EXPECT_LT(seconds_since(began), 0.75e-3 * kLongMs);
}

TEST(SlotFlagsTest, AStepStatesItsMomentToWhoSleepsForIt) {
  std::array<RankControl, 2> controls{};
  auto* bytes = reinterpret_cast<std::byte*>(controls.data());
  SharedFlags sleeper({0, 2}, bytes);
  SharedFlags peer({1, 2}, bytes);
  const MovedClock clock;
  peer.publish(1, 7);
  EXPECT_EQ(sleeper.ready_at(1, 0).count(), 0) << "nobody sleeps";
  sleeper.sleep(1, 2, 0);
  MovedClock::advance(1);
  const RunningClock::duration ready_at = RunningClock::wall();
  peer.publish(2, 7);
  MovedClock::advance(1);
  EXPECT_EQ(sleeper.ready_at(1, 1).count(), ready_at.count());
  peer.publish(3, 7);
  EXPECT_EQ(sleeper.ready_at(1, 2).count(), 0) << "nobody sleeps any more";
  EXPECT_EQ(sleeper.ready_at(1, 1).count(), ready_at.count()) << "it is another slot's";
}

}  // namespace
}  // namespace shoal
