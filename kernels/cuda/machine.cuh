#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cuda_runtime.h>

/// The part of the kernels that depends on the machine: launches, memory that others can see, and
/// instructions that C++ has no words for. A test replaces this file by another to run the same
/// kernels on the host (tests/emulator).
namespace shoal::cuda {

inline constexpr int kSumThreads = 256;
inline constexpr int kSumBlocks = 1024;  ///< at most; the kernel's loop covers the rest
inline constexpr int kPatternThreads = 256;
inline constexpr int kPatternBlocks = 64;
/// The threads of a norm's block. They are many because a step of one token has a single block,
/// which has to load the whole row.
inline constexpr int kNormThreads = 512;
inline constexpr int kPushThreads = 512;
/// At most, because all of them must run at the same time, beside the kernels of others.
inline constexpr int kPushBlocks = 32;

/// A block may use this much shared memory without asking for more (load_kernel).
inline constexpr size_t kPlainSharedBytes = 48 * 1024;

/// Number of thread blocks along each axis. A device takes at most 65535 along y and z.
struct Grid {
  int64_t x = 1, y = 1, z = 1;
};

/// How many kernels this process has launched, or has tried to.
inline std::atomic<int64_t> launched{0};

/// Whether all kernels that load_kernel has seen have await_earlier_kernels() in their machine
/// code. What the driver has compiled for a newer device from code for sm_80 does not have it, and
/// must not be started early.
inline std::atomic<bool> kernels_await{true};

/// Starts the kernel on the stream (a cudaStream_t; nullptr is the default one). Each block has
/// shared_bytes of block_memory().
template <class Args>
cudaError_t launch(void (*kernel)(Args), Grid grid, int threads, size_t shared_bytes,
                   const Args& args, void* stream, bool early = false) {
  Args copy = args;
  void* parameters[] = {&copy};
  launched.fetch_add(1, std::memory_order_relaxed);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
                        static_cast<unsigned>(grid.z));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &attribute;
  config.numAttrs = early ? 1 : 0;
  return cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), parameters);
}

/// The same for a row of blocks without block memory.
template <class Args>
cudaError_t launch(void (*kernel)(Args), int64_t blocks, int threads, const Args& args,
                   void* stream) {
  return launch(kernel, Grid{blocks, 1, 1}, threads, 0, args, stream);
}

/// Starts a kernel that calls await_earlier_kernels() before it touches what other kernels use.
/// From sm_90 on it may begin before the kernel before it on the stream has ended (CUDA's
/// programmatic dependent launch). A step has hundreds of kernels, of which many take less time
/// than it takes one to begin after another.
template <class Args>
cudaError_t launch_early(void (*kernel)(Args), Grid grid, int threads, size_t shared_bytes,
                         const Args& args, void* stream) {
  return launch(kernel, grid, threads, shared_bytes, args, stream,
                kernels_await.load(std::memory_order_relaxed));
}

/// Loads the kernel into the current context, and lets its blocks have shared_bytes of block
/// memory. Sets kernels_await to false if the kernel has no wait. All kernels are loaded before one
/// is started.
template <class Args>
cudaError_t load_kernel(void (*kernel)(Args), size_t shared_bytes = 0) {
  const void* function = reinterpret_cast<const void*>(kernel);
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, function);
  if (error != cudaSuccess) return error;
  // The virtual architecture that the machine code was made of.
  if (attributes.ptxVersion < 90) kernels_await.store(false, std::memory_order_relaxed);
  if (shared_bytes <= kPlainSharedBytes) return cudaSuccess;
  return cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(shared_bytes));
}

#ifdef __CUDACC__
// The scope is .sys, because the other side is another process's kernel, perhaps on another device.
// A release after a barrier of the block covers everything that the block wrote before it.
__device__ inline void store_release(uint64_t* to, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}
__device__ inline uint64_t load_acquire(const uint64_t* from) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}

/// A word that may change at any moment, and whose order with other words does not matter. It does
/// without atomics, because a bus may not support them for host memory.
__device__ inline uint32_t load_word(const uint32_t* from) {
  return *static_cast<const volatile uint32_t*>(from);
}
__device__ inline void store_word(uint32_t* to, uint32_t value) {
  *static_cast<volatile uint32_t*>(to) = value;
}

__device__ inline uint64_t nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

