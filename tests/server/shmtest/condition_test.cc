#include "server/shmtest/condition.h"

#include <gtest/gtest.h>

namespace shoal::shmtest {
namespace {

std::vector<std::string> names(const std::string& matrix) {
  const Result<std::vector<Condition>> parsed = parse_matrix(matrix);
  EXPECT_TRUE(parsed.ok()) << parsed.status().to_string();
  std::vector<std::string> found;
  if (parsed.ok()) {
    for (const Condition& condition : *parsed) found.push_back(condition.name);
  }
  return found;
}

std::string error(const std::string& matrix) {
  const Result<std::vector<Condition>> parsed = parse_matrix(matrix);
  EXPECT_FALSE(parsed.ok()) << matrix;
  EXPECT_EQ(parsed.status().code(), Code::kInvalidArgument);
  return std::string(parsed.status().message());
}

using Names = std::vector<std::string>;

TEST(ShmtestConditionTest, NamesInTheOrderGivenWithoutDoubles) {
  EXPECT_EQ(names("64m,4k,64m"), (Names{"64m", "4k"}));
  EXPECT_EQ(names("no-m*,n*-memfd"), (Names{"no-memfd"}));
  EXPECT_EQ(names("?m"), (Names{"1m"}));
}

TEST(ShmtestConditionTest, AllAndBasic) {
  EXPECT_EQ(names("all").size(), condition_names().size());
  const Names basic = names("basic");
  EXPECT_LT(basic.size(), condition_names().size());
  EXPECT_EQ(basic.front(), "host");
  EXPECT_EQ(names("basic,all").size(), condition_names().size());
}

TEST(ShmtestConditionTest, EveryNameOfTheTableParses) {
  for (const ConditionName& entry : condition_names()) {
    EXPECT_TRUE(parse_condition(entry.name).ok()) << entry.name;
    EXPECT_NE(list_conditions().find(entry.description), std::string::npos);
  }
}

TEST(ShmtestConditionTest, PlusJoins) {
  const Condition condition = parse_condition("1m+no-cma+no-memfd").value();
  EXPECT_EQ(condition.size_bytes, 1048576U);
  EXPECT_TRUE(condition.no_cma && condition.no_memfd);
  EXPECT_FALSE(condition.private_network() || condition.read_only || condition.stale_files);
  EXPECT_EQ(condition.name, "1m+no-cma+no-memfd");
}

TEST(ShmtestConditionTest, FullAfterTakesAnyTime) {
  EXPECT_DOUBLE_EQ(parse_condition("full-after-0.75s").value().full_after_s.value(), 0.75);
  EXPECT_EQ(parse_condition("full").value().size_bytes, 64U << 20);
  EXPECT_EQ(parse_condition("1m+full-after-3s").value().size_bytes, 1U << 20);
  for (const char* wrong :
       {"full-after-s", "full-after-xs", "full-after--1s", "full-after-1e9s", "full-after-nans"}) {
    EXPECT_NE(error(wrong).find("full-after-T"), std::string::npos) << error(wrong);
  }
}

TEST(ShmtestConditionTest, AnySizeIsAName) {
  EXPECT_EQ(parse_condition("128m").value().size_bytes, 128U << 20);
  EXPECT_EQ(parse_condition("2g+no-cma").value().size_bytes, uint64_t{2} << 30);
  EXPECT_EQ(parse_condition("8192").value().size_bytes, 8192U);
  EXPECT_EQ(parse_matrix("8k,128m").value().size(), 2U);
  EXPECT_NE(error("12").find("4k to 1t"), std::string::npos) << error("12");
  EXPECT_NE(error("2t").find("4k to 1t"), std::string::npos) << error("2t");
  EXPECT_NE(error("128q").find("unknown condition \"128q\"; a size is such as"), std::string::npos)
      << error("128q");
  for (const char* wrong : {"128x", "1.5m", "4k+128m", "128m+host"}) error(wrong);
}

TEST(ShmtestConditionTest, ContradictionsAreRefused) {
  for (const char* wrong :
       {"4k+1m", "host+4k", "missing+1m", "no-cma+no-cma", "full+full-after-2s",
        "missing+read-only", "host+full", "not-tmpfs+noexec", "host+stale-files",
        "no-inodes+few-inodes", "no-inodes+full", "few-inodes+stale-files"}) {
    EXPECT_NE(error(wrong).find(wrong), std::string::npos) << error(wrong);
  }
  EXPECT_TRUE(parse_condition("host+no-cma").ok());
  EXPECT_TRUE(parse_condition("not-tmpfs+stale-files").ok());
}

TEST(ShmtestConditionTest, UnknownNamesGetTheNearest) {
  EXPECT_NE(error("read-onli").find("did you mean read-only"), std::string::npos);
  EXPECT_NE(error("x*").find("matches no condition"), std::string::npos);
  for (const char* wrong : {"", "4k,", "4k,,1m", "+", "4k+", "all+4k"}) error(wrong);
}

}  // namespace
}  // namespace shoal::shmtest
