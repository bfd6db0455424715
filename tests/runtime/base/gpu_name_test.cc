#include "runtime/base/gpu_name.h"

#include <gtest/gtest.h>

namespace shoal {
namespace {

TEST(GpuNameTest, SaysWhatIsKnown) {
  EXPECT_EQ(to_text(GpuName{3, "GPU-8f", "NVIDIA H100"}), "GPU 3 (GPU-8f, NVIDIA H100)");
  EXPECT_EQ(to_text(GpuName{3, "", "NVIDIA H100"}), "GPU 3 (NVIDIA H100)");
  EXPECT_EQ(to_text(GpuName{3, "GPU-8f", ""}), "GPU 3 (GPU-8f)");
  EXPECT_EQ(to_text(GpuName{3}), "GPU 3");
}

TEST(GpuNameTest, TheUuidSaysWhichGpuItIs) {
  EXPECT_TRUE(is_same_gpu({0, "GPU-8f", "H100"}, {1, "GPU-8f", "H100"}));
  EXPECT_FALSE(is_same_gpu({0, "GPU-8f", "H100"}, {0, "GPU-90", "H100"}));
  EXPECT_TRUE(is_same_gpu({2, "", ""}, {2, "GPU-90", "H100"})) << "the number is all that is known";
  EXPECT_FALSE(is_same_gpu({2, "", ""}, {3, "", ""}));
}

}  // namespace
}  // namespace shoal
