#include "runtime/base/fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <utility>

namespace shoal {
namespace {

bool is_open(int fd) {
  return ::fcntl(fd, F_GETFD) != -1;
}
int open_something() {
  return ::open("/dev/null", O_RDONLY | O_CLOEXEC);
}

TEST(FdTest, ClosesAtTheEndOfItsScope) {
  int number = -1;
  {
    const Fd fd(open_something());
    number = fd.get();
    ASSERT_TRUE(fd.valid());
    EXPECT_TRUE(is_open(number));
  }
  EXPECT_FALSE(is_open(number));
  EXPECT_FALSE(Fd().valid());
}

TEST(FdTest, MovesAndCloses) {
  Fd first(open_something());
  const int a = first.get();
  Fd second(open_something());
  const int b = second.get();
  second = std::move(first);
  EXPECT_FALSE(first.valid());  // NOLINT: the state after a move is part of the contract
  EXPECT_EQ(second.get(), a);
  EXPECT_FALSE(is_open(b));
  Fd& same = second;
  second = std::move(same);
  EXPECT_TRUE(is_open(a));
  const int released = second.release();
  EXPECT_FALSE(second.valid());
  EXPECT_TRUE(is_open(released));
  second.reset(released);
  second.reset();
  EXPECT_FALSE(is_open(released));
}

}  // namespace
}  // namespace shoal
