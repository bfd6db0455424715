#include "runtime/device/cuda_module.h"

#include <cstring>
#include <dlfcn.h>
#include <gtest/gtest.h>

namespace {

TEST(CudaModule, LoadsWithoutADriverAndSaysSoPolitely) {
  void* library = ::dlopen(SHOAL_CUDA_MODULE, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << ::dlerror();
  const auto entry = reinterpret_cast<ShoalCudaModuleFunction>(::dlsym(library, "shoal_cuda_module"));
  ASSERT_NE(entry, nullptr) << ::dlerror();
  const ShoalCudaModule* module = entry();
  ASSERT_EQ(module->struct_bytes, sizeof(ShoalCudaModule));
  EXPECT_STREQ(module->version, SHOAL_VERSION);
  EXPECT_GE(module->cuda_runtime_version, 11000);
  char error[200] = "";
  const int devices = module->device_count(error, sizeof error);
  if (devices < 0) {
    EXPECT_NE(std::strlen(error), 0u) << "no device, and no reason";
  } else {
    EXPECT_STREQ(error, "");
  }
}

}  // namespace
