#include "runtime/transport/needs/nccl_budget.h"

#include <gtest/gtest.h>

#include "runtime/base/quantity.h"

namespace shoal {
namespace {

constexpr int64_t kConnection = 9650176;  ///< 9641984 + 8192

/// Ranks without peer access that use files, and only the connections of the ring on these
/// channels.
NcclSettings ring_of(int ranks, int channels) {
  NcclSettings settings;
  settings.ranks = ranks;
  settings.max_ctas = channels;
  settings.tree = false;
  settings.cumem_host = false;
  settings.nvls = false;
  return settings;
}

int64_t bytes_of(const NcclSettings& settings) {
  const auto need = nccl_need(settings);
  EXPECT_TRUE(need.ok()) << need.status().to_string();
  return need.ok() ? need->need.dev_shm_bytes() : -1;
}

double mib(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

TEST(NcclBudget, SegmentSizesAreThoseOfNcclsMessages) {
  const struct {
    const char* version;
    int64_t file;      ///< N in "failed to extend /dev/shm/nccl-... to N bytes"
    int64_t in_pages;  ///< what tmpfs charged for the file
  } seen[] = {
      {"2.12.12", 4194656, 4198400},  {"2.15.5", 4194656, 4198400},
      {"2.16.2", 4194660, 4198400},   {"2.17.1", 4194660, 4198400},
      {"2.19.4", 4194660, 4198400},   {"2.20.5", 5767524, 5771264},
      {"2.21.5", 7340388, 7344128},   {"2.22.3", 7340388, 7344128},
      {"2.23.4", 10486116, 10489856}, {"2.24.3", 14156132, 14159872},
      {"2.25.1", 31850884, 31854592}, {"2.26.2", 33030532, 33034240},
      {"2.27.7", 33030532, 33034240}, {"2.27", 33030532, 33034240},
      {"2.28.3", 34210180, 34213888}, {"2.28.9", 34210180, 34213888},
      {"2.30.7", 34210180, 34213888}, {"22809", 34210180, 34213888},
      {"2.31.2", 34210188, 34213888}, {"2.32.3", 68420268, 68423680},
      {"2.32", 68420268, 68423680},   {"23203", 68420268, 68423680},
  };
  for (const auto& row : seen) {
    NcclSettings settings = ring_of(1, 1);
    settings.version = *parse_nccl_version(row.version);
    settings.runtime_connect = false;  // so that even a single rank makes its pool in init
    const auto need = nccl_need(settings);
    ASSERT_TRUE(need.ok()) << row.version;
    ASSERT_EQ(need->need.dev_shm.size(), 1u) << row.version;
    EXPECT_EQ(need->need.dev_shm[0].what, "proxy-ops pool: 1 file of " + bytes_text(row.file));
    EXPECT_EQ(need->need.dev_shm_bytes(), row.in_pages) << row.version;
    EXPECT_EQ(need->need.dev_shm_inodes(), 1) << row.version;
    EXPECT_EQ(need->segments.data, 9637888);
    EXPECT_EQ(need->segments.control, 4096);
  }
}

TEST(NcclBudget, BeforeTheCountAConnectionIsTwoPagesLess) {
  NcclSettings settings = ring_of(2, 1);
  settings.version = {2, 15, 5};
  settings.runtime_connect = true;
  EXPECT_EQ(bytes_of(settings), 2 * (9637888 + 4096) + 2 * 4198400);
  settings.version = {2, 16, 2};
  EXPECT_EQ(bytes_of(settings), 2 * kConnection + 2 * 4198400);
}

// 9637892 B and 4100 B of a connection, and 34210180 B of a pool.
TEST(NcclBudget, FilesTakeWholePagesOfTheMachine) {
  const struct {
    int64_t page_bytes, connection, pool;
  } pages[] = {{4096, 9641984 + 8192, 34213888},
               {16384, 589 * 16384 + 16384, 2089 * 16384},
               {65536, 148 * 65536 + 65536, 523 * 65536}};
  for (const auto& row : pages) {
    EXPECT_EQ(nccl_connection_bytes(NcclBuffers(), row.page_bytes), row.connection);
    NcclSettings settings = ring_of(2, 1);
    settings.version = {2, 28, 9};
    settings.page_bytes = row.page_bytes;
    EXPECT_EQ(bytes_of(settings), 2 * row.connection) << row.page_bytes;
    settings.shm_disabled = true;
    EXPECT_EQ(bytes_of(settings), 2 * row.pool) << row.page_bytes;
  }
  NcclSettings settings = ring_of(2, 1);
  settings.page_bytes = 0;
  EXPECT_EQ(nccl_need(settings).status().code(), Code::kInvalidArgument);
}

TEST(NcclBudget, SmallerBuffersAsReported) {
  NcclSettings settings = ring_of(2, 1);
  settings.buffers.simple = 512 * 1024;  // from NVIDIA/nccl-tests issue 166
  EXPECT_EQ(nccl_need(settings)->segments.data, 5967872);
  settings.buffers.simple = 1048576;
  settings.buffers.ll128 = 65536;
  EXPECT_EQ(nccl_connection_bytes(settings.buffers), 1654784);
  // Eight ranks and two channels in the worst order of ranks. This fits into 70 MiB, while the
  // defaults would need 405 MiB.
  settings.ranks = 8;
  settings.max_ctas = 2;
  settings.tree = true;
  EXPECT_EQ(bytes_of(settings), 44 * int64_t{1654784});
  EXPECT_LT(mib(bytes_of(settings)), 70);
}

TEST(NcclBudget, CrossChecksFromTheField) {
  EXPECT_EQ(nccl_connection_bytes(NcclBuffers()), kConnection);
  // Three GPUs with two channels: the first communicator fits into 64 MiB, but a second one does
  // not (llama.cpp issue 23523).
  NcclSettings settings = ring_of(3, 2);
  settings.cumem_host = true;
  settings.one_process = true;
  EXPECT_EQ(bytes_of(settings), 57901056);
  EXPECT_EQ(nccl_need(settings)->need.dev_shm_inodes(), 12);
  settings.communicators = 2;
  EXPECT_EQ(bytes_of(settings), 2 * 57901056);
  EXPECT_EQ(nccl_need(settings)->need.dev_shm_inodes(), 2 * 12);
  EXPECT_NE(nccl_need(settings)->need.dev_shm[0].what.find(": 6 files of 9637892 B (9.2 MiB)"),
            std::string::npos)
      << "the files of one communicator";
  // With two channels, four GPUs fail in 64 MiB and two succeed (NVIDIA/nccl issue 1518).
  EXPECT_EQ(bytes_of(ring_of(4, 2)), 8 * kConnection);
  EXPECT_GT(bytes_of(ring_of(4, 2)), 64 << 20);
  EXPECT_LT(bytes_of(ring_of(2, 2)), 64 << 20);
  EXPECT_NEAR(mib(bytes_of(ring_of(2, 1))), 18.4, 0.05);
}

TEST(NcclBudget, TablesOfRanksAndChannels) {
  const struct {
    int ranks;
    double ring, same_order, worst, pools;  ///< in MiB, for one channel
  } rows[] = {
      {2, 18.4, 18.4, 18.4, 65.3}, {4, 36.8, 64.4, 92.0, 130.5}, {8, 73.6, 138.0, 202.5, 261.0}};
  for (const auto& row : rows) {
    for (const int channels : {1, 2, 4}) {
      NcclSettings settings = ring_of(row.ranks, channels);
      EXPECT_NEAR(mib(bytes_of(settings)), row.ring * channels, 0.05 * channels);
      settings.tree = true;
      EXPECT_NEAR(mib(bytes_of(settings)), row.worst * channels, 0.05 * channels);
      settings.tree_follows_ring = true;
      EXPECT_NEAR(mib(bytes_of(settings)), row.same_order * channels, 0.05 * channels);
    }
    NcclSettings sockets = ring_of(row.ranks, 1);
    sockets.shm_disabled = true;
    EXPECT_NEAR(mib(bytes_of(sockets)), row.pools, 0.05);
  }
}

TEST(NcclBudget, SocketsStoppedFittingDockersDefaultIn228) {
  NcclSettings settings = ring_of(2, 1);
  settings.shm_disabled = true;
  settings.version = {2, 27, 7};
  EXPECT_LE(bytes_of(settings), 64 << 20);
  settings.version = {2, 28, 9};
  EXPECT_GT(bytes_of(settings), 64 << 20);
}

TEST(NcclBudget, TheSocketsOf232DoNotFitDockersDefaultForOneRank) {
  NcclSettings settings = ring_of(1, 1);
  settings.other_nodes = true;  // so that this rank has a peer to talk to
  settings.version = {2, 31, 2};
  EXPECT_LE(bytes_of(settings), 64 << 20);
  settings.version = {2, 32, 3};
  EXPECT_EQ(bytes_of(settings), 68423680);
  EXPECT_GT(bytes_of(settings), 64 << 20);
  settings = ring_of(8, 1);
  settings.shm_disabled = true;
  settings.version = {2, 32, 3};
  EXPECT_EQ(bytes_of(settings), 8 * 68423680);
}

TEST(NcclBudget, ANodeHasAsManyRanksAsTheReleaseAllows) {
  const struct {
    NcclVersion version;
    int most;
  } rows[] = {{{2, 12, 12}, 64}, {{2, 24, 3}, 64}, {{2, 25, 1}, 72},
              {{2, 28, 9}, 72},  {{2, 31, 2}, 72}, {{2, 32, 3}, 144}};
  for (const auto& row : rows) {
    NcclSettings settings = ring_of(row.most, 1);
    settings.version = row.version;
    EXPECT_TRUE(nccl_need(settings).ok()) << row.version.code();
    ++settings.ranks;
    const Status refused = nccl_need(settings).status();
    EXPECT_EQ(refused.code(), Code::kInvalidArgument) << row.version.code();
    EXPECT_EQ(refused.message(), cat("ranks ", row.most + 1, ": 1 to ", row.most,
                                     " on a node with NCCL 2.", row.version.minor));
  }
}

TEST(NcclBudget, NothingWhereAllPairsArePeersAndNvlsIsOff) {
  NcclSettings settings;
  settings.ranks = 8;
  settings.all_peers = true;
  EXPECT_EQ(bytes_of(settings), 49152);  // the NVLS region: 45056 + 4, in pages
  EXPECT_EQ(nccl_need(settings)->segments.nvls, 45056);
  settings.nvls = false;
  EXPECT_EQ(bytes_of(settings), 0);
  EXPECT_TRUE(nccl_need(settings)->assumptions.empty());
  settings.cumem = false;  // this also turns lazy connect off, so each rank makes its pool in init
  EXPECT_EQ(bytes_of(settings), 8 * 34213888);
  settings.cumem = true;
  settings.p2p_disabled = true;  // uses SHM, but in cuMem host memory
  EXPECT_EQ(bytes_of(settings), 0);
  EXPECT_GT(nccl_need(settings)->need.memory_bytes(), 0);
  settings.version = {2, 22, 3};  // this version has no cuMem host memory yet
  EXPECT_EQ(bytes_of(settings), 22 * 4 * kConnection);
  settings.version = {2, 21, 5};  // this version has no lazy connect either
  EXPECT_EQ(bytes_of(settings), 22 * 4 * kConnection + 8 * 7344128);
}

TEST(NcclBudget, MatrixOfPeersBoundsTheRing) {
  NcclSettings settings = ring_of(4, 1);
  settings.peers.assign(4, std::vector<bool>(4, true));
  EXPECT_EQ(bytes_of(settings), 0);
  // One pair of ranks cannot reach each other in either direction. That affects at most two edges
  // of any ring.
  settings.peers[0][1] = settings.peers[1][0] = false;
  EXPECT_EQ(bytes_of(settings), 2 * kConnection);
  EXPECT_FALSE(nccl_need(settings)->assumptions.empty());
  settings.tree = true;  // the tree has no further pair to add
  EXPECT_EQ(bytes_of(settings), 2 * kConnection);
  settings.shm_disabled = true;
  EXPECT_EQ(bytes_of(settings), 4 * 34213888);
}

TEST(NcclBudget, ChannelsAreCutThenRaised) {
  const auto channels = [](int max_ctas, int max_channels, int min_channels, int min_ctas) {
    NcclSettings settings = ring_of(2, max_ctas);
    settings.found_channels = 16;
    settings.max_channels = max_channels;
    settings.min_channels = min_channels;
    settings.min_ctas = min_ctas;
    return nccl_need(settings)->channels;
  };
  EXPECT_EQ(channels(0, 0, 0, 0), 16);
  EXPECT_EQ(channels(4, 0, 0, 0), 4);
  EXPECT_EQ(channels(4, 2, 0, 0), 2);
  EXPECT_EQ(channels(1, 0, 8, 0), 8);  // NCCL_MIN_NCHANNELS overrides maxCTAs
  EXPECT_EQ(channels(1, 0, 0, 3), 3);
}

TEST(NcclBudget, CopiesTakeFilesWhereTheReleaseMakesThem) {
  NcclSettings settings = ring_of(2, 1);
  settings.all_peers = settings.p2p_memcpy = true;
  settings.version = {2, 12, 12};  // knows no such setting
  settings.cumem = false;
  const int64_t pools = 2 * 4198400;
  EXPECT_EQ(bytes_of(settings), pools);
  settings.version = {2, 13, 4};
  EXPECT_EQ(bytes_of(settings), 2 * 8192 + pools);
  settings.version = {2, 28, 9};
  settings.cumem = true;
  EXPECT_EQ(bytes_of(settings), 2 * 12288 + 2 * 34213888);
  // Since 2.23 this is cuMem host memory if that works, even within one process.
  settings.cumem_host = settings.one_process = true;
  EXPECT_EQ(bytes_of(settings), 2 * 34213888);
  EXPECT_EQ(nccl_need(settings)->need.memory_bytes(), 2 * 8192 + 2 * 34213888);
  // Over shared memory a proxy copies until 2.30.4.
  settings = ring_of(2, 1);
  settings.shm_memcpy = true;
  settings.version = {2, 30, 4};
  EXPECT_EQ(bytes_of(settings), 2 * kConnection + 2 * 34213888);
  settings.version = {2, 30, 7};
  EXPECT_EQ(bytes_of(settings), 2 * kConnection);
}

TEST(NcclBudget, OtherConsumersAreListed) {
  NcclSettings settings = ring_of(2, 4);
  settings.send_recv = true;
  EXPECT_EQ(bytes_of(settings), (2 * 4 + 2 * 2) * kConnection);
  settings = ring_of(8, 1);
  settings.all_peers = settings.other_nodes = true;
  settings.net = "IB";
  const auto need = nccl_need(settings);
  ASSERT_EQ(need->need.dev_shm.size(), 1u);
  EXPECT_EQ(need->need.dev_shm[0].what, "proxy-ops pool for IB: 8 files of 34210180 B (32.6 MiB)");
  EXPECT_EQ(need->need.dev_shm[0].bytes, 8 * 34213888);
  EXPECT_EQ(need->need.dev_shm[0].inodes, 8);
}

TEST(NcclBudget, SaysWhatItAssumed) {
  NcclSettings settings = ring_of(2, 1);
  EXPECT_TRUE(nccl_need(settings)->assumptions.empty());
  settings.version = *parse_nccl_version("2.32.3");
  EXPECT_TRUE(nccl_need(settings)->assumptions.empty());
  EXPECT_EQ(nccl_need(settings)->need.bound, Bound::kExact);
  settings.version = *parse_nccl_version("2.18.6");
  EXPECT_NE(nccl_need(settings)->assumptions.at(0).find("SIGBUS"), std::string::npos);
  EXPECT_EQ(nccl_need(settings)->need.bound, Bound::kAtMost);
  // NCCL may find only one of these two channels. If two are asked for (min_ctas), it uses both.
  settings = ring_of(2, 2);
  EXPECT_EQ(nccl_need(settings)->need.bound, Bound::kAtMost);
  settings.min_ctas = 2;
  EXPECT_EQ(nccl_need(settings)->need.bound, Bound::kExact);
}

TEST(NcclBudget, WhatAnUnknownVersionNeedsIsTheLeast) {
  NcclSettings settings = ring_of(4, 2);
  settings.min_ctas = 2;
  for (const auto& [version, last] :
       {std::pair("2.33.1", "2.32.3"), {"2.32.4", "2.32.3"}, {"2.27.8", "2.27.7"}}) {
    settings.version = *parse_nccl_version(version);
    const auto need = nccl_need(settings);
    EXPECT_EQ(need->need.bound, Bound::kAtLeast) << version;
    EXPECT_EQ(need->need.dev_shm_bytes(), 8 * kConnection) << version;
    EXPECT_EQ(need->assumptions, (std::vector<std::string>{cat(
                                     "NCCL ", version, ", which is newer than the last one known, ",
                                     last, ", takes no less")}));
  }
}

TEST(NcclBudget, WhatIsOpenIsTheLeastForAnUnknownVersion) {
  NcclSettings known = ring_of(4, 0);  // any number of channels
  known.tree = true;
  known.version = {2, 32, 3};
  NcclSettings unknown = known;
  unknown.version = {2, 33, 1};
  EXPECT_EQ(nccl_need(known)->need.bound, Bound::kAtMost);
  EXPECT_EQ(bytes_of(known), 4 * 10 * kConnection);
  EXPECT_EQ(nccl_need(unknown)->need.bound, Bound::kAtLeast);
  EXPECT_EQ(bytes_of(unknown), 7 * kConnection);  // one channel, and the tree in the ring's order
  unknown.peers.assign(4, std::vector<bool>(4, true));
  unknown.peers[0][1] = unknown.peers[1][0] = false;
  EXPECT_EQ(bytes_of(unknown), 0);  // a ring may go around this pair
  unknown.nvls = true;
  EXPECT_EQ(bytes_of(unknown), 0);  // its region has become smaller from release to release
}

TEST(NcclBudget, RefusesWhatItCannotKnow) {
  NcclSettings settings;
  settings.version = {2, 11, 4};
  EXPECT_EQ(nccl_need(settings).status().code(), Code::kInvalidArgument);
  settings = {};
  settings.ranks = 73;
  EXPECT_EQ(nccl_need(settings).status().code(), Code::kInvalidArgument);
  settings = {};
  settings.ranks = 2;
  settings.peers = {{true, true}};
  EXPECT_EQ(nccl_need(settings).status().code(), Code::kInvalidArgument);
}

TEST(NcclBudget, SizesInMessagesAreExplained) {
  EXPECT_EQ(explain_nccl_size(33030532), "proxy-ops pool of NCCL 2.26 to 2.27");
  EXPECT_EQ(explain_nccl_size(5767524), "proxy-ops pool of NCCL 2.20");
  EXPECT_EQ(explain_nccl_size(14156128), "proxy-ops pool of NCCL 2.24");
  EXPECT_EQ(explain_nccl_size(34210180), "proxy-ops pool of NCCL 2.28 to 2.30");
  EXPECT_EQ(explain_nccl_size(34210188), "proxy-ops pool of NCCL 2.31");
  EXPECT_EQ(explain_nccl_size(68420264), "proxy-ops pool of NCCL 2.32");
  EXPECT_EQ(explain_nccl_size(9637888), explain_nccl_size(9637892));
  EXPECT_NE(explain_nccl_size(9637892), "");
  EXPECT_EQ(explain_nccl_size(4096), "");
  // Both halves of a connection, proxy-ops pools and the NVLS regions of 8 ranks in 2.19, 2.28 and
  // 2.32, and of 144 ranks, each with its reference count. Sizes that people's files have are not
  // among them.
  for (const int64_t bytes : {9637892, 4100, 33030532, 68420268, 16 + 160 * 8 + 4, 2 * 8 * 2816 + 4,
                              512 * 8 + 4, 512 * 144 + 4})
    EXPECT_TRUE(is_nccl_file_size(bytes)) << bytes;
  for (const int64_t bytes : {1, 4, 20, 4096, 5000, 100'000, 512 * 146 + 4, 1 << 20, 1642500})
    EXPECT_FALSE(is_nccl_file_size(bytes)) << bytes;
  EXPECT_TRUE(is_nccl_file_size(1642500, {.ll128 = 65536, .simple = 1048576}));
}

}  // namespace
}  // namespace shoal
