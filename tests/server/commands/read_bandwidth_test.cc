#include "server/commands/read_bandwidth.h"

#include <array>
#include <cstddef>
#include <gtest/gtest.h>
#include <set>
#include <string>
#include <utility>

namespace shoal {
namespace {

TEST(ReadBandwidthTest, NoLoopIsFavouredByItsPlace) {
  for (const int first : {0, 1, 6}) {
    std::set<std::pair<size_t, std::string>> places;
    std::set<std::pair<std::string, std::string>> neighbours;
    for (int number = first; number < first + 4; ++number) {
      const std::array<ReadLoop, 4> order = read_order(number);
      for (size_t i = 0; i < order.size(); ++i) {
        places.emplace(i, order[i].name());
        if (i > 0) neighbours.emplace(order[i - 1].name(), order[i].name());
      }
    }
    EXPECT_EQ(places.size(), 4u * 4u) << first;
    EXPECT_EQ(neighbours.size(), 4u * 3u) << first;
  }
}

TEST(ReadBandwidthTest, EveryMeasurementRunsEveryWay) {
  for (int number = 0; number < 4; ++number) {
    std::set<std::pair<bool, bool>> ways;
    for (const ReadLoop loop : read_order(number)) ways.emplace(loop.prefetch, loop.huge_pages);
    EXPECT_EQ(ways.size(), 4u) << number;
  }
}

}  // namespace
}  // namespace shoal
