#include "runtime/transport/needs/reservation.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include "runtime/base/page_size.h"
#include "tests/in_child.h"

namespace shoal {
namespace {

constexpr int64_t kMiB = 1 << 20;

/// The sizes of the files that a reservation takes under a limit, or the reason why it takes none.
std::string taken_under(int64_t limit, int64_t bytes) {
  return in_child([&]() -> std::string {
    ::signal(SIGXFSZ, SIG_DFL);
    const rlimit size{static_cast<rlim_t>(limit), static_cast<rlim_t>(limit)};
    if (::setrlimit(RLIMIT_FSIZE, &size) != 0) return "setrlimit";
    const auto pieces = reserve_for_library(bytes, "/dev/shm");
    if (!pieces.ok()) return pieces.status().to_string();
    std::string sizes;
    for (const ShmSegment& piece : *pieces) sizes += cat(piece.size(), " ");
    return sizes;
  });
}

TEST(Reservation, TakesAsFewFilesAsTheFileSizeLimitAllows) {
  EXPECT_EQ(taken_under(8 * kMiB, 3 * kMiB), "3145728 ");
  EXPECT_EQ(taken_under(kMiB, 3 * kMiB), "1048576 1048576 1048576 ");
  const auto page = static_cast<int64_t>(page_size());
  EXPECT_EQ(taken_under(kMiB + page - 1, 3 * kMiB + page),
            cat("1048576 1048576 1048576 ", page, " "));
  EXPECT_EQ(taken_under(kMiB, 0), "");
  EXPECT_NE(taken_under(100, kMiB).find("the file size limit is 100"), std::string::npos);
}

TEST(Reservation, WhatCannotBeHadIsSaidAndNothingIsKept) {
  const auto all = reserve_for_library(int64_t{1} << 60, "/dev/shm");
  EXPECT_EQ(all.status().code(), Code::kResourceExhausted) << all.status().to_string();
  EXPECT_EQ(reserve_for_library(kMiB, "/dev/shm/none").status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace shoal
