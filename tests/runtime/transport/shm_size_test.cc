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
      "size of a new, empty /dev/shm that suffices for every transport of 2 ranks (with the 256 KiB "
      "of --shm-headroom):\n"
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
      "least size of a new, empty /dev/shm that suffices for every transport of 2 ranks (with the "
      "256 KiB of --shm-headroom):\n"
      "  docker: --shm-size=273973248b  # at least, or 512m\n"
      "  kubernetes: sizeLimit: \"273973248\"  # bytes, at least, or 512Mi; its pages count against "
      "resources.limits.memory\n");
  EXPECT_EQ(to_json(size)["bound"], "at-least");
  needs[0].bound = Bound::kExact;
  EXPECT_EQ(to_json(shm_size_for({}, needs, 262144))["bound"], "at-most");
}

TEST(ShmSize, NamesNoHeadroomThatIsNotThere) {
  const std::vector<ShmNeed> needs = {need("a", 4096)};
  EXPECT_NE(to_text(shm_size_for({}, needs, 0), "2 ranks").find("every transport of 2 ranks:\n"),
            std::string::npos);
  EXPECT_NE(to_text(shm_size_for({}, needs, 1000), "2 ranks")
                .find("2 ranks (with the 1000 B of --shm-headroom):\n"),
            std::string::npos);
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
