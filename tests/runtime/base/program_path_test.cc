#include "runtime/base/program_path.h"

#include <filesystem>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/in_child.h"

namespace shoal {
namespace {

TEST(ProgramPath, IsThisProgramWithAndWithoutProc) {
  const std::string here = std::filesystem::read_symlink("/proc/self/exe");
  EXPECT_STREQ(program_path(), "/proc/self/exe");
  EXPECT_STREQ(proc_hint(), "");
  const std::string said = in_child([]() -> std::string {
    // Nothing is mounted on /proc of an empty root.
    char folder[] = "/tmp/shoal-no-proc-XXXXXX";
    if (::mkdtemp(folder) == nullptr || ::chdir(folder) != 0 || ::rmdir(folder) != 0)
      return "no folder";
    if (::chroot(".") != 0) return "skip: no chroot";
    return std::string(program_path()) + proc_hint();
  });
  if (said.starts_with("skip")) GTEST_SKIP() << said;
  EXPECT_EQ(said, here + "; /proc is not mounted");
}

}  // namespace
}  // namespace shoal
