#include "server/commands/cache_size.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>

#include "runtime/base/cat.h"

namespace shoal {
namespace {

void write(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text << "\n";
}

TEST(CacheSizeTest, CachesThatProcessorsShareCountOnce) {
  char name[] = "/tmp/cache_size_test.XXXXXX";
  const std::filesystem::path folder = ::mkdtemp(name);
  EXPECT_EQ(cache_bytes(folder), 0U);
  for (int cpu = 0; cpu < 4; ++cpu) {
    const auto caches = folder / cat("cpu", cpu) / "cache";
    const char* levels[] = {"1", "1", "2", "3"};
    const char* sizes[] = {"32K", "32K", "1024K", cpu < 2 ? "16384K" : "8M"};
    for (int i = 0; i < 4; ++i) {
      const auto cache = caches / cat("index", i);
      write(cache / "level", levels[i]);
      write(cache / "size", sizes[i]);
      write(cache / "shared_cpu_list", i < 3 ? cat(cpu) : cpu < 2 ? "0-1" : "2-3");
    }
  }
  EXPECT_EQ(cache_bytes(folder), uint64_t{24} << 20);
  std::filesystem::remove_all(folder);
}

TEST(CacheSizeTest, WeightsFitOrNot) {
  const uint64_t caches = uint64_t{24} << 20;
  EXPECT_TRUE(fit_in_caches(1, caches));
  EXPECT_TRUE(fit_in_caches(caches, caches));
  EXPECT_FALSE(fit_in_caches(caches + 1, caches));
  EXPECT_FALSE(fit_in_caches(uint64_t{300} << 20, caches));
  EXPECT_FALSE(fit_in_caches(1, 0)) << "the kernel does not tell";
}

}  // namespace
}  // namespace shoal
