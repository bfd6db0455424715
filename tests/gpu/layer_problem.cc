#include "tests/gpu/layer_problem.h"

#include <limits>

#include "runtime/base/dtype.h"
#include "runtime/base/thread_pool.h"
#include "tests/conformance/tree_cases.h"
#include "tests/gpu/lane_orders.h"

namespace shoal::gpu {
namespace {

float usual(Pattern& pattern) {
  return static_cast<float>(pattern.below(1 << 16)) / (1 << 14) - 2.0f;
}

float hostile(Pattern& pattern) {
  constexpr float kSome[] = {0.0f,
                             -0.0f,
                             88.7f,
                             -88.7f,
                             -87.3f,
                             104.5f,
                             -104.5f,
                             1e-30f,
                             -3e38f,
                             std::numeric_limits<float>::infinity(),
                             -std::numeric_limits<float>::infinity(),
                             std::numeric_limits<float>::quiet_NaN()};
  const size_t kind = pattern.below(4);
  if (kind == 0) return kSome[pattern.below(std::size(kSome))];
  if (kind == 1) return pattern.value();
  return usual(pattern) * 16;
}

}  // namespace

void* Bench::put_bytes(const void* values, size_t bytes) {
  if (!ok()) return nullptr;
  Result<Device::Memory> memory = one_.device->allocate(bytes);
  status_ = memory.status();
  if (!ok()) return nullptr;
  memory_.push_back(*memory);
  status_ = one_.put(memory->get(), values, bytes);
  return memory->get();
}

void Bench::get_bytes(void* to, const void* from, size_t bytes) {
  if (ok()) status_ = one_.get(to, from, bytes);
}

std::vector<float> floats(size_t count, uint64_t seed, Numbers numbers) {
  Pattern pattern(seed);
  std::vector<float> values(count);
  for (float& value : values)
    value = numbers == Numbers::kUsual ? usual(pattern) : hostile(pattern);
  return values;
}

std::string on_device(const Options& options, const std::function<std::string(OneDevice&)>& body) {
  set_float_environment();
  Result<OneDevice> one = OneDevice::open(options.module);
  SHOAL_EXPECT_OK(one.status());
  return body(*one);
}

std::string in_every_order(
    const Options& options, const OrderedExtents& extents,
    const std::function<std::string(OneDevice&, std::span<const RowExtent>)>& body) {
  constexpr int kSeedsWithAll = 3;
  return on_device(options, [&](OneDevice& one) -> std::string {
    if (!options.stand_in) return body(one, extents.all);
    return in_lane_orders(kAllSeeds, [&](int order) {
      return body(one, order < kSeedsWithAll ? extents.all : extents.few);
    });
  });
}

std::vector<uint16_t> bf16s(size_t count, uint64_t seed) {
  std::vector<uint16_t> values;
  for (const float value : floats(count, seed)) values.push_back(float_to_bf16(value));
  return values;
}

std::vector<std::byte> encoded(const std::vector<float>& values, Dtype type) {
  std::vector<std::byte> elements(values.size() * dtype_bytes(type));
  std::byte* to = elements.data();
  for (const float value : values) {
    const uint16_t half = type == Dtype::kBf16 ? float_to_bf16(value) : float_to_f16(value);
    if (type == Dtype::kF32) {
      std::memcpy(to, &value, sizeof value);
    } else {
      std::memcpy(to, &half, sizeof half);
    }
    to += dtype_bytes(type);
  }
  return elements;
}

float rounded_to(float value, Dtype type) {
  return decoded(encoded({value}, type), type)[0];
}

std::vector<float> decoded(const std::vector<std::byte>& elements, Dtype type) {
  std::vector<float> values(elements.size() / dtype_bytes(type));
  const std::byte* from = elements.data();
  for (float& value : values) {
    uint16_t half = 0;
    std::memcpy(type == Dtype::kF32 ? static_cast<void*>(&value) : &half, from, dtype_bytes(type));
    if (type != Dtype::kF32)
      value = type == Dtype::kBf16 ? bf16_to_float(half) : f16_to_float(half);
    from += dtype_bytes(type);
  }
  return values;
}

}  // namespace shoal::gpu
