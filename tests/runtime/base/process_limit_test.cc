#include "runtime/base/process_limit.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "tests/in_child.h"

namespace shoal {
namespace {

TEST(ProcessLimit, AddressSpaceBeyondTheLimitIsRefusedWithTheLimit) {
  const std::string said = in_child([]() -> std::string {
    constexpr int64_t kBytes = int64_t{1} << 30;
    if (!reserve_address_space(1 << 20).ok() || !reserve_address_space(0).ok()) return "refused";
    const struct rlimit limit { kBytes, kBytes };
    if (::setrlimit(RLIMIT_AS, &limit) != 0) return "skip: setrlimit";
    const Status refused = reserve_address_space(kBytes);
    return refused.code() == Code::kResourceExhausted ? std::string(refused.message())
                                                      : refused.to_string();
  });
  if (said.starts_with("skip")) GTEST_SKIP() << said;
  EXPECT_EQ(said,
            "reserve 1073741824 B (1024.0 MiB) of address space; a process may have 1073741824 B "
            "(1024.0 MiB) (ulimit -v)");
}

TEST(ProcessLimit, ALimitThatDoesNotExistIsNotSaid) {
  const std::string said = in_child([]() -> std::string {
    struct rlimit limit;
    if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_max != RLIM_INFINITY)
      return "skip: this user's address space is limited";
    limit.rlim_cur = RLIM_INFINITY;
    if (::setrlimit(RLIMIT_AS, &limit) != 0) return "skip: setrlimit";
    return "said:" + address_space_limit();
  });
  if (said.starts_with("skip")) GTEST_SKIP() << said;
  EXPECT_EQ(said, "said:");
}

TEST(ProcessLimit, AUserWithoutALimitHasThatOfTheContainer) {
  const auto said_with = [](rlim_t most) {
    return in_child([most]() -> std::string {
      const struct rlimit limit { most, RLIM_INFINITY };
      return ::setrlimit(RLIMIT_NPROC, &limit) == 0 ? process_limit() : "skip: setrlimit";
    });
  };
  if (said_with(RLIM_INFINITY).starts_with("skip"))
    GTEST_SKIP() << "this user may not raise its limit of processes (CAP_SYS_RESOURCE)";
  EXPECT_EQ(said_with(RLIM_INFINITY), "; the container's limit of processes (pids) is reached");
  EXPECT_TRUE(said_with(7).starts_with("; its user may have 7 ")) << said_with(7);
}

}  // namespace
}  // namespace shoal
