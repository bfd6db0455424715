// Which of some connections is closed for what they bring.
#include "server/grpc/connection_bytes.h"

#include <gtest/gtest.h>

#include "runtime/base/cat.h"
#include "server/grpc/leaky_bucket.h"

namespace shoal {
namespace {

constexpr size_t kMiB = 1 << 20;

Peer peer(const char* address) {
  return *parse_peer(cat("ipv6:[", address, "]:40000"));
}

TEST(Heaviest, IsTheFullestOfTheAddressThatBringsMost) {
  const Peer many = peer("::ffff:10.0.0.1"), one = peer("::ffff:10.0.0.2");
  EXPECT_EQ(heaviest({{90 * kMiB, 0, one}, {50 * kMiB, 0, many}, {60 * kMiB, 0, many}}), 2u);
  EXPECT_EQ(heaviest({{15 * kMiB, 0, one}}), std::nullopt) << "so little takes no memory";
  EXPECT_EQ(heaviest({}), std::nullopt);
}

TEST(Heaviest, ANetworkOfIpv6IsOneClient) {
  const PendingBytes one{90 * kMiB, 0, peer("2001:db8:0:2::1")};
  const PendingBytes first{50 * kMiB, 0, peer("2001:db8:0:1::1")};
  const PendingBytes second{60 * kMiB, 0, peer("2001:db8:0:1:ffff::2")};
  EXPECT_EQ(heaviest({one, first, second}), 2u);
}

TEST(LeakyBucketTest, TenPingsASecondForAWeekNeverFillIt) {
  LeakyBucket bucket;
  RunningClock::time_point now{};
  for (int second = 0; second < 7 * 24 * 3600; ++second) {
    bucket.fill(170, now += std::chrono::seconds(1));
    ASSERT_LT(bucket.bytes(), 1024.0);
  }
}

}  // namespace
}  // namespace shoal
