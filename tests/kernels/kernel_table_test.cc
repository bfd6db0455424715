#include "tests/kernels/kernel_test.h"

namespace shoal {
namespace {

TEST(KernelTable, AutoIsTheBestAndReferenceTheLast) {
  const std::vector<const KernelTable*> sets = available_kernels();
  ASSERT_FALSE(sets.empty());
  EXPECT_STREQ(sets.back()->name, "reference");
  const Result<const KernelTable*> best = find_kernels("auto");
  ASSERT_TRUE(best.ok());
  EXPECT_EQ(best.value(), sets.front());
  for (const KernelTable* set : sets) {
    const Result<const KernelTable*> found = find_kernels(set->name);
    ASSERT_TRUE(found.ok()) << set->name;
    EXPECT_EQ(found.value(), set);
  }
}

TEST(KernelTable, AnUnknownNameSaysWhatThereIs) {
  const Status status = find_kernels("sse9").status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("sse9"), std::string_view::npos) << status.message();
  EXPECT_NE(status.message().find("reference"), std::string_view::npos) << status.message();
}

#if defined(__x86_64__)
TEST(KernelTable, AKnownSetIsThereOrItsNeedIsNamed) {
  for (const char* name : {"avx2", "avx512", "avx512-bf16"}) {
    const Status status = find_kernels(name).status();
    if (status.ok()) continue;
    EXPECT_EQ(status.code(), Code::kFailedPrecondition) << name;
    EXPECT_NE(status.message().find("AVX"), std::string_view::npos) << status.message();
  }
}
#endif

}  // namespace
}  // namespace shoal
