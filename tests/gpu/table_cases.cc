#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "bench/gpu/rank_processes.h"
#include "runtime/base/cat.h"
#include "runtime/base/thread_pool.h"
#include "runtime/comm/tree_sum.h"
#include "runtime/device/module_loader.h"
#include "runtime/memory/shm_segment.h"
#include "tests/conformance/tree_cases.h"
#include "tests/gpu/gpu_cases.h"
#include "tests/gpu/one_device.h"

namespace shoal::gpu {
namespace {

constexpr int kSeconds = 120;

std::string memory_is_zeroed_and_copied(const std::string& path) {
  Result<OneDevice> bench = OneDevice::open(path);
  SHOAL_EXPECT_OK(bench.status());
  for (const size_t bytes : {size_t{1}, size_t{4096}, size_t{3} << 20}) {
    std::vector<unsigned char> pattern(bytes), back(bytes, 7);
    for (size_t i = 0; i < bytes; ++i) pattern[i] = static_cast<unsigned char>(i * 31 + 1);
    // Two rounds, so that the second one uses memory that has been written and freed before.
    for (int round = 0; round < 2; ++round) {
      const Result<Device::Memory> first = bench->device->allocate(bytes);
      const Result<Device::Memory> second = bench->device->allocate(bytes);
      SHOAL_EXPECT_OK(first.status());
      SHOAL_EXPECT_OK(second.status());
      SHOAL_EXPECT_OK(bench->get(back.data(), first->get(), bytes));
      if (std::any_of(back.begin(), back.end(), [](unsigned char b) { return b != 0; })) {
        return cat(bytes, " fresh bytes are not zero");
      }
      SHOAL_EXPECT_OK(bench->put(first->get(), pattern.data(), bytes));
      SHOAL_EXPECT_OK(bench->device->copy(second->get(), first->get(), bytes, bench->stream.get()));
      SHOAL_EXPECT_OK(bench->get(back.data(), second->get(), bytes));
      if (back != pattern) return cat(bytes, " bytes differ after two copies");
    }
  }
  return "";
}

std::string errors_have_words(const std::string& path) {
  Result<OneDevice> bench = OneDevice::open(path);
  SHOAL_EXPECT_OK(bench.status());
  const ShoalCudaModule& module = bench->device->module();
  void* memory = nullptr;
  const int32_t none = module.select(4711);
  if (none == 0) return "there is no device 4711";
  if (std::strstr(module.error_text(none), "cudaError") == nullptr) return module.error_text(none);
  SHOAL_EXPECT_OK(Device::open(module, 0).status());
  if (module.allocate(size_t{1} << 60, &memory) == 0) return "an exbibyte was allocated";
  // An error that was reported once must not be reported again by later calls.
  ShoalTreeSum sum{};
  const Result<Device::Memory> two = bench->device->allocate(2 * sizeof(float));
  SHOAL_EXPECT_OK(two.status());
  sum.values = 1;
  sum.planes[0] = static_cast<float*>(two->get());
  sum.out = static_cast<float*>(two->get()) + 1;
  sum.count = 1;
  SHOAL_EXPECT_OK(bench->device->tree_sum(sum, bench->stream.get()));
  SHOAL_EXPECT_OK(bench->finish());
  return "";
}

/// A kernel reads what the host has written to a registered memfd, and writes there what the host
/// then reads.
std::string a_memfd_is_mapped(const std::string& path) {
  Result<OneDevice> bench = OneDevice::open(path);
  SHOAL_EXPECT_OK(bench.status());
  constexpr size_t kFloats = 100'000;
  const Result<ShmSegment> segment = ShmSegment::create_memfd(2 * kFloats * sizeof(float));
  SHOAL_EXPECT_OK(segment.status());
  auto* host = reinterpret_cast<float*>(segment->data());
  for (size_t i = 0; i < kFloats; ++i) host[i] = static_cast<float>(i);
  void* mapped = nullptr;
  const ShoalCudaModule& module = bench->device->module();
  SHOAL_EXPECT_OK(bench->device->check(
      module.register_host(segment->data(), segment->size(), &mapped), "register a memfd"));
  ShoalTreeSum sum{};
  sum.values = 2;
  sum.merges[1] = 1;
  sum.planes[0] = sum.planes[1] = static_cast<const float*>(mapped);
  sum.out = static_cast<float*>(mapped) + kFloats;
  sum.count = kFloats;
  SHOAL_EXPECT_OK(bench->device->tree_sum(sum, bench->stream.get()));
  SHOAL_EXPECT_OK(bench->finish());
  for (size_t i = 0; i < kFloats; ++i) {
    if (host[kFloats + i] != 2 * static_cast<float>(i))
      return cat("float ", i, ": ", host[kFloats + i]);
  }
  return bench->device->check(module.unregister_host(segment->data()), "unregister").ok()
             ? ""
             : "unregister";
}

/// Tries memory of the device itself, then of every other device that claims to be reachable.
std::string devices_reach_each_other(const std::string& path, int devices) {
  const Result<const ShoalCudaModule*> module = load_cuda_module(path);
  SHOAL_EXPECT_OK(module.status());
  constexpr int32_t kPeerUnsupported = 217;  // cudaErrorPeerAccessUnsupported
  for (int from = 0; from < devices; ++from) {
    for (int to = 0; to < devices; ++to) {
      int64_t wrong_bytes = -1;
      const int32_t error = (*module)->try_peer(from, to, 4 << 20, &wrong_bytes);
      if (error == kPeerUnsupported && from != to) continue;
      if (error != 0) return cat(from, " to ", to, ": ", (*module)->error_text(error));
      if (wrong_bytes != 0) return cat(from, " to ", to, ": ", wrong_bytes, " of 8 MiB are wrong");
    }
  }
  return "";
}

/// A value of any kind: of both signs, of very different magnitudes, subnormal, infinite, or zero
/// of either sign.
float any_value(Pattern& pattern) {
  switch (pattern.below(12)) {
    case 0:
      return std::ldexp(pattern.value(), -140);
    case 1:
      return pattern.below(2) == 0 ? 0.0F : -0.0F;
    case 2:
      return std::numeric_limits<float>::max() * (pattern.below(2) == 0 ? 1.0F : -1.0F);
    default:
      return pattern.value();
  }
}

std::string sums_like_the_cpu(OneDevice& bench, const FoldProgram& program, size_t count,
                              size_t offset, uint64_t seed) {
  const size_t values = program.merges.size();
  const size_t pitch = count + offset;
  Pattern pattern(seed);
  std::vector<float> host(values * pitch);
  for (float& value : host) value = any_value(pattern);
  const Result<Device::Memory> planes = bench.device->allocate(host.size() * sizeof(float));
  const Result<Device::Memory> out = bench.device->allocate((count + 1) * sizeof(float));
  SHOAL_EXPECT_OK(planes.status());
  SHOAL_EXPECT_OK(out.status());
  SHOAL_EXPECT_OK(bench.put(planes->get(), host.data(), host.size() * sizeof(float)));
  ShoalTreeSum sum{};
  sum.values = static_cast<int32_t>(values);
  sum.out = static_cast<float*>(out->get());
  sum.count = static_cast<int64_t>(count);
  std::vector<const float*> on_host;
  for (size_t i = 0; i < values; ++i) {
    sum.merges[i] = static_cast<uint8_t>(program.merges[i]);
    sum.planes[i] = static_cast<const float*>(planes->get()) + i * pitch + offset;
    on_host.push_back(host.data() + i * pitch + offset);
  }
  SHOAL_EXPECT_OK(bench.device->tree_sum(sum, bench.stream.get()));
  std::vector<float> got(count + 1), expected(count + 1, 0.0F);
  SHOAL_EXPECT_OK(bench.get(got.data(), out->get(), got.size() * sizeof(float)));
  tree_sum(program, on_host, expected.data(), count);
  for (size_t i = 0; i <= count; ++i) {  // one element beyond the end, which must still be zero
    if (std::isnan(got[i]) && std::isnan(expected[i]))
      continue;  // infinity minus infinity: even CPUs differ in the payload of that NaN
    if (std::memcmp(&got[i], &expected[i], sizeof(float)) != 0) {
      return cat("float ", i, " of ", count, ", ", values, " values: ", got[i], " for ",
                 expected[i]);
    }
  }
  return "";
}

/// quick: each count above 4096 is tried with every second program, and with one offset only.
std::string tree_sums_are_the_cpus(const std::string& path, bool quick) {
  set_float_environment();
  Result<OneDevice> bench = OneDevice::open(path);
  SHOAL_EXPECT_OK(bench.status());
  uint64_t seed = 1;
  for (const int ranks : {1, 2, 3, 4, 5, 7, 8, 11, 16}) {
    for (const int units : {16, 5}) {
      const FoldProgram program = make_reduce_plan(16, units, ranks).finish;
      for (const size_t count :
           {size_t{1}, size_t{3}, size_t{255}, size_t{4096}, size_t{10'007}, size_t{1} << 18}) {
        for (const size_t offset : {size_t{0}, size_t{1}, size_t{4}}) {
          if (quick && count > 4096 && (units == 5 || offset != 1)) continue;
          if (const std::string wrong = sums_like_the_cpu(*bench, program, count, offset, ++seed);
              !wrong.empty()) {
            return cat(ranks, " ranks, offset ", offset, ": ", wrong);
          }
        }
      }
    }
  }
  return "";
}

}  // namespace

void add_table_cases(const Options& options, std::vector<Case>& cases) {
  const std::string path = options.module;
  const auto add = [&](const std::string& name, std::string (*body)(const std::string&)) {
    cases.push_back(
        {name, [path, body] { return run_apart(kSeconds, [&] { return body(path); }); }});
  };
  add("table/memory", memory_is_zeroed_and_copied);
  add("table/errors", errors_have_words);
  add("table/memfd", a_memfd_is_mapped);
  cases.push_back({"table/peers", [path, devices = options.devices] {
                     return run_apart(kSeconds,
                                      [&] { return devices_reach_each_other(path, devices); });
                   }});
}

void add_tree_sum_cases(const Options& options, std::vector<Case>& cases) {
  const std::string path = options.module;
  cases.push_back({"tree-sum/bits", [path, quick = options.quick] {
                     return run_apart(kSeconds,
                                      [&] { return tree_sums_are_the_cpus(path, quick); });
                   }});
}

}  // namespace shoal::gpu