/// Waits until the kernels before this one on the stream have ended, and what they wrote is there.
/// A kernel that is started early calls it in every thread, before it reads what others write and
/// before it writes anything. It must call it even if it has nothing to do. The next kernel waits
/// only for this one, so it can rely on the earlier kernels only if this one has waited for them.
__device__ inline void await_earlier_kernels() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// Lets the next kernel begin, if it is started early, as soon as every block of this one has
/// called this or has ended. Blocks of the next kernel then hold registers and block memory while
/// they wait. So it is for small kernels before a product, which loads its first weights meanwhile.
/// Without it the next kernel begins when the blocks of this one end.
__device__ inline void let_next_kernel_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// One value of device memory, of 2, 4, 8 or 16 bytes and aligned to its size. There is no order
/// with accesses of other threads. A test's machine checks each access.
template <class T>
__device__ inline T load_global(const T* from) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  static_assert(alignof(T) == sizeof(T), "or it is loaded in pieces");
  return *from;
}
template <class T>
__device__ inline void store_global(T* to, T value) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  static_assert(alignof(T) == sizeof(T), "or it is stored in pieces");
  *to = value;
}

/// The block's dynamic shared memory, aligned to 128 bytes. The launch decides its size.
__device__ inline unsigned char* block_memory() {
  extern __shared__ __align__(128) unsigned char shoal_block_memory[];
  return shoal_block_memory;
}

/// Begins to copy 16 bytes of device memory into block memory, or fills them with zeros if not
/// `take`; then nothing is read. Both addresses are aligned to 16 bytes. Other lanes see the copy
/// after copy_async_wait and a barrier.
__device__ inline void copy_async(void* to_block_memory, const void* from, bool take) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(to_block_memory));
  const int bytes = take ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to),
               "l"(__cvta_generic_to_global(from)), "r"(bytes)
               : "memory");
}
/// The same for weights, which no kernel writes, so that it may come before
/// await_earlier_kernels().
__device__ inline void copy_weights_async(void* to_block_memory, const void* from, bool take) {
  copy_async(to_block_memory, from, take);
}
/// Makes one group of the copies that this thread has begun since its last group; there may be
/// none.
__device__ inline void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until at most kLeft of this thread's groups, the latest, are under way.
template <int kLeft>
__device__ inline void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

/// Loads four matrices of 8 rows x 8 elements of two bytes from block memory. Lanes 8 i to 8 i + 7
/// give the rows of matrix i, 16 aligned bytes each. From each matrix, lane l gets two elements of
/// row l / 4: number 2 (l % 4) and the one after it. All lanes of the warp take part.
__device__ inline void load_matrices(uint32_t (&to)[4], const void* row) {
  const auto from = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}
/// The same for two matrices, whose rows lanes 0 to 15 give. What other lanes give is not read.
__device__ inline void load_matrices(uint32_t (&to)[2], const void* row) {
  const auto from = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(to[0]), "=r"(to[1])
               : "r"(from)
               : "memory");
}
/// Four matrices, each transposed: of every matrix, lane l gets the elements l / 4 of rows 2 (l %
/// 4) and the next.
__device__ inline void load_transposed(uint32_t (&to)[4], const void* row) {
  const auto from = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}

/// sum[16 x 8] += a[16 x 16] * b[16 x 8] on the tensor cores: bf16 factors, float32 sums. In lane
/// l, with r = l / 4 and c = 2 (l % 4), a holds two elements each, from column c or c + 8, of
/// {row r, columns c; row r + 8, c; row r, c + 8; row r + 8, c + 8}. b holds of its column r the
/// rows {c; c + 8}, two each. sum holds columns c and c + 1 of row r, then those of row r + 8. All
/// lanes of the warp take part, so it is volatile: it must not move into a branch of some lanes.
__device__ inline void multiply_add(float (&sum)[4], const uint32_t (&a)[4],
                                    const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/// The same for m16n8k8 with tf32 factors, which are float32 without the last 13 bits. a holds one
/// element each of {row r, column l % 4; row r + 8; row r, column l % 4 + 4; row r + 8, that}, and
/// b of its column r the rows {l % 4; l % 4 + 4}.
__device__ inline void multiply_add_tf32(float (&sum)[4], const uint32_t (&a)[4],
                                         const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/// To nearest, and of two that are equally near to the one away from zero.
__device__ inline uint32_t to_tf32(float value) {
  uint32_t rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(value));
  return rounded;
}

/// Two bfloat16, rounded to nearest even, the first one in the lower half. There is one NaN.
__device__ inline uint32_t to_bf16_pair(float first, float second) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}

/// float16, which float32 and tf32 hold exactly; and rounded to nearest even.
__device__ inline float from_f16(uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
__device__ inline uint16_t to_f16(float value) {
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

/// The greater of two numbers: of a number and NaN the number, and of two zeros +0 if one of them
/// is. C++ has it only as fmaxf, a function of a libm, whose zeros may differ.
__device__ inline float greater(float a, float b) {
  float result;
  asm("max.ftz.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
#endif

}  // namespace shoal::cuda
