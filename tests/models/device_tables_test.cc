#include "models/device_tables.h"

#include <gtest/gtest.h>
#include <iterator>
#include <string>

namespace shoal {
namespace {

TEST(DeviceTables, AMarkSaysWhichPartFollows) {
  constexpr int kLayers = 2;
  const char* const parts[] = {"layer 0, attention", "the sum of layer 0, attention",
                               "layer 0, mlp",       "the sum of layer 0, mlp",
                               "layer 1, attention", "the sum of layer 1, attention",
                               "layer 1, mlp",       "the sum of layer 1, mlp",
                               "the logits",         "what follows the logits"};
  ASSERT_EQ(std::size(parts), last_mark_of(kLayers) + 1u);
  for (uint32_t mark = 0; mark < std::size(parts); ++mark) {
    EXPECT_EQ(part_after(mark, kLayers), parts[mark]);
    EXPECT_EQ(sums_after(mark, kLayers), std::string(parts[mark]).starts_with("the sum"));
  }
  for (int half = 0; half < 2 * kLayers; ++half) {
    EXPECT_TRUE(sums_after(static_cast<uint32_t>(mark_before_sum(half)), kLayers));
    EXPECT_FALSE(sums_after(static_cast<uint32_t>(mark_after_sum(half)), kLayers));
  }
}

}  // namespace
}  // namespace shoal
