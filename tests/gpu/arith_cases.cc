// What a device's arithmetic gives, beside the judge's tiles and the host's operations.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>

#include "bench/gpu/rank_processes.h"
#include "kernels/reference/exp.h"
#include "runtime/base/thread_pool.h"
#include "runtime/device/tensor_core_class.h"
#include "tests/conformance/tree_cases.h"
#include "tests/emulator/judged_verdicts.h"
#include "tests/gpu/chain.h"
#include "tests/gpu/gpu_cases.h"
#include "tests/gpu/layer_problem.h"

namespace shoal::gpu {
namespace {

constexpr int kSeconds = 300;

uint32_t bits_of(float value) {
  return std::bit_cast<uint32_t>(value);
}

/// The judge's tiles on the device's tensor cores: those that are kept in full, and then hashes.
std::string tiles_are_the_judges(const Options& options, int32_t type) {
  const std::string file = cat(SHOAL_GPU_TILES, "/", options.compute_major < 9 ? "sm80" : "sm90",
                               type == kShoalBf16 ? "_bf16.bin" : "_tf32.bin");
  const std::optional<judged::Verdicts> verdicts = judged::read_verdicts(file);
  if (!verdicts) return cat(file, " is not what it should be");
  Result<OneDevice> one = OneDevice::open(options.module);
  SHOAL_EXPECT_OK(one.status());
  const auto whole = multiply_judged_tiles(*one->device, type, 0, judged::kWholeTiles);
  SHOAL_EXPECT_OK(whole.status());
  for (size_t i = 0; i < whole->size(); ++i) {
    const size_t tile = i / judged::kResults, at = i % judged::kResults;
    if ((*whole)[i] == verdicts->whole[tile][at]) continue;
    char text[120];
    std::snprintf(text, sizeof text, "tile %zu of kind %zu, row %zu, column %zu: %08x for %08x",
                  tile, tile % judged::kKinds, at / judged::kColumns, at % judged::kColumns,
                  (*whole)[i], verdicts->whole[tile][at]);
    return text;
  }
  const int hashes = options.quick ? 5 : judged::kHashes;
  constexpr size_t kPiece = size_t{judged::kTilesOfHash} * judged::kResults;
  constexpr int kAtOnce = 100;
  for (int first = 0; first < hashes; first += kAtOnce) {
    const int count = std::min(kAtOnce, hashes - first);
    const auto results = multiply_judged_tiles(*one->device, type, first * judged::kTilesOfHash,
                                               count * judged::kTilesOfHash);
    SHOAL_EXPECT_OK(results.status());
    for (int i = 0; i < count; ++i) {
      const uint64_t hash = judged::hash_of(results->data() + i * kPiece, kPiece);
      if (hash != verdicts->hashes[static_cast<size_t>(first + i)])
        return cat("the hash of tiles from ", (first + i) * judged::kTilesOfHash, " on");
    }
  }
  return "";
}

/// Where an operation's results are drawn to.
enum Border { kAnywhere, kUsual, kSmallest, kOverflow, kBorders };

/// A number with the sign and fraction of `bits`. exponent is as in float32, and limited to the
/// finite ones.
float with_exponent(uint64_t bits, int exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits >> 63 << 31) |
                              static_cast<uint32_t>(std::clamp(exponent, 0, 254)) << 23 |
                              static_cast<uint32_t>(bits >> 40 & 0x7fffff));
}

/// The exponent of a result. Around the smallest normal number it is below 1 for what is flushed.
int exponent_at(Pattern& pattern, Border border) {
  switch (border) {
    case kSmallest:
      return static_cast<int>(pattern.below(4)) - 1;
    case kOverflow:
      return 252 + static_cast<int>(pattern.below(5));
    case kUsual:
      return 120 + static_cast<int>(pattern.below(14));
    default:
      return static_cast<int>(pattern.below(255));
  }
}

/// Arguments of the exponential: of whose results the border is, to some last bits.
float exponent_argument(Pattern& pattern, Border border) {
  constexpr float kToSmallest = -0x1.5d58ap+6f, kToOverflow = 0x1.62e43p+6f;  // -87.34, 88.72
  const auto near = [&](float value) {
    return std::bit_cast<float>(bits_of(value) + static_cast<uint32_t>(pattern.below(4096)) - 2048);
  };
  if (border == kSmallest) return near(kToSmallest);
  if (border == kOverflow) return near(kToOverflow);
  if (border == kUsual) return static_cast<float>(pattern.below(1 << 24)) * 0x1.82p-17f - 104;
  return std::bit_cast<float>(static_cast<uint32_t>(pattern.next() >> 32));
}

struct Operands {
  float x = 0, y = 0, z = 0;
};

