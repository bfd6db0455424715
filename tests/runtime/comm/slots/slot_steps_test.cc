// What a wait counts that ends while the rank polls. Flags that the test makes up say when the peer
// comes, and move the clock.
#include "runtime/comm/slots/slot_steps.h"

#include <cstddef>
#include <gtest/gtest.h>

#include "tests/moved_clock.h"

namespace shoal {
namespace {

constexpr uint64_t kTag = 7;

/// What happens to the words of the peer.
struct Script {
  int comes_at;               // the poll that finds its step
  bool states_moment = true;  // otherwise nobody slept when it published
  int polls = 0;
  RunningClock::duration ready_at{0};

  void poll() {
    if (++polls != comes_at) return;
    MovedClock::advance(0.005);
    if (states_moment) ready_at = RunningClock::wall();
    MovedClock::advance(0.060);  // this rank is held up
  }
};

template <bool kCalls>
struct ScriptedFlags {
  static constexpr bool kPollsAreCalls = kCalls;
  Script* script;
  CpuMask mask = {};

  uint32_t word(int) const {
    script->poll();
    return script->polls >= script->comes_at ? kStep : 0;
  }
  uint64_t tag(int, uint32_t) const { return kTag; }
  RunningClock::duration ready_at(int, uint32_t) const { return script->ready_at; }
  void publish(uint32_t, uint64_t) {}
  void close() {}
  const CpuMask& cpus(int) const { return mask; }
  void sleep(int, uint32_t, int) {}
};

struct OneSlot {
  static constexpr bool kDirect = true;
  std::byte bytes[64];
  std::byte* own(uint32_t) { return bytes; }
};

/// How long rank 0 of 2 has waited in one step, in milliseconds.
template <bool kCalls>
int64_t waited_ms(Script script) {
  const MovedClock clock;
  SlotSteps<ScriptedFlags<kCalls>, OneSlot> steps({"scripted", World{0, 2}, 64, 60'000, nullptr},
                                                  OneSlot{}, ScriptedFlags<kCalls>{&script});
  EXPECT_TRUE(steps.begin(kTag).ok());
  EXPECT_TRUE(steps.exchange().ok());
  return std::chrono::duration_cast<std::chrono::milliseconds>(steps.waited().all).count();
}

TEST(SlotSteps, AWaitThatEndsWhilePollingCountsUntilThePeerWasReady) {
  EXPECT_EQ(waited_ms<false>({.comes_at = 20}), 5);
  EXPECT_EQ(waited_ms<true>({.comes_at = 20}), 5);
}

TEST(SlotSteps, TheFirstPollsCountIfTheyAreSystemCalls) {
  EXPECT_EQ(waited_ms<false>({.comes_at = 5}), 0) << "they take a microsecond";
  EXPECT_EQ(waited_ms<true>({.comes_at = 5}), 5);
}

TEST(SlotSteps, WithoutAMomentItCountsUpToTheLastLookInVain) {
  EXPECT_EQ(waited_ms<false>({.comes_at = 20, .states_moment = false}), 0);
}

}  // namespace
}  // namespace shoal
