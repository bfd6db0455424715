#include "models/kv_room.h"

#include <gtest/gtest.h>
#include <vector>

#include "runtime/base/cat.h"

namespace shoal {
namespace {

constexpr uint64_t kTotal = 256'000;  // of which 1000 bytes stay free

KvRoom rank_on(int32_t device, uint64_t free_bytes, int64_t block_bytes) {
  return {{device, cat("GPU-", device), "H100"}, free_bytes, kTotal, block_bytes};
}

int32_t blocks_for(const std::vector<KvRoom>& ranks, KvBlocksWanted wanted) {
  const Result<int32_t> blocks = kv_blocks_that_fit(ranks, wanted);
  EXPECT_TRUE(blocks.ok()) << blocks.status().to_string();
  return blocks.ok() ? *blocks : -1;
}

TEST(KvRoom, TheDeviceWithTheLeastRoomDecides) {
  EXPECT_EQ(blocks_for({rank_on(0, 9'000, 10), rank_on(1, 3'000, 20)}, {500, 1}), 100);
  EXPECT_EQ(blocks_for({rank_on(0, 9'000, 10), rank_on(1, 3'000, 20)}, {99, 1}), 99);
}

TEST(KvRoom, RanksOfOneDeviceShareIt) {
  // Each sees the same free memory, or somewhat less if another program takes some meanwhile.
  EXPECT_EQ(blocks_for({rank_on(0, 9'000, 10), rank_on(0, 8'000, 30)}, {500, 1}), 175);
}

TEST(KvRoom, TheUuidSaysWhichRanksShareADevice) {
  KvRoom first = rank_on(0, 9'000, 10), second = rank_on(0, 9'000, 30);
  second.gpu.number = 1;  // CUDA's numbers are those of one process
  EXPECT_EQ(blocks_for({first, second}, {500, 1}), 200);
  EXPECT_EQ(describe_device_memory(std::vector{first, second}, 1).size(), 1u);
  second.gpu = {0, "GPU-9", "H100"};
  EXPECT_EQ(blocks_for({first, second}, {500, 1}), 266) << "8000 B for blocks of 30 B";
  EXPECT_EQ(describe_device_memory(std::vector{first, second}, 1).size(), 2u);
}

TEST(KvRoom, TheShareIsOfTheWholeDeviceLessAllThatIsInUse) {
  // 0.75 of the device are 192,000 B. 156,000 B of the device are in use. It does not matter who
  // uses them.
  EXPECT_EQ(blocks_for({rank_on(0, 100'000, 10)}, {50'000, 1, 0.75}), 3'600);
  EXPECT_EQ(blocks_for({rank_on(0, 100'000, 10), rank_on(0, 100'000, 10)}, {50'000, 1, 0.75}),
            1'800);
  const Status refused =
      kv_blocks_that_fit(std::vector{rank_on(2, 50'000, 10)}, {64, 1, 0.75}).status();
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_TRUE(refused.message().starts_with(
      "GPU 2 (GPU-2, H100) has 0 B of 256000 B (250 KiB) left for KV cache"))
      << refused.message();
  EXPECT_NE(refused.message().find(" 206000 B (201 KiB) are in use, by this group or by others "
                                   "(nvidia-smi lists them), and 192000 B (188 KiB) may be: use a "
                                   "larger --gpu-memory-utilization, a smaller --kv-cache-memory"),
            std::string::npos)
      << refused.message();
}

TEST(KvRoom, ALineForEachDeviceSaysWhereItsMemoryIs) {
  KvRoom first = rank_on(0, 100'000, 10), second = rank_on(0, 100'000, 20);
  first.weight_bytes = 50'000;
  first.activation_bytes = 1'000;
  second.weight_bytes = 40'000;
  second.activation_bytes = 2'000;
  const std::vector<std::string> lines =
      describe_device_memory(std::vector{first, second, rank_on(3, 256'000, 10)}, 100);
  EXPECT_EQ(lines,
            (std::vector<std::string>{
                "memory of GPU 0 (GPU-0, H100), 256000 B (250 KiB): others 63000 B, weights "
                "90000 B (88 KiB), activations and rope table 3000 B, KV cache 3000 B; left "
                "97000 B (95 KiB)",
                "memory of GPU 3 (GPU-3, H100), 256000 B (250 KiB): others 0 B, weights 0 B, "
                "activations and rope table 0 B, KV cache 1000 B; left 255000 B (249 KiB)"}));
}

TEST(KvRoom, TooFewAreRefusedWithTheNumbers) {
  const std::vector<KvRoom> ranks = {rank_on(0, 200'000, 10), rank_on(3, 1'500, 100)};
  EXPECT_EQ(blocks_for(ranks, {64, 5}), 5);
  const Status refused = kv_blocks_that_fit(ranks, {64, 6}).status();
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_TRUE(refused.message().starts_with(
      "GPU 3 (GPU-3, H100) has 500 B of 256000 B (250 KiB) left for KV cache, which is 5 blocks of "
      "100 B; 64 were planned and at least 6 are needed"))
      << refused.message();
  const Status one = kv_blocks_that_fit(std::vector{rank_on(0, 900, 10)}, {1, 1}).status();
  EXPECT_NE(one.message().find("; 1 was planned and at least 1 is needed. "), std::string::npos)
      << one.message();
  EXPECT_EQ(refused.message().find("--gpu-memory-utilization"), std::string::npos)
      << "the share is 1: " << refused.message();
}

TEST(KvRoom, NothingIsLeftOfADeviceThatIsFull) {
  EXPECT_EQ(kv_blocks_that_fit(std::vector{rank_on(0, 900, 10)}, {64, 1}).status().code(),
            Code::kResourceExhausted);
}

}  // namespace
}  // namespace shoal
