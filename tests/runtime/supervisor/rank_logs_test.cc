#include "runtime/supervisor/rank_logs.h"

#include <cstdio>
#include <gtest/gtest.h>

namespace shoal {
namespace {

// Writes as NCCL does: it opens the descriptor's path again and writes line by line.
TEST(RankLogs, WhatIsWrittenByTheDescriptorsNameIsRead) {
  const auto logs = make_rank_logs(3);
  ASSERT_TRUE(logs.ok()) << logs.status().to_string();
  std::FILE* file = std::fopen(cat("/proc/self/fd/", (*logs)[1].get()).c_str(), "w");
  ASSERT_NE(file, nullptr);
  std::fputs("one\ntwo\n", file);
  std::fflush(file);
  EXPECT_EQ(read_rank_logs(*logs), (std::vector<std::string>{"", "one\ntwo\n", ""}));
  std::fputs("three\n", file);
  std::fclose(file);
  EXPECT_EQ(read_rank_logs(*logs)[1], "one\ntwo\nthree\n");
  EXPECT_TRUE(read_rank_logs({}).empty());
}

}  // namespace
}  // namespace shoal
