#include <algorithm>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "runtime/base/cat.h"
#include "runtime/base/page_size.h"
#include "runtime/transport/needs/nccl_budget.h"
#include "tests/fakes/nccl_ranks.h"

namespace shoal {
namespace {

/// Compares what NCCL takes of /dev/shm with what the budget predicts. The fake NCCL computes its
/// sizes independently, and the group has a /dev/shm of its own.

constexpr int64_t kMiB = int64_t{1} << 20;
const Environment kSmallBuffers = {
    {"NCCL_BUFFSIZE", "65536"}, {"NCCL_LL_BUFFSIZE", "32768"}, {"NCCL_LL128_BUFFSIZE", "61440"}};

/// What the budget predicts for a group with the defaults of the fakes: 2.28.9, no peers, no cuMem
/// host memory, no NVLS.
int64_t predicted(const NcclGroup& group, NcclSettings base = {}) {
  if (const auto version = group.environment.find("FAKE_NCCL_VERSION");
      version != group.environment.end())
    base.version = *parse_nccl_version(version->second);
  base.page_bytes = static_cast<int64_t>(page_size());
  base.ranks = group.world_size;
  base.min_ctas = base.max_ctas = group.channels;
  base.found_channels = 2;
  base.tree = base.tree && !group.reproducible;
  base.tree_follows_ring = true;
  base.cumem_host = group.environment.contains("FAKE_NCCL_CUMEM_HOST");
  base.nvls = group.environment.contains("FAKE_NCCL_NVLS");
  base.all_peers = group.environment.contains("EMULATED_GPU_PEERS");
  const auto settings = nccl_settings(group.environment, base);
  EXPECT_TRUE(settings.ok()) << settings.status().to_string();
  const auto need = nccl_need(*settings);
  EXPECT_TRUE(need.ok()) << need.status().to_string();
  return need->need.dev_shm_bytes();
}

struct Used {
  NcclEnds ends;
  int64_t bytes = -1;  ///< in use once every rank is open; -1: not all ranks opened
};

Used use(const NcclGroup& group) {
  Used used;
  used.ends = run_nccl_ranks(group, [](NcclRank& rank) {
    rank.meet();
    const int64_t bytes = dev_shm_used();
    rank.meet();
    return cat(bytes);
  });
  const auto& ranks = used.ends.ranks;
  const bool all = std::all_of(ranks.begin(), ranks.end(),
                               [](const NcclEnd& end) { return end.code == Code::kOk; });
  if (all && used.ends.skipped.empty()) used.bytes = std::atoll(ranks.front().report.c_str());
  return used;
}

/// If the budget says that the group fits, it must open and take exactly those bytes. Otherwise
/// some rank must report that there is no room.
void expect_as_predicted(NcclGroup group, int64_t bytes) {
  const bool fits = bytes <= group.shm_bytes;
  if (!fits) group.time_passes = TimePasses::kOnceARankHasReported;
  const Used used = use(group);
  if (!used.ends.skipped.empty()) GTEST_SKIP() << used.ends.skipped;
  if (fits) {
    EXPECT_EQ(used.bytes, bytes) << all_reports(used.ends);
    EXPECT_EQ(used.ends.left_files, 0);
    return;
  }
  int full = 0;
  for (const NcclEnd& end : used.ends.ranks) {
    full += end.code == Code::kResourceExhausted ? 1 : 0;
    EXPECT_TRUE(end.code == Code::kResourceExhausted || end.code == Code::kDeadlineExceeded)
        << end.report;
  }
  EXPECT_GE(full, 1) << all_reports(used.ends);
  EXPECT_GE(used.ends.left_files, full) << "each failure leaves an empty file";
}

struct Place {
  int ranks;
  int mib;
  const char* version;
};

std::string name_of(const testing::TestParamInfo<Place>& info) {
  const NcclVersion version = *parse_nccl_version(info.param.version);
  return cat("Nccl", version.code(), "Ranks", info.param.ranks, "In", info.param.mib, "MiB");
}

/// Every number of ranks in every size of /dev/shm.
std::vector<Place> places(const char* version, const std::vector<int>& ranks,
                          const std::vector<int>& mib) {
  std::vector<Place> all;
  for (const int count : ranks)
    for (const int size : mib) all.push_back({count, size, version});
  return all;
}

class NcclMemoryTest : public testing::TestWithParam<Place> {
 protected:
  static NcclGroup group(Environment environment = {}) {
    NcclGroup group;
    group.world_size = GetParam().ranks;
    group.shm_bytes = GetParam().mib * kMiB;
    group.environment = std::move(environment);
    group.environment["FAKE_NCCL_VERSION"] = GetParam().version;
    return group;
  }
};

TEST_P(NcclMemoryTest, SegmentsAreThosePredicted) {
  expect_as_predicted(group(), predicted(group()));
}

TEST_P(NcclMemoryTest, SmallBuffersAreThosePredicted) {
  expect_as_predicted(group(kSmallBuffers), predicted(group(kSmallBuffers)));
}

TEST_P(NcclMemoryTest, SocketsTakeThePoolPredicted) {
  const Environment sockets = {{"NCCL_SHM_DISABLE", "1"}};
  expect_as_predicted(group(sockets), predicted(group(sockets)));
}

INSTANTIATE_TEST_SUITE_P(All, NcclMemoryTest,
                         testing::ValuesIn(places("2.28.9", {2, 3, 4, 8}, {64, 16, 1})), name_of);
// The newest release that is known.
INSTANTIATE_TEST_SUITE_P(Newest, NcclMemoryTest,
                         testing::ValuesIn(places("2.32.3", {1, 2, 4, 8}, {128, 64, 4, 1})),
                         name_of);

struct Variant {
  const char* name;
  int ranks;
  Environment environment;
  int channels = 1;
  bool reproducible = true;
};

class NcclVariantTest : public testing::TestWithParam<Variant> {};

TEST_P(NcclVariantTest, BytesAreThosePredicted) {
  const Variant& variant = GetParam();
  NcclGroup group;
  group.world_size = variant.ranks;
  group.environment = variant.environment;
  group.channels = variant.channels;
  group.reproducible = variant.reproducible;
  group.shm_bytes = 512 * kMiB;
  expect_as_predicted(group, predicted(group));
}

INSTANTIATE_TEST_SUITE_P(
    All, NcclVariantTest,
    testing::Values(
        Variant{"TwoChannels", 4, {}, 2}, Variant{"ChannelsFound", 2, {}, 0},
        Variant{"MaxChannelsOfTheUser", 2, {{"NCCL_MAX_NCHANNELS", "1"}}, 0},
        Variant{"MinChannelsOutrankTheRest", 2, {{"NCCL_MIN_NCHANNELS", "3"}}},
        Variant{"MaxCtasAlone", 2, {{"NCCL_MAX_CTAS", "1"}}, 0},
        Variant{"MinCtasAlone", 2, {{"NCCL_MIN_CTAS", "3"}}, 0},
        Variant{"RingAndTree", 4, {}, 1, false}, Variant{"RingAndTreeOfTwo", 2, {}, 1, false},
        Variant{"OnlyRing", 4, {{"NCCL_ALGO", "Ring"}}, 1, false},
        Variant{"Peers", 4, {{"EMULATED_GPU_PEERS", "all"}}},
        Variant{"PeersForbidden", 3, {{"EMULATED_GPU_PEERS", "all"}, {"NCCL_P2P_DISABLE", "1"}}},
        Variant{
            "PeersForbiddenByLevel", 3, {{"EMULATED_GPU_PEERS", "all"}, {"NCCL_P2P_LEVEL", "LOC"}}},
        Variant{"CumemHost", 4, {{"FAKE_NCCL_CUMEM_HOST", "1"}}},
        Variant{
            "CumemHostOff", 2, {{"FAKE_NCCL_CUMEM_HOST", "1"}, {"NCCL_CUMEM_HOST_ENABLE", "0"}}},
        Variant{"Nvls", 8, {{"FAKE_NCCL_NVLS", "1"}, {"EMULATED_GPU_PEERS", "all"}}},
        Variant{
            "NvlsOff",
            8,
            {{"FAKE_NCCL_NVLS", "1"}, {"EMULATED_GPU_PEERS", "all"}, {"NCCL_NVLS_ENABLE", "0"}}},
        Variant{"CumemOff", 3, {{"NCCL_CUMEM_ENABLE", "0"}}},
        Variant{"AllConnectedInInit", 4, {{"NCCL_CUMEM_ENABLE", "0"}, {"NCCL_ALGO", "Ring"}}},
        Variant{"SocketsOf227", 2, {{"NCCL_SHM_DISABLE", "1"}, {"FAKE_NCCL_VERSION", "2.27.7"}}},
        Variant{"SocketsOf230", 2, {{"NCCL_SHM_DISABLE", "1"}, {"FAKE_NCCL_VERSION", "2.30.7"}}},
        Variant{"SocketsOf231", 2, {{"NCCL_SHM_DISABLE", "1"}, {"FAKE_NCCL_VERSION", "2.31.2"}}},
        Variant{"SocketsOf232", 2, {{"NCCL_SHM_DISABLE", "1"}, {"FAKE_NCCL_VERSION", "2.32.3"}}},
        Variant{"NvlsOf231",
                8,
                {{"FAKE_NCCL_NVLS", "1"},
                 {"EMULATED_GPU_PEERS", "all"},
                 {"FAKE_NCCL_VERSION", "2.31.2"}}},
        Variant{"NvlsOf232",
                8,
                {{"FAKE_NCCL_NVLS", "1"},
                 {"EMULATED_GPU_PEERS", "all"},
                 {"FAKE_NCCL_VERSION", "2.32.3"}}}),
    [](const auto& variant) { return std::string(variant.param.name); });

// Checks the test itself: if a library takes more than the budget predicts, the comparison must
// fail.
TEST(NcclPredictionTest, AWrongPredictionIsNoticed) {
  NcclGroup group;
  group.world_size = 2;
  group.shm_bytes = 64 * kMiB;
  const int64_t bytes = predicted(group);
  group.environment["FAKE_NCCL_WRONG_BYTES"] = cat(page_size());
  const Used used = use(group);
  if (!used.ends.skipped.empty()) GTEST_SKIP() << used.ends.skipped;
  EXPECT_EQ(used.bytes, bytes + 2 * static_cast<int64_t>(page_size())) << all_reports(used.ends);
}

// If everything is connected in init and cuMem is on, the names of the pools stay behind.
TEST(NcclPredictionTest, PoolsStayWhereInitConnectsAll) {
  NcclGroup group;
  group.world_size = 2;
  group.shm_bytes = 256 * kMiB;
  group.environment["NCCL_RUNTIME_CONNECT"] = "0";
  const Used used = use(group);
  if (!used.ends.skipped.empty()) GTEST_SKIP() << used.ends.skipped;
  EXPECT_EQ(used.bytes, predicted(group)) << all_reports(used.ends);
  EXPECT_EQ(used.ends.left_files, 2);
}

// If the order of the tree is not known, the budget is an upper bound.
TEST(NcclPredictionTest, TheTreesOrderUnknownIsABound) {
  NcclGroup group;
  group.world_size = 5;
  group.reproducible = false;
  group.shm_bytes = 512 * kMiB;
  NcclSettings settings;
  settings.ranks = 5;
  settings.max_ctas = 1;
  settings.cumem_host = false;
  settings.nvls = false;
  const int64_t bound = nccl_need(settings)->need.dev_shm_bytes();
  const Used used = use(group);
  if (!used.ends.skipped.empty()) GTEST_SKIP() << used.ends.skipped;
  EXPECT_GT(used.bytes, 0) << all_reports(used.ends);
  EXPECT_LE(used.bytes, bound);
}

}  // namespace
}  // namespace shoal
