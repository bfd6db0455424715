#include "runtime/base/program_path.h"

#include <filesystem>
#include <gtest/gtest.h>
#include <sched.h>
#include <string>
#include <sys/mount.h>
#include <unistd.h>

#include "tests/in_child.h"

namespace shoal {
namespace {

TEST(ProgramPath, LeadsToTheFileThatRuns) {
  const std::string here = std::filesystem::read_symlink("/proc/self/exe");
  const Result<std::string> path = program_path();
  ASSERT_TRUE(path.ok()) << path.status().to_string();
  EXPECT_TRUE(path->starts_with("/proc/self/fd/")) << *path;
  EXPECT_EQ(std::filesystem::read_symlink(*path), here);
  EXPECT_EQ(program_name(), here);
  EXPECT_STREQ(proc_hint(), "");
}

TEST(ProgramPath, WithoutProcIsTheNameAsLongAsItIsTheSameFile) {
  const std::string said = in_child([]() -> std::string {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::umount2("/proc", MNT_DETACH) != 0)
      return "skip: /proc cannot be unmounted here";
    const Result<std::string> alone = program_path();
    if (!alone.ok() || *alone != program_name()) return alone.status().to_string() + proc_hint();
    if (::mount("/bin/sh", program_name().c_str(), nullptr, MS_BIND, nullptr) != 0)
      return "skip: no file can be put in the place of another here";
    return std::string(program_path().status().message()) + proc_hint();
  });
  if (said.starts_with("skip")) GTEST_SKIP() << said;
  EXPECT_EQ(said, "without /proc the program is started by its path, and " + program_name() +
                      " is another file by now, or gone; start the server again"
                      "; /proc is not mounted");
}

TEST(ProgramBuild, IsWhatTheLinkerMade) {
  const std::string& build = program_build();
  EXPECT_EQ(build.size(), 40u) << build;
  EXPECT_EQ(build.find_first_not_of("0123456789abcdef"), std::string::npos) << build;
}

}  // namespace
}  // namespace shoal
