// The table of NCCL's releases against sizes that were read out of libraries and headers. They are
// literals, so that a wrong factor in the table shows.
#include "runtime/transport/needs/nccl_releases.h"

#include <gtest/gtest.h>

namespace shoal {
namespace {

TEST(NcclReleases, PoolsAndRegionsAreThoseThatWereRead) {
  const struct {
    NcclVersion version;
    int64_t pool;  ///< sizeof(ncclProxyOpsPool)
    int64_t nvls;  ///< what ncclNvlsSetup asks for with 8 ranks; 0: it makes no region
  } read[] = {
      {{2, 12, 12}, 4194656, 0},     {{2, 17, 1}, 4194656, 0},      {{2, 18, 6}, 4194656, 0},
      {{2, 19, 1}, 4194656, 1296},   {{2, 19, 4}, 4194656, 1296},   {{2, 20, 5}, 5767520, 23568},
      {{2, 21, 5}, 7340384, 24080},  {{2, 22, 3}, 7340384, 24080},  {{2, 23, 4}, 10486112, 40976},
      {{2, 24, 3}, 14156128, 36880}, {{2, 25, 1}, 31850880, 40976}, {{2, 26, 2}, 33030528, 41232},
      {{2, 26, 6}, 33030528, 41232}, {{2, 27, 3}, 33030528, 41488}, {{2, 27, 7}, 33030528, 41488},
      {{2, 28, 3}, 34210176, 43008}, {{2, 28, 7}, 34210176, 45056}, {{2, 28, 9}, 34210176, 45056},
      {{2, 29, 2}, 34210176, 45056}, {{2, 29, 7}, 34210176, 45056}, {{2, 30, 3}, 34210176, 26624},
      {{2, 30, 7}, 34210176, 26624}, {{2, 31, 2}, 34210184, 26624}, {{2, 32, 3}, 68420264, 4096},
  };
  for (const auto& row : read) {
    const NcclRelease& release = nccl_release_of(row.version);
    EXPECT_TRUE(is_known_nccl(row.version)) << row.version.code();
    EXPECT_EQ(nccl_pool_bytes(release), row.pool) << row.version.code();
    const int64_t nvls = release.nvls_rank_bytes == 0 ? 0 : nccl_nvls_bytes(release, 8);
    EXPECT_EQ(nvls, row.nvls) << row.version.code();
  }
}

TEST(NcclReleases, TheCountCameWith216) {
  EXPECT_EQ(nccl_count_bytes(nccl_release_of({2, 15, 5})), 0);
  EXPECT_EQ(nccl_count_bytes(nccl_release_of({2, 16, 2})), 4);
  EXPECT_EQ(nccl_count_bytes(nccl_release_of({2, 32, 3})), 4);
}

TEST(NcclReleases, WhatIsNewerThanTheTableIsNotKnown) {
  for (const NcclVersion known :
       {NcclVersion{2, 12, 12}, NcclVersion{2, 28, 5}, NcclVersion{2, 32, 0}})
    EXPECT_TRUE(is_known_nccl(known)) << known.code();
  for (const NcclVersion unknown :
       {NcclVersion{2, 11, 4}, NcclVersion{2, 27, 8}, NcclVersion{2, 28, 10}, NcclVersion{2, 32, 4},
        NcclVersion{2, 33, 1}, NcclVersion{3, 0, 0}})
    EXPECT_FALSE(is_known_nccl(unknown)) << unknown.code();
  // An unknown version counts as the last known one before it.
  EXPECT_EQ(nccl_release_of({2, 27, 8}).minor, 27);
  EXPECT_EQ(nccl_release_of({2, 28, 10}).last_patch, 9);
  for (const NcclVersion newer :
       {NcclVersion{2, 32, 4}, NcclVersion{2, 33, 1}, NcclVersion{3, 0, 0}})
    EXPECT_EQ(nccl_pool_bytes(nccl_release_of(newer)), 68420264) << newer.code();
}

/// What is used for an unknown version is called the least that it needs, and a clean-up knows the
/// files of all releases. Both rest on this.
TEST(NcclReleases, TheTableIsInOrderAndPoolsHaveNeverShrunk) {
  const NcclRelease* before = nullptr;
  for (const NcclRelease& release : nccl_releases()) {
    if (before != nullptr) {
      const bool next_patches =
          release.minor == before->minor && release.last_patch > before->last_patch;
      EXPECT_TRUE(next_patches || release.minor == before->minor + 1) << release.minor;
      EXPECT_GE(nccl_pool_bytes(release), nccl_pool_bytes(*before)) << release.minor;
    }
    before = &release;
  }
}

TEST(NcclReleases, VersionsParse) {
  EXPECT_EQ(parse_nccl_version("2.28")->code(), 22809);
  EXPECT_TRUE(parse_nccl_version("2.28")->last_patch);
  for (const char* text : {"2.28.9", "2.99", "22809"})
    EXPECT_FALSE(parse_nccl_version(text)->last_patch) << text;
  EXPECT_EQ(parse_nccl_version("2.32")->code(), 23203);
  EXPECT_EQ(parse_nccl_version("2.27.7")->code(), 22707);
  EXPECT_EQ(parse_nccl_version("2.27")->code(), 22707);
  EXPECT_EQ(parse_nccl_version("2.28.9+cuda13.0")->code(), 22809);
  EXPECT_EQ(parse_nccl_version("2.30.7-1")->code(), 23007);
  EXPECT_EQ(parse_nccl_version("22809")->minor, 28);
  EXPECT_EQ(parse_nccl_version("2.99")->code(), 29900);
  for (const char* bad :
       {"", "2", "2.", "2.x", "v2.27", "2.27.7.1", "2.-1", "2.27 ", "300.1.2x", "2.100"})
    EXPECT_EQ(parse_nccl_version(bad).status().code(), Code::kInvalidArgument) << bad;
}

}  // namespace
}  // namespace shoal
