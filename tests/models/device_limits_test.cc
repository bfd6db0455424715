#include "models/device_limits.h"

#include <gtest/gtest.h>

namespace shoal {
namespace {

ModelConfig small_config() {
  ModelConfig config;
  config.hidden_size = 256;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 64;
  return config;
}

/// What is said of a model that no kernel computes: both numbers, and the way out.
void expect_refused(const ModelConfig& config, const std::string& words) {
  const Status status = check_device_model(config);
  EXPECT_EQ(status.code(), Code::kUnimplemented);
  EXPECT_EQ(status.message(), "--device cuda: " + words + "; use --device cpu");
}

TEST(DeviceLimits, HeadsOfUpTo256ElementsAreComputed) {
  ModelConfig config = small_config();
  config.head_dim = 256;
  EXPECT_TRUE(check_device_model(config).ok());
  config.head_dim = 257;
  expect_refused(config, "head_dim 257 is above 256");
  config.head_dim = 512;
  expect_refused(config, "head_dim 512 is above 256");
}

TEST(DeviceLimits, TheRowOfANormHasALimit) {
  ModelConfig config = small_config();
  config.hidden_size = 24576;
  EXPECT_TRUE(check_device_model(config).ok());
  config.hidden_size = 24577;
  expect_refused(config, "hidden_size 24577 is above 24576");
}

TEST(DeviceLimits, HeadsHaveALimit) {
  ModelConfig config = small_config();
  config.num_attention_heads = 100000;
  EXPECT_EQ(check_device_model(config).code(), Code::kUnimplemented);
}

}  // namespace
}  // namespace shoal
