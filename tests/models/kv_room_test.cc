#include "models/kv_room.h"

#include <gtest/gtest.h>
#include <vector>

namespace shoal {
namespace {

constexpr uint64_t kTotal = 256'000;  // of which 1000 bytes stay free

KvRoom rank_on(int32_t device, uint64_t free_bytes, int64_t block_bytes) {
  return {device, free_bytes, kTotal, block_bytes};
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

TEST(KvRoom, TooFewAreRefusedWithTheNumbers) {
  const std::vector<KvRoom> ranks = {rank_on(0, 200'000, 10), rank_on(3, 1'500, 100)};
  EXPECT_EQ(blocks_for(ranks, {64, 5}), 5);
  const Status refused = kv_blocks_that_fit(ranks, {64, 6}).status();
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_TRUE(refused.message().starts_with(
      "GPU 3 has 500 B of 256000 B left for KV cache, which is 5 blocks of 100 B; 64 were planned "
      "and at least 6 are needed"))
      << refused.message();
}

TEST(KvRoom, NothingIsLeftOfADeviceThatIsFull) {
  EXPECT_EQ(kv_blocks_that_fit(std::vector{rank_on(0, 900, 10)}, {64, 1}).status().code(),
            Code::kResourceExhausted);
}

}  // namespace
}  // namespace shoal