/// Operands whose result is about at the border.
Operands draw(Pattern& pattern, int32_t operation) {
  const auto border = static_cast<Border>(pattern.below(kBorders));
  const auto any = [&] {
    return std::bit_cast<float>(static_cast<uint32_t>(pattern.next() >> 32));
  };
  if (operation == kShoalExponential) return {exponent_argument(pattern, border), 0, 0};
  if (border == kAnywhere) return {any(), any(), any()};
  const int result = exponent_at(pattern, border);
  const int first = 1 + static_cast<int>(pattern.below(254));
  const uint64_t x = pattern.next(), y = pattern.next(), z = pattern.next();
  const int apart = static_cast<int>(pattern.below(5)) - 2;
  switch (operation) {
    case kShoalAdd:
      return {with_exponent(x, result), with_exponent(y, result + apart), 0};
    case kShoalMultiply:
      return {with_exponent(x, first), with_exponent(y, result + 127 - first), 0};
    case kShoalFusedMultiplyAdd: {
      const Operands made{with_exponent(x, first), with_exponent(y, result + 127 - first),
                          with_exponent(z, result + apart)};
      // What is left of a product after its rounding shows that it was not rounded before.
      return pattern.below(4) > 0 ? made : Operands{made.x, made.y, -(made.x * made.y)};
    }
    case kShoalDivide:
      return {with_exponent(x, first), with_exponent(y, first - result + 127), 0};
    case kShoalToF16:  // whose exponents are 113 to 142, and less for its subnormals
      return {with_exponent(x, 100 + static_cast<int>(pattern.below(45))), 0, 0};
    default:
      return {with_exponent(x, result), 0, 0};
  }
}

/// What the host makes of them, in the arithmetic of its kernels.
uint32_t on_host(int32_t operation, const Operands& o) {
  switch (operation) {
    case kShoalAdd:
      return bits_of(o.x + o.y);
    case kShoalMultiply:
      return bits_of(o.x * o.y);
    case kShoalFusedMultiplyAdd:
      return bits_of(std::fma(o.x, o.y, o.z));
    case kShoalDivide:
      return bits_of(o.x / o.y);
    case kShoalSquareRoot:
      return bits_of(std::sqrt(o.x));
    case kShoalExponential:
      return bits_of(reference::exp(o.x));
    case kShoalToBf16:
      return float_to_bf16(o.x);
    case kShoalToF16:
      return float_to_f16(o.x);
    case kShoalFromF16:
      return bits_of(f16_to_float(static_cast<uint16_t>(bits_of(o.x))));
    default:
      return bits_of(rounded_to_tf32(o.x));
  }
}

bool is_nan_result(int32_t operation, uint32_t bits) {
  if (operation == kShoalToBf16) return (bits & 0x7fff) > 0x7f80;
  if (operation == kShoalToF16) return (bits & 0x7fff) > 0x7c00;
  return (bits & 0x7fffffff) > 0x7f800000;
}

std::string operation_has_the_hosts_bits(const Options& options, int32_t operation) {
  set_float_environment();
  Result<OneDevice> one = OneDevice::open(options.module);
  SHOAL_EXPECT_OK(one.status());
  const size_t count = options.quick ? 20'000 : 1'000'000;
  Pattern pattern(static_cast<uint64_t>(operation) + 31);
  std::vector<float> x(count), y(count), z(count);
  for (size_t i = 0; i < count; ++i) {
    const Operands operands = draw(pattern, operation);
    x[i] = operands.x;
    y[i] = operands.y;
    z[i] = operands.z;
  }
  Bench bench(*one);
  auto* const out = bench.poisoned<uint32_t>(count);
  const ShoalOperation args{
      operation, static_cast<int64_t>(count), bench.put(x), bench.put(y), bench.put(z), out};
  bench.finish(bench.module().operate(&args, bench.stream()), "operate");
  const std::vector<uint32_t> got = bench.get(out, count);
  if (!bench.ok()) return bench.wrong();
  size_t wrong = 0;
  char first[160] = "";
  for (size_t i = 0; i < count; ++i) {
    const uint32_t expected = on_host(operation, {x[i], y[i], z[i]});
    if (got[i] == expected) continue;
    if (is_nan_result(operation, got[i]) && is_nan_result(operation, expected)) continue;
    if (wrong++ > 0) continue;
    std::snprintf(first, sizeof first, "of %08x, %08x and %08x: %08x for %08x", bits_of(x[i]),
                  bits_of(y[i]), bits_of(z[i]), got[i], expected);
  }
  return wrong == 0 ? "" : cat(wrong, " of ", count, " results differ, the first ", first);
}

}  // namespace

void add_arith_cases(const Options& options, std::vector<Case>& cases) {
  const auto add = [&](const std::string& name, const std::function<std::string()>& body) {
    cases.push_back({name, [body] { return run_apart(kSeconds, body); }});
  };
  add("arith/tiles", [=] { return tiles_are_the_judges(options, kShoalBf16); });
  add("arith/tiles-float16", [=] { return tiles_are_the_judges(options, kShoalF16); });
  constexpr const char* kNames[] = {
      "add",     "multiply", "fused-multiply-add", "divide", "square-root", "exponential",
      "to-bf16", "to-f16",   "from-f16",           "to-tf32"};
  static_assert(std::size(kNames) == kShoalOperations);
  for (int32_t operation = 0; operation < kShoalOperations; ++operation) {
    add(cat("arith/", kNames[operation]),
        [=] { return operation_has_the_hosts_bits(options, operation); });
  }
}

}  // namespace shoal::gpu
