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

}  // namespace
}  // namespace shoal
