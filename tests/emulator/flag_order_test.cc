// Slots that two streams share by flags: what may be read and written when.
#include "tests/emulator/flag_order.h"

#include <cstdint>
#include <string>
#include <vector>

#include "tests/emulator/on_device.h"
#include "tests/emulator/report.h"

namespace shoal::emulator {
namespace {

/// What a kernel does, in this order, with a flag, two slots, and another flag. -1: nothing.
struct Act {
  int stream = 0;
  int see = -1, read = -1, write = -1, set = -1;
  uint64_t value = 0;  ///< of the flag
};
constexpr int kA = 0, kB = 1;  // the streams, and the flags that they set

struct ActArgs {
  uint64_t *see, *read, *write, *set;
  uint64_t value;
};
void act(ActArgs args) {
  if (args.see != nullptr) cuda::load_acquire(args.see);
  if (args.read != nullptr) cuda::load_global(args.read);
  if (args.write != nullptr) cuda::store_global(args.write, args.value);
  if (args.set != nullptr) cuda::store_release(args.set, args.value);
}

/// The first report while kernels do this, one after the other. Flags and slots are in one piece of
/// memory, in which the flag of A is set once before.
std::string report_of(std::vector<Act> acts) {
  acts.insert(acts.begin(), {.stream = kA, .set = kA, .value = 1});
  return in_child([&] {
    set("STREAMS", "at-once");
    const OnDevice<uint64_t> memory(std::vector<uint64_t>(64, 0));
    const auto flag = [&](int number) { return number < 0 ? nullptr : memory.get() + number; };
    const auto slot = [&](int number) {
      return number < 0 ? nullptr : memory.get() + 8 * (1 + number);
    };
    cudaStream_t streams[2] = {};
    for (cudaStream_t& one : streams) cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking);
    for (const Act& one : acts) {
      const ActArgs args{flag(one.see), slot(one.read), slot(one.write), flag(one.set), one.value};
      cuda::launch(&act, 1, 1, args, streams[one.stream]);
    }
    cudaDeviceSynchronize();
    return first_report();
  });
}

class FlagOrderTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!kFlagsAreFollowed) GTEST_SKIP() << "ThreadSanitizer follows flags by itself";
  }
};

TEST_F(FlagOrderTest, ASlotMayBeReadOnceTheFlagOfItsWriterWasSeen) {
  const Act push{.stream = kA, .write = 0, .set = kA, .value = 2};
  EXPECT_EQ(report_of({push, {.stream = kB, .see = kA, .read = 0}}), "");
  EXPECT_EQ(report_of({push, {.stream = kB, .see = kA}, {.stream = kB, .read = 0}}), "");
  EXPECT_EQ(report_of({push, {.stream = kA, .read = 0}}), "") << "its own";
}

TEST_F(FlagOrderTest, ASlotThatIsReadTooEarlyIsReported) {
  const std::string too_early = "slot that is read too early at flag_order_test.cc:";
  const Act push{.stream = kA, .write = 0, .set = kA, .value = 2};
  for (const std::vector<Act>& acts : std::vector<std::vector<Act>>{
           {push, {.stream = kB, .read = 0}},
           {{.stream = kB, .see = kA}, push, {.stream = kB, .read = 0}},
           {{.stream = kA, .write = 0}, {.stream = kB, .see = kA, .read = 0}}})
    EXPECT_EQ(report_of(acts).substr(0, too_early.size()), too_early);
}

TEST_F(FlagOrderTest, ASlotThatIsReusedTooEarlyIsReported) {
  const std::string too_early = "slot that is reused too early at flag_order_test.cc:";
  const Act push{.stream = kA, .write = 0, .set = kA, .value = 2};
  const Act read{.stream = kB, .see = kA, .read = 0};
  Act read_and_say = read;
  read_and_say.set = kB;
  read_and_say.value = 1;
  const Act again{.stream = kA, .see = kB, .write = 0, .value = 3};
  EXPECT_EQ(report_of({push, read, again}).substr(0, too_early.size()), too_early);
  // Other lanes of that kernel may not have read yet.
  EXPECT_EQ(report_of({push, read_and_say, again}).substr(0, too_early.size()), too_early);
  const Act say_later{.stream = kB, .set = kB, .value = 1};
  EXPECT_EQ(report_of({push, read, say_later, again}), "");
}

/// Both streams push to each other in every step, as the all_reduce does.
std::string report_of_steps(int slots) {
  std::vector<Act> acts;
  for (int step = 0; step < 5; ++step) {
    const auto value = static_cast<uint64_t>(2 + step);
    const int slot = step % slots;
    for (const int stream : {kA, kB})
      acts.push_back({.stream = stream, .write = 2 * stream + slot, .set = stream, .value = value});
    for (const int stream : {kA, kB}) {
      const int other = 1 - stream;
      acts.push_back({.stream = stream, .see = other, .read = 2 * other + slot});
    }
  }
  return report_of(acts);
}

TEST_F(FlagOrderTest, TwoSlotsAreEnoughAndOneIsNot) {
  EXPECT_EQ(report_of_steps(2), "");
  const std::string early = "slot that is reused too early";
  EXPECT_EQ(report_of_steps(1).substr(0, early.size()), early);
}

}  // namespace
}  // namespace shoal::emulator
