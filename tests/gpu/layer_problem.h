#pragma once
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/cat.h"
#include "runtime/base/dtype.h"
#include "tests/gpu/gpu_cases.h"
#include "tests/gpu/one_device.h"

namespace shoal::gpu {

/// Memory of one test on a device. The first error is kept, and nothing is done after it.
class Bench {
 public:
  explicit Bench(OneDevice& one) : one_(one) {}

  const ShoalCudaModule& module() const { return one_.device->module(); }
  void* stream() const { return one_.stream.get(); }
  bool ok() const { return status_.ok(); }
  /// "" or the first error.
  std::string wrong() const { return status_.ok() ? "" : status_.to_string(); }

  /// Puts the values into device memory, which lives as long as the bench.
  template <class T>
  T* put(const std::vector<T>& values) {
    return static_cast<T*>(put_bytes(values.data(), values.size() * sizeof(T)));
  }
  /// The same, but `shift` elements behind the begin of an allocation, which is aligned to all that
  /// a device asks for.
  template <class T>
  T* put(const std::vector<T>& values, size_t shift) {
    std::vector<T> all(shift);
    all.insert(all.end(), values.begin(), values.end());
    T* const begin = put(all);
    return begin == nullptr ? nullptr : begin + shift;
  }
  /// Device memory for the results of an op. Every byte is 0xff, which is NaN in bf16 and float32.
  template <class T>
  T* poisoned(size_t count) {
    const std::vector<unsigned char> poison(count * sizeof(T), 0xff);
    return static_cast<T*>(static_cast<void*>(put(poison)));
  }
  template <class T>
  std::vector<T> get(const T* from, size_t count) {
    std::vector<T> values(count);
    get_bytes(values.data(), from, count * sizeof(T));
    return values;
  }
  /// Overwrites what put() made.
  template <class T>
  void renew(void* to, const std::vector<T>& values) {
    if (ok()) status_ = one_.put(to, values.data(), values.size() * sizeof(T));
  }
  /// Takes what an entry of the module returned, and waits for the op.
  void finish(int32_t error, const char* what) {
    if (ok()) status_ = one_.device->check(error, what);
    if (ok()) status_ = one_.finish();
  }

 private:
  void* put_bytes(const void* values, size_t bytes);
  void get_bytes(void* to, const void* from, size_t bytes);

  OneDevice& one_;
  std::vector<Device::Memory> memory_;
  Status status_;
};

/// Numbers for a test. kUsual: between -2 and 2. kHostile: also with magnitudes far apart, zeros of
/// either sign, infinities and NaN.
enum class Numbers { kUsual, kHostile };
std::vector<float> floats(size_t count, uint64_t seed, Numbers numbers = Numbers::kUsual);
/// Usual ones.
std::vector<uint16_t> bf16s(size_t count, uint64_t seed);

/// The module's name of a type.
constexpr int32_t shoal_type(Dtype type) {
  return type == Dtype::kBf16 ? kShoalBf16 : type == Dtype::kF16 ? kShoalF16 : kShoalF32;
}
/// The types of weights that a device computes with, and what tells their cases apart.
inline constexpr Dtype kComputedTypes[] = {Dtype::kBf16, Dtype::kF16, Dtype::kF32};
inline std::string suffix_of(Dtype type) {
  return type == Dtype::kBf16 ? "" : cat("-", dtype_name(type));
}
/// The values as elements of a type, each rounded once, and back.
std::vector<std::byte> encoded(const std::vector<float>& values, Dtype type);
float rounded_to(float value, Dtype type);
std::vector<float> decoded(const std::vector<std::byte>& elements, Dtype type);

inline bool is_nan_of(float value) {
  return value != value;
}
inline bool is_nan_of(uint16_t bf16) {
  return (bf16 & 0x7fff) > 0x7f80;
}

/// The first place at which the two differ by a bit, or "". Two NaN are equal.
template <class T>
std::string first_difference(const std::vector<T>& got, const std::vector<T>& expected,
                             int64_t columns) {
  if (got.size() != expected.size()) return cat(got.size(), " values for ", expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (is_nan_of(got[i]) && is_nan_of(expected[i])) continue;
    if (std::memcmp(&got[i], &expected[i], sizeof(T)) == 0) continue;
    const auto at = static_cast<int64_t>(i);
    return cat("row ", at / columns, ", column ", at % columns, ": ", got[i], " for ", expected[i]);
  }
  return "";
}

struct RowExtent {
  int rows, cols;
};
inline constexpr RowExtent kRowExtents[] = {{1, 1},   {3, 63},   {2, 64},   {4, 65},
                                            {5, 100}, {2, 1023}, {3, 2050}, {2, 2052}};
/// By how many elements what an op reads and writes lies behind a multiple of 16 bytes, and by how
/// many the rows of its result are farther apart.
struct Shift {
  size_t input = 0, bias = 0, out = 0;
  int64_t rows = 0;
};
/// Each of them alone must keep an op from moving 16 bytes at once.
inline constexpr Shift kShifts[] = {{}, {.input = 1}, {.bias = 1}, {.out = 1}, {.rows = 1}};
/// Extents in which nothing else does.
inline constexpr RowExtent kWideExtents[] = {{3, 64}, {2, 200}};
inline std::string text_of(const Shift& shift) {
  return cat("shifted by ", shift.input, ", ", shift.bias, ", ", shift.out, ", ", shift.rows);
}

/// The extents of a case that runs in every order. `few` are small, and those of most orders.
struct OrderedExtents {
  std::span<const RowExtent> all, few;
};
/// Several rows, and lanes that add up more than one element each.
inline constexpr RowExtent kFewRowExtents[] = {{3, 65}, {1, 200}};
inline constexpr OrderedExtents kOrderedRows = {kRowExtents, kFewRowExtents};

/// Runs body with a device, in the arithmetic of the CPU's kernels.
std::string on_device(const Options& options, const std::function<std::string(OneDevice&)>& body);
/// The same with the emulated device's lanes and blocks in every order: all extents in the first
/// five orders, and a few extents in the others. A real device has only one order, and that order
/// gets all extents.
std::string in_every_order(
    const Options& options, const OrderedExtents& extents,
    const std::function<std::string(OneDevice&, std::span<const RowExtent>)>& body);

inline size_t area(int64_t rows, int64_t cols) {
  return static_cast<size_t>(rows) * static_cast<size_t>(cols);
}

/// The rows of out with their padding, behind which there is one element more, which must stay as
/// it was.
template <class T>
std::string compare_padded(Bench& bench, const T* out, std::vector<T> expected, int64_t stride) {
  T poison;
  std::memset(&poison, 0xff, sizeof poison);
  expected.push_back(poison);
  const std::vector<T> got = bench.get(out, expected.size());
  if (!bench.ok()) return bench.wrong();
  if (std::memcmp(&got.back(), &poison, sizeof poison) != 0)
    return "the end of the result was overwritten";
  return first_difference(got, expected, stride);
}
/// The type of activations that are kept in T.
template <class T>
inline constexpr Dtype kDtypeOf = sizeof(T) == 4 ? Dtype::kF32 : Dtype::kBf16;

}  // namespace shoal::gpu
