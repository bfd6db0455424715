// Which of some connections is closed for what they bring.
#include "server/grpc/connections/connection_bytes.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <vector>

#include "runtime/base/cat.h"
#include "server/grpc/connections/leaky_bucket.h"

namespace shoal {
namespace {

constexpr size_t kMebibyte = 1 << 20;

Peer peer(const char* address) {
  return *parse_peer(cat("ipv6:[", address, "]:40000"));
}

TEST(TooMuch, WhoBringsMostTogetherIsClosedFirst) {
  const double full = 0.9 * kMebibyte, handshake = 0.95 * kMebibyte;
  std::vector<PendingBytes> all(35, {full, full, peer("2001:db8::1")});
  all.push_back({handshake, handshake, peer("2001:db8:1::1")});
  all.push_back({0, 0, peer("2001:db8::2")});
  const std::vector<size_t> closed = too_much(all);
  ASSERT_EQ(closed.size(), 1u);
  EXPECT_LT(closed[0], 35u) << "not the handshake of another client";
}

TEST(TooMuch, OneThatBringsTooMuchIsClosedWhateverTheOthersDo) {
  const double much = 1.5 * kMebibyte, little = 0.5 * kMebibyte;
  const std::vector<PendingBytes> all{{little, little, peer("2001:db8::1")},
                                      {little, little, peer("2001:db8::2")},
                                      {little, little, peer("2001:db8::3")},
                                      {much, much, peer("2001:db8:1::1")},
                                      {little, little, peer("2001:db8::4")}};
  EXPECT_EQ(too_much(all), std::vector<size_t>{3});
}

TEST(TooMuch, WhoBringsNothingStays) {
  const double half = 0.5 * kMebibyte, full = 0.9 * kMebibyte;
  const Peer most = peer("2001:db8::1");
  std::vector<PendingBytes> all{{half, half, most}, {0, 0, most}, {half, half, most}};
  for (int i = 1; i <= 60; ++i)
    all.push_back({full, full, peer(cat("2001:db8:", i, "::1").c_str())});
  const std::vector<size_t> closed = too_much(all);
  EXPECT_EQ(closed.size(), 2u + 25u) << "35 of 0.9 MiB are below 32 MiB";
  EXPECT_EQ(std::count(closed.begin(), closed.end(), 1u), 0);
}

TEST(Heaviest, IsTheFullestOfTheAddressThatBringsMost) {
  const Peer many = peer("::ffff:10.0.0.1"), one = peer("::ffff:10.0.0.2");
  EXPECT_EQ(
      heaviest({{90 * kMebibyte, 0, one}, {50 * kMebibyte, 0, many}, {60 * kMebibyte, 0, many}}),
      2u);
  EXPECT_EQ(heaviest({{15 * kMebibyte, 0, one}}), std::nullopt) << "so little takes no memory";
  EXPECT_EQ(heaviest({}), std::nullopt);
}

TEST(Heaviest, ANetworkOfIpv6IsOneClient) {
  const PendingBytes one{90 * kMebibyte, 0, peer("2001:db8:0:2::1")};
  const PendingBytes first{50 * kMebibyte, 0, peer("2001:db8:0:1::1")};
  const PendingBytes second{60 * kMebibyte, 0, peer("2001:db8:0:1:ffff::2")};
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
