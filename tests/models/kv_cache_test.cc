#include "models/kv_cache.h"

#include <gtest/gtest.h>

#include "tests/in_child.h"
#include "tests/resident_pages.h"

namespace shoal {
namespace {

std::string missing_pages() {
  const auto cache = KvCache::allocate(2, 64, 2, 64, Dtype::kF32);
  if (!cache.ok()) return cache.status().to_string();
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const auto bytes = static_cast<size_t>(cache->size_bytes());
  const size_t pages = (bytes + page - 1) / page,
               there = resident_pages(cache->layers().at(0).data, bytes);
  return there == pages ? "" : cat(there, " of ", pages, " pages are there");
}

TEST(KvCache, IsTouchedFromTheStart) {
  EXPECT_EQ(missing_pages(), "");
  const std::string before_5_14 = in_child([]() -> std::string {
    return deny_populate_write(EINVAL) ? missing_pages() : std::string("skip: no seccomp");
  });
  if (before_5_14.starts_with("skip")) GTEST_SKIP() << before_5_14;
  EXPECT_EQ(before_5_14, "");
}

TEST(KvCache, WhatCannotBeHadIsRefusedWithItsSize) {
  const auto cache = KvCache::allocate(1, 1 << 30, 1 << 10, 64, Dtype::kF32);
  EXPECT_EQ(cache.status().code(), Code::kResourceExhausted);
  EXPECT_NE(cache.status().to_string().find("KV cache of 1073741824 blocks"), std::string::npos)
      << cache.status().to_string();
  const auto one_block = KvCache::allocate(1, 1, 1 << 30, 1 << 10, Dtype::kF32);
  EXPECT_NE(one_block.status().to_string().find("KV cache of 1 block"), std::string::npos);
  EXPECT_EQ(one_block.status().to_string().find("1 blocks"), std::string::npos)
      << one_block.status().to_string();
}

}  // namespace
}  // namespace shoal
