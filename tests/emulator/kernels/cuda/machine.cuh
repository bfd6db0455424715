#pragma once
// Takes the place of kernels/cuda/machine.cuh if the kernels are compiled for the emulated device.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <cuda_runtime.h>

#include "tests/emulator/block_memory.h"
#include "tests/emulator/conversions.h"
#include "tests/emulator/fragments.h"
#include "tests/emulator/lanes.h"
#include "tests/emulator/launching.h"
#include "tests/emulator/memory.h"
#include "tests/emulator/pending_copies.h"

namespace shoal::cuda {

// These are small, because a fiber is expensive under ThreadSanitizer, and all blocks of a push are
// under way at the same time. A push needs at least one lane per rank.
inline constexpr int kSumThreads = 8;
inline constexpr int kSumBlocks = 3;
inline constexpr int kPatternThreads = 8;
inline constexpr int kPatternBlocks = 3;
inline constexpr int kNormThreads = 128;
inline constexpr int kPushThreads = 16;
inline constexpr int kPushBlocks = 3;

/// The number of blocks in each dimension.
struct Grid {
  int64_t x = 1, y = 1, z = 1;
};

/// How many kernels this process has launched, or has tried to.
inline std::atomic<int64_t> launched{0};

template <class Args>
cudaError_t launch(void (*kernel)(Args), Grid grid, int threads, size_t shared_bytes,
                   const Args& args, void* stream, bool early = false) {
  launched.fetch_add(1, std::memory_order_relaxed);
  return emulator::enqueue(kernel, early, {grid.x, grid.y, grid.z}, threads, shared_bytes, args,
                           stream);
}
template <class Args>
cudaError_t launch(void (*kernel)(Args), int64_t blocks, int threads, const Args& args,
                   void* stream) {
  return launch(kernel, Grid{blocks, 1, 1}, threads, 0, args, stream);
}

/// One kernel of a stream runs after the other, but what would be wrong otherwise is reported.
template <class Args>
cudaError_t launch_early(void (*kernel)(Args), Grid grid, int threads, size_t shared_bytes,
                         const Args& args, void* stream) {
  return launch(kernel, grid, threads, shared_bytes, args, stream, true);
}

template <class Args>
cudaError_t load_kernel(void (*kernel)(Args), size_t shared_bytes = 0) {
  return emulator::allow_block_memory(reinterpret_cast<const void*>(kernel), shared_bytes);
}

inline void store_release(uint64_t* to, uint64_t value) {
  emulator::tell_by_flag(to);
  std::atomic_ref<uint64_t>(*to).store(value, std::memory_order_release);
}
inline uint64_t load_acquire(const uint64_t* from) {
  emulator::let_others_run();
  const uint64_t value =
      std::atomic_ref<uint64_t>(*const_cast<uint64_t*>(from)).load(std::memory_order_acquire);
  emulator::look_at_flag(from, value);
  return value;
}
inline uint32_t load_word(const uint32_t* from) {
  return std::atomic_ref<uint32_t>(*const_cast<uint32_t*>(from)).load(std::memory_order_relaxed);
}
inline void store_word(uint32_t* to, uint32_t value) {
  emulator::check_not_early({}, "a word is written");
  std::atomic_ref<uint32_t>(*to).store(value, std::memory_order_relaxed);
}
inline uint64_t nanoseconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

#define SHOAL_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void await_earlier_kernels() {
  emulator::is_early() = false;
}
inline void let_next_kernel_begin() {
  // Does nothing, because an emulated kernel begins only when the one before it has ended.
}

template <class T>
T load_global(const T* from, SHOAL_HERE) {
  emulator::check_not_early({file, line}, "device memory is read");
  emulator::check_read(from, sizeof(T), {file, line});
  return *from;
}
template <class T>
void store_global(T* to, T value, SHOAL_HERE) {
  emulator::check_not_early({file, line}, "device memory is written");
  if (emulator::check_write(to, sizeof(T), {file, line})) *to = value;
}

inline unsigned char* block_memory() {
  return emulator::memory_of_block();
}

inline void copy_async(void* to, const void* from, bool take, SHOAL_HERE) {
  if (take) emulator::check_not_early({file, line}, "device memory is copied");
  emulator::begin_copy(to, from, take, {file, line});
}
/// The same for weights, which may be copied before await_earlier_kernels().
inline void copy_weights_async(void* to, const void* from, bool take, SHOAL_HERE) {
  emulator::begin_copy(to, from, take, {file, line});
}
inline void copy_async_commit() {
  emulator::commit_copies();
}
template <int kLeft>
void copy_async_wait() {
  emulator::finish_copies(kLeft);
}

/// Lane l gets, of matrix i, elements 2 * (l % 4) and the next one of row l / 4. Lanes 8 i to 8 i +
/// 7 give the addresses of matrix i's rows, and read them.
template <int kMatrices>
void load_matrices(uint32_t (&to)[kMatrices], const void* row, SHOAL_HERE) {
  emulator::MatrixRow mine{{}, to};
  if (threadIdx.x % 32 < 8 * kMatrices) emulator::read_row(row, mine.bytes, {file, line});
  emulator::meet_warp(0xffffffff, false, &mine, emulator::deal_rows<kMatrices>, {file, line});
}

/// The same with each matrix transposed: lane l gets elements l / 4 of rows 2 * (l % 4) and the
/// next.
inline void load_transposed(uint32_t (&to)[4], const void* row, SHOAL_HERE) {
  emulator::MatrixRow mine{{}, to};
  emulator::read_row(row, mine.bytes, {file, line});
  emulator::meet_warp(0xffffffff, false, &mine, emulator::deal_transposed_rows, {file, line});
}

/// sum += a * b, with the tensor core's arithmetic and layout of m16n8k16.
inline void multiply_add(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                         SHOAL_HERE) {
  emulator::Fragments mine{a, b, sum};
  emulator::meet_warp(0xffffffff, false, &mine, emulator::multiply_fragments, {file, line});
}
/// The same with tf32 factors and the layout of m16n8k8.
inline void multiply_add_tf32(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                              SHOAL_HERE) {
  emulator::Fragments mine{a, b, sum};
  emulator::meet_warp(0xffffffff, false, &mine, emulator::multiply_tf32_fragments, {file, line});
}
#undef SHOAL_HERE

inline uint32_t to_tf32(float value) {
  return emulator::rounded_tf32(value);
}
inline uint32_t to_bf16_pair(float first, float second) {
  return emulator::narrowed_bf16(first) | static_cast<uint32_t>(emulator::narrowed_bf16(second))
                                              << 16;
}
inline float from_f16(uint16_t bits) {
  return emulator::widened_f16(bits);
}
inline uint16_t to_f16(float value) {
  return emulator::narrowed_f16(value);
}
inline float greater(float a, float b) {
  return emulator::greater_of(a, b);
}

}  // namespace shoal::cuda
