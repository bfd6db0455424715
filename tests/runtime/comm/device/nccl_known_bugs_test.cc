// Versions are literals, so that a row that changes has to be changed here too.
#include "runtime/comm/device/nccl_known_bugs.h"

#include <gtest/gtest.h>
#include <set>
#include <string>

namespace shoal {
namespace {

/// The sources of the bugs that this version has. No two rows of the table have the same source.
std::set<std::string> sources(int version) {
  std::set<std::string> found;
  for (const NcclBug* bug : nccl_bugs_of(version)) found.insert(bug->source);
  return found;
}

bool has(int version, const std::string& source) {
  for (const std::string& one : sources(version))
    if (one.find(source) != std::string::npos) return true;
  return false;
}

TEST(NcclKnownBugs, EachBeginsAndEndsWhereItsSourcesSay) {
  const struct {
    const char* source;
    int before, first_bad, last_bad, first_good;
  } rows[] = {
      {"nccl#983", 21108, 21207, 21806, 21901},
      {"nccl#1251", 21505, 21602, 22105, 22203},
      {"nccl#1637", 22403, 22501, 22501, 22602},
      {"2.24.3 and 2.26.3", 22304, 22403, 22602, 22603},
      {"llama.cpp#24489", -1, 21207, 22704, 22705},
      {"2.27.5 and 2.27.7", 22703, 22705, 22706, 22707},
      {"notes 2.28.7", 22606, 22703, 22803, 22807},
      {"NCCL_NVLS_ENABLE", 22606, 22703, 22809, 22902},
      {"nccl#2353", 22807, 22809, 22902, 22903},
      {"cuest", 22903, 22907, 23004, 23007},
      {"sglang#37768", 22707, 22803, 23004, 23007},
      {"nccl#2198", 22809, 22902, 23101, 23102},
      {"nccl#2241", 22809, 22902, 23101, 23102},
      {"nccl#2257", 23004, 23007, 23101, 23102},
      {"nccl#1838", 22304, 22403, 23203, 0},
      {"nccl#2190", 22602, 22603, 23203, 0},
      {"nccl#2077", 22809, 22902, 23203, 0},
  };
  ASSERT_EQ(std::size(rows), kNcclBugs.size());
  for (const auto& row : rows) {
    EXPECT_FALSE(row.before >= 0 && has(row.before, row.source)) << row.source;
    EXPECT_TRUE(has(row.first_bad, row.source)) << row.source;
    EXPECT_TRUE(has(row.last_bad, row.source)) << row.source;
    EXPECT_FALSE(row.first_good > 0 && has(row.first_good, row.source)) << row.source;
  }
}

TEST(NcclKnownBugs, OneTableRefusesAndSaysWhy) {
  EXPECT_EQ(kNcclFloor, 22705);
  for (const int refused : {21207, 22501, 22704}) {
    ASSERT_NE(refusing_nccl_bug(refused), nullptr) << refused;
    EXPECT_EQ(refusing_nccl_bug(refused)->first_good, kNcclFloor);
  }
  for (const int used : {22705, 22809, 23102, 29900})
    EXPECT_EQ(refusing_nccl_bug(used), nullptr) << used;
}

TEST(NcclKnownBugs, AMoveDoesNotEndInTheNextBug) {
  // 2.27.5 mends the bug for which 2.25.1 is refused, but it has other bugs.
  EXPECT_EQ(nccl_version_to_move_to(22501), 23102);
  EXPECT_EQ(nccl_version_to_move_to(22809), 23102);
  EXPECT_EQ(nccl_version_to_move_to(23101), 23102);
  EXPECT_EQ(nccl_version_to_move_to(23102), 23102);
  EXPECT_EQ(nccl_version_to_move_to(23203), 23203);
}

TEST(NcclKnownBugs, EveryRowIsComplete) {
  std::set<std::string> names;
  for (const NcclBug& bug : kNcclBugs) {
    EXPECT_NE(std::string(bug.what), "");
    EXPECT_NE(std::string(bug.source), "");
    EXPECT_TRUE(bug.first_good == 0 || bug.first_bad < bug.first_good) << bug.what;
    EXPECT_TRUE(bug.first_good > 0 || *bug.avoid != 0) << bug.what << ": and what helps?";
    const NcclBugConditionText& text = text_of(bug.condition);
    EXPECT_TRUE(*text.only_if != 0 && *text.engines != 0);
    names.insert(text.name);
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(NcclBugCondition::kHosts) + 1)
      << "each condition has a bug and a name of its own";
  EXPECT_STREQ(text_of(NcclBugCondition::kThreads).name, "threads");
  EXPECT_STREQ(text_of(NcclBugCondition::kHosts).name, "hosts");
}

TEST(NcclKnownBugs, VersionsInWords) {
  EXPECT_EQ(nccl_bug_versions(kNcclBugs[0]), "from 2.12.7 to before 2.19.1");
  EXPECT_EQ(nccl_bug_versions(NcclBug{.first_good = 22705}), "before 2.27.5");
  EXPECT_EQ(nccl_bug_versions(NcclBug{.first_bad = 22603}), "from 2.26.3 on");
}

}  // namespace
}  // namespace shoal
