#include "runtime/transport/shm_size.h"

#include <gtest/gtest.h>
#include <limits>

namespace shoal {
namespace {

ShmNeed need(const char* rung, int64_t bytes) {
  ShmNeed one;
  one.rung = rung;
  if (bytes > 0) one.dev_shm.push_back({"all", bytes, 1});
  return one;
}

TEST(ShmSize, IsThatOfTheLargestNeedWithWhatIsLeftForOthers) {
  const std::vector<ShmNeed> needs = {need("a", 77201408), need("b", 273711104), need("c", 0)};
  const ShmSize size = shm_size_for({}, needs, 262144);
  EXPECT_EQ(size.bytes, 273711104 + 262144);
  EXPECT_EQ(
      to_text(size, "2 ranks"),
      "a fresh /dev/shm for 2 ranks in which any transport fits, with what is left for others:\n"
      "  docker: --shm-size=273973248b  # or 512m\n"
      "  kubernetes: sizeLimit: \"273973248\"  # bytes, or 512Mi; its pages count against "
      "resources.limits.memory\n");
  const Json json = to_json(size);
  EXPECT_EQ(json["bytes"], 273973248);
  EXPECT_EQ(json["bound"], "exact");
  EXPECT_EQ(json["docker"], "--shm-size=273973248b");
  EXPECT_EQ(json["kubernetes"], "sizeLimit: \"273973248\"");
  EXPECT_EQ(json["round"]["docker"], "512m");
  EXPECT_EQ(json["round"]["kubernetes"], "512Mi");
}

TEST(ShmSize, OfALeastNeedIsTheLeast) {
  std::vector<ShmNeed> needs = {need("a", 77201408), need("b", 273711104)};
  needs[0].bound = Bound::kAtLeast;
  needs[1].bound = Bound::kAtMost;
  const ShmSize size = shm_size_for({}, needs, 262144);
  EXPECT_EQ(size.bytes, 273973248);
  EXPECT_EQ(
      to_text(size, "2 ranks"),
      "a fresh /dev/shm for 2 ranks in which the least of any transport fits, with what is left for others:\n"
      "  docker: --shm-size=273973248b  # at least, or 512m\n"
      "  kubernetes: sizeLimit: \"273973248\"  # bytes, at least, or 512Mi; its pages count against "
      "resources.limits.memory\n");
  EXPECT_EQ(to_json(size)["bound"], "at-least");
  needs[0].bound = Bound::kExact;
  EXPECT_EQ(to_json(shm_size_for({}, needs, 262144))["bound"], "at-most");
}

TEST(ShmSize, IsInWholePages) {
  EXPECT_EQ(shm_size_for({}, std::vector<ShmNeed>{need("a", 4096)}, 1).bytes, 8192);
}

TEST(ShmSize, IsNothingIfNoSizeIsOfUse) {
  for (const ShmSize& size :
       {shm_size_for({}, std::vector<ShmNeed>{need("a", 0)}, 262144), shm_size_for({}, {}, 262144),
        shm_size_for({}, std::vector<ShmNeed>{need("a", 1 << 20)},
                     std::numeric_limits<int64_t>::max())}) {
    EXPECT_EQ(to_text(size, "2 ranks"), "");
    EXPECT_EQ(to_json(size), nullptr);
  }
}

}  // namespace
}  // namespace shoal
