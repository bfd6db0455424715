#include "server/shmtest/min_size.h"

#include <gtest/gtest.h>

namespace shoal::shmtest {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

/// What the search finds if the command passes in every /dev/shm of at least `need` bytes. The
/// kernel gives whole pages of `page` bytes. peak: how many bytes the command has there when it
/// passes.
SizeSearch searched(uint64_t need, uint64_t peak, uint64_t most, uint64_t page) {
  SizeSearch found;
  int tries = 0;
  for (std::optional<uint64_t> size = std::min(64 * kMiB, most); size && ++tries < 40;
       size = next_size(found, peak, most, page)) {
    EXPECT_TRUE(*size % page == 0 || *size == most) << *size << " in pages of " << page;
    const uint64_t given = (*size + page - 1) / page * page;
    (given >= need ? found.passes : found.fails) = *size;
  }
  EXPECT_LT(tries, 40) << "the search has no end";
  return found;
}

class MinSize : public testing::TestWithParam<uint64_t> {};

TEST_P(MinSize, IsFoundToAPageOrA32nd) {
  const uint64_t page = GetParam();
  for (const uint64_t need : {page + 1, 10 * page, 3 * kMiB, 100 * kMiB}) {
    for (const uint64_t peak : {uint64_t{0}, need / 2, need}) {
      const SizeSearch found = searched(need, peak, 1024 * kMiB, page);
      EXPECT_GE(found.passes, need);
      EXPECT_LE(found.passes, need + std::max(2 * page, need / 16)) << need << ", peak " << peak;
      EXPECT_LT(found.fails, need);
    }
  }
}

TEST_P(MinSize, IsNeverLessThanAPage) {
  const uint64_t page = GetParam();
  for (const uint64_t need : {uint64_t{0}, uint64_t{1}, page}) {
    const SizeSearch found = searched(need, need, 1024 * kMiB, page);
    EXPECT_EQ(found.passes, page);
    EXPECT_EQ(found.fails, 0u);
  }
}

TEST_P(MinSize, MayBeMoreThanThereIs) {
  const SizeSearch found = searched(300 * kMiB, 0, 200 * kMiB + 1, GetParam());
  EXPECT_EQ(found.passes, 0u);
  EXPECT_EQ(found.fails, 200 * kMiB + 1);
}

INSTANTIATE_TEST_SUITE_P(Pages, MinSize, testing::Values(4096, 16384, 65536));

}  // namespace
}  // namespace shoal::shmtest
