#include "runtime/supervisor/kept_pool.h"

#include <cstring>
#include <gtest/gtest.h>

namespace shoal {
namespace {

constexpr size_t kBytes = 8192;

/// A pool that is kept after a group over memfd has used it. on_left_behind: of that group.
struct Used {
  KeptPool pool;
  std::function<void()> on_left_behind = pool.on_left_behind();

  Used() {
    auto made = ShmSegment::create_memfd(kBytes);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    std::memset(made->data(), 1, kBytes);
    pool.keep("memfd", std::move(made).value());
  }
};

TEST(KeptPool, GoesToTheNextGroupOfItsRungFullOfZeros) {
  Used used;
  EXPECT_TRUE(used.pool.holds("memfd"));
  EXPECT_FALSE(used.pool.holds("shm"));
  EXPECT_FALSE(used.pool.take("shm").value());
  const auto result = used.pool.take("memfd");
  ASSERT_TRUE(result.ok() && *result) << result.status().to_string();
  const ShmSegment& taken = **result;
  EXPECT_EQ(taken.size(), kBytes);
  EXPECT_EQ(taken.data()[kBytes - 1], std::byte{0});
  EXPECT_FALSE(used.pool.holds("memfd"));
}

TEST(KeptPool, IsNotGivenToOthersWhileARankThatCannotBeEndedHasIt) {
  Used used;
  used.on_left_behind();
  EXPECT_FALSE(used.pool.take("memfd").value());
  EXPECT_FALSE(used.pool.holds("memfd")) << "it is given back";
  // The next pool is of a group that has all ended.
  const auto next = used.pool.on_left_behind();
  used.pool.keep("memfd", std::move(ShmSegment::create_memfd(kBytes)).value());
  used.on_left_behind();  // once more of the first group
  EXPECT_TRUE(used.pool.take("memfd").value());
}

TEST(KeptPool, ARungWithoutOneGivesBackWhatWasKept) {
  Used used;
  used.pool.keep("tcp", ShmSegment());
  EXPECT_FALSE(used.pool.holds("memfd"));
  EXPECT_FALSE(used.pool.holds("tcp"));
  used.on_left_behind();
}

TEST(KeptPool, AGroupMayOutliveIt) {
  std::function<void()> on_left_behind;
  {
    const Used used;
    on_left_behind = used.on_left_behind;
  }
  on_left_behind();
}

}  // namespace
}  // namespace shoal
