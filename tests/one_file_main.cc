#include <cstdio>
#include <gtest/gtest.h>
#include <string>
#include <string_view>

/// The main function of a program that holds the tests of several files (shoal_tests in
/// cmake/shoal_targets.cmake). With `--of-file=NAME_test.cc` it runs only the tests of that file,
/// so that CTest runs and names each file alone. Without it, gtest's own flags choose.

namespace {

constexpr std::string_view kOfFile = "--of-file=";

/// gtest's filter for all tests of that file: their full names with colons between them.
std::string tests_of_file(std::string_view file) {
  std::string names;
  const auto& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const auto& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const auto& test = *suite.GetTestInfo(j);
      const std::string_view path = test.file();
      if (path.substr(path.rfind('/') + 1) != file) continue;
      names.append(names.empty() ? "" : ":").append(suite.name()).append(".").append(test.name());
    }
  }
  return names;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc > 1 && std::string_view(argv[1]).starts_with(kOfFile)) {
    const std::string names = tests_of_file(std::string_view(argv[1]).substr(kOfFile.size()));
    if (names.empty()) {
      std::fprintf(stderr, "%s: no test of this program comes from such a file\n", argv[1]);
      return 1;
    }
    GTEST_FLAG_SET(filter, names);
  }
  return RUN_ALL_TESTS();
}
