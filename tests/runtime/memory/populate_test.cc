#include "runtime/memory/populate.h"

#include <cerrno>
#include <gtest/gtest.h>

#include "tests/in_child.h"
#include "tests/resident_pages.h"

namespace shoal {
namespace {

/// Returns "" if all fresh pages are resident afterwards and hold what they held before.
std::string touches_every_page() {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t bytes = 64 * page;
  void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return "mmap";
  auto* data = static_cast<std::byte*>(mapped);
  data[0] = data[bytes - page] = std::byte{7};
  if (resident_pages(data, bytes) == 64) return "they were there before";
  if (const Status touched = populate(data, bytes - 1); !touched.ok()) return touched.to_string();
  if (data[0] != std::byte{7} || data[bytes - page] != std::byte{7}) return "a byte has changed";
  return resident_pages(data, bytes) == 64 ? "" : "not every page is there";
}

TEST(Populate, TouchesEveryPage) {
  EXPECT_EQ(touches_every_page(), "");
  EXPECT_TRUE(populate(nullptr, 0).ok());
}

TEST(Populate, TouchesThemOneByOneWhereTheKernelKnowsNoBetter) {
  // A kernel says EINVAL to an advice that it does not know. A filter may say something else.
  for (const uint32_t error : {EINVAL, EPERM, ENOSYS}) {
    const std::string said = in_child([error]() -> std::string {
      return deny_populate_write(error) ? touches_every_page() : std::string("skip: no seccomp");
    });
    if (said.starts_with("skip")) GTEST_SKIP() << said;
    EXPECT_EQ(said, "") << error;
  }
}

TEST(Populate, ALackOfMemoryIsNotTriedAgainPageByPage) {
  const std::string said = in_child([]() -> std::string {
    if (!deny_populate_write(ENOMEM)) return "skip: no seccomp";
    std::byte page[1];
    const Status status = populate(page, 1);
    return status.code() == Code::kResourceExhausted ? "" : status.to_string();
  });
  if (said.starts_with("skip")) GTEST_SKIP() << said;
  EXPECT_EQ(said, "");
}

TEST(Populate, WhatCannotBeTouchedIsAnError) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  void* mapped = ::mmap(nullptr, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  ::munmap(mapped, page);
  EXPECT_EQ(populate(static_cast<std::byte*>(mapped), page).code(), Code::kResourceExhausted);
}

}  // namespace
}  // namespace shoal
