#include "models/device_tables.h"

#include <gtest/gtest.h>

namespace shoal {
namespace {

TEST(DeviceTables, AMarkSaysWhichPartFollows) {
  constexpr int kLayers = 2;
  const char* const parts[] = {"layer 0, attention", "layer 0, mlp", "layer 1, attention",
                               "layer 1, mlp",       "the logits",   "what comes before layer 0"};
  for (uint32_t mark = 0; mark < 6; ++mark) EXPECT_EQ(part_after(mark, kLayers), parts[mark]);
}

}  // namespace
}  // namespace shoal
