#include "runtime/comm/slots/shm_communicator.h"

#include <gtest/gtest.h>
#include <numeric>
#include <string>
#include <vector>

#include "runtime/memory/shm_segment.h"

namespace shoal {
namespace {

TEST(ShmCommunicatorTest, BytesFollowTheFormula) {
  EXPECT_EQ(shm_communicator_bytes(2, 262144), 2u * (256 + 2 * 262144));
  EXPECT_EQ(shm_communicator_bytes(1, 4096), 8448u);
  EXPECT_EQ(shm_communicator_bytes(16, 4096), 135168u);
  EXPECT_EQ(shm_communicator_bytes(4, 1), shm_communicator_bytes(4, 64));  // whole cache lines
}

TEST(ShmCommunicatorTest, WrongSegmentsAreRefused) {
  auto segment = ShmSegment::create(shm_communicator_bytes(2, kMinShmSlotBytes));
  ASSERT_TRUE(segment.ok());
  const auto code = [&](World world, size_t bytes) {
    return open_shm_communicator(world, segment->fd(), bytes, 1000).status().code();
  };
  EXPECT_EQ(code({0, 2}, segment->size()), Code::kOk);
  EXPECT_EQ(code({0, 3}, segment->size()), Code::kInvalidArgument);      // too small for three
  EXPECT_EQ(code({0, 2}, segment->size() + 1), Code::kInvalidArgument);  // more than the file has
  EXPECT_EQ(code({2, 2}, segment->size()), Code::kInvalidArgument);
  EXPECT_EQ(code({-1, 2}, segment->size()), Code::kInvalidArgument);
  EXPECT_EQ(code({0, 0}, segment->size()), Code::kInvalidArgument);
  EXPECT_EQ(open_shm_communicator({0, 2}, -1, segment->size(), 1000).status().code(),
            Code::kInvalidArgument);
}

TEST(ShmCommunicatorTest, MoreContributionsThanASlotHoldsIsAnError) {
  auto segment = ShmSegment::create(shm_communicator_bytes(1, kMinShmSlotBytes));
  ASSERT_TRUE(segment.ok());
  auto communicator = open_shm_communicator({0, 1}, segment->fd(), segment->size(), 1000);
  ASSERT_TRUE(communicator.ok());
  ReducePlan plan;
  plan.contributions = {100};
  plan.finish.merges.assign(100, 1);  // a left chain
  plan.finish.merges[0] = 0;
  std::vector<float> own(100, 1.0F);
  float out = 0;
  EXPECT_EQ((*communicator)->all_reduce(plan, own.data(), &out, 1).code(), Code::kInvalidArgument);
  plan.contributions = {64};  // 4096 bytes hold one line of each
  plan.finish.merges.resize(64);
  EXPECT_TRUE((*communicator)->all_reduce(plan, own.data(), &out, 1).ok());
  EXPECT_EQ(out, 64.0F);
}

}  // namespace
}  // namespace shoal
