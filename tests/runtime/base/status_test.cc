#include "runtime/base/status.h"

#include <cerrno>
#include <gtest/gtest.h>
#include <memory>
#include <string>

namespace shoal {
namespace {

TEST(StatusTest, OkSaysSo) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), Code::kOk);
  EXPECT_EQ(status.message(), "");
  EXPECT_EQ(status.to_string(), "OK");
  EXPECT_TRUE(status.while_doing("anything").ok());
  EXPECT_TRUE(status.because_of(Code::kInternal, "anything").ok());
}

TEST(StatusTest, CodesAreGoogleRpcs) {
  EXPECT_EQ(code_name(Code::kOk), "OK");
  EXPECT_EQ(code_name(Code::kInvalidArgument), "INVALID_ARGUMENT");
  EXPECT_EQ(static_cast<int>(Code::kResourceExhausted), 8);
  EXPECT_EQ(code_name(Code::kResourceExhausted), "RESOURCE_EXHAUSTED");
  EXPECT_EQ(static_cast<int>(Code::kUnauthenticated), 16);
  EXPECT_EQ(code_name(Code::kUnauthenticated), "UNAUTHENTICATED");
  // Codes are received from other processes, so every number must have a name.
  EXPECT_EQ(code_name(static_cast<Code>(99)), "CODE_99");
  EXPECT_EQ(code_name(static_cast<Code>(-1)), "CODE_-1");
}

TEST(StatusTest, AnErrorKnowsWhereAndWho) {
  set_process_rank(3);
  const Status status = Status::error(Code::kDataLoss, "read weights", EIO);
  const int line = __LINE__ - 1;
  set_process_rank(kFrontRank);
  ASSERT_EQ(status.causes().size(), 1u);
  const Cause& cause = status.causes().front();
  EXPECT_EQ(cause.rank, 3);
  EXPECT_EQ(cause.where, cat("base/status_test.cc:", line));
  EXPECT_EQ(cause.os_error, EIO);
  EXPECT_EQ(status.message(), "read weights");
  EXPECT_EQ(status.to_string(), "DATA_LOSS: read weights: Input/output error (5)");
}

TEST(StatusTest, TheChainReadsFromWishToRoot) {
  const Status root = Status::error(Code::kNotFound, "open x", ENOENT, "a/b/file.cc", 7);
  const Status status = root.while_doing("load shard 2").because_of(Code::kUnavailable, "no model");
  EXPECT_EQ(status.code(), Code::kUnavailable);
  ASSERT_EQ(status.causes().size(), 3u);
  EXPECT_EQ(status.causes()[1].code, Code::kNotFound);  // while_doing keeps the code
  const std::string text = status.to_string();
  EXPECT_TRUE(
      text.starts_with("UNAVAILABLE: no model\n  because NOT_FOUND [front] base/status_test.cc:"))
      << text;
  EXPECT_TRUE(text.ends_with(
      "\n  because NOT_FOUND [front] b/file.cc:7 open x: No such file or directory (2)"))
      << text;
  EXPECT_EQ(root.causes().size(), 1u);  // the original is unchanged
}

TEST(StatusTest, APersonReadsNoCodesAndPlaces) {
  set_process_rank(1);
  const Status root = Status::error(Code::kNotFound, "open x", ENOENT, "a/b/file.cc", 7);
  set_process_rank(kFrontRank);
  const Status status = root.while_doing("load shard 2").because_of(Code::kUnavailable, "no model");
  EXPECT_EQ(
      status.plain_text(),
      "no model\n  because load shard 2\n  because rank 1: open x: No such file or directory");
  EXPECT_EQ(root.plain_text(), "open x: No such file or directory");
  EXPECT_EQ(Status().plain_text(), "");
  EXPECT_LE(status.plain_text(40).size(), 40u);
}

TEST(StatusTest, ALongChainKeepsItsEnds) {
  Status status = Status::error(Code::kInternal, "the root of it all");
  for (int i = 0; i < 100; ++i)
    status = status.while_doing(cat("step ", i, " ", std::string(50, '.')));
  status = status.while_doing("the wish");
  // Where the middle is cut depends on the lengths of the lines, so that a few limits show little.
  for (size_t limit = 200; limit <= 4000; limit += limit < 300 ? 1 : 400) {
    const std::string text = status.to_string(limit);
    EXPECT_LE(text.size(), limit);
    EXPECT_TRUE(text.starts_with("INTERNAL: the wish\n")) << text;
    EXPECT_TRUE(text.ends_with("the root of it all")) << text;
    EXPECT_NE(text.find("\n  ...\n"), std::string::npos) << text;
  }
}

TEST(StatusTest, ALongTextIsCutBetweenCharacters) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "\xE2\x82\xAC";  // the euro sign, which takes three bytes
  const Status status = Status::error(Code::kInternal, text);
  for (size_t limit = 20; limit < 60; ++limit) {
    const std::string shown = status.to_string(limit);
    EXPECT_LE(shown.size(), limit);
    const std::string kept = shown.substr(0, shown.size() - 3);
    EXPECT_EQ((kept.size() - std::string("INTERNAL: ").size()) % 3, 0u) << limit;
  }
}

Result<std::unique_ptr<int>> halve(int number) {
  if (number % 2 != 0) return Status::error(Code::kInvalidArgument, cat(number, " is odd"));
  return std::make_unique<int>(number / 2);
}

Result<int> quarter(int number) {
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<int> half, halve(number));
  std::unique_ptr<int> rest;
  SHOAL_ASSIGN_OR_RETURN(rest, halve(*half));
  return *rest;
}

Status check_quarter(int number) {
  SHOAL_RETURN_IF_ERROR(quarter(number).status());
  return {};
}

TEST(ResultTest, CarriesValuesThatOnlyMoveAndErrors) {
  const Result<int> four = quarter(16);
  ASSERT_TRUE(four.ok());
  EXPECT_EQ(*four, 4);
  EXPECT_TRUE(four.status().ok());
  EXPECT_EQ(quarter(6).status().message(), "3 is odd");
  EXPECT_EQ(quarter(5).status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(check_quarter(8).ok());
  EXPECT_EQ(check_quarter(7).message(), "7 is odd");
}

}  // namespace
}  // namespace shoal
