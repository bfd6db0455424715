#include <cuda_runtime.h>
#include <memory>
#include <new>

#include "kernels/cuda/entries.h"
#include "kernels/cuda/machine.cuh"

namespace shoal::cuda {
namespace {

#define RETURN_IF_ERROR(expression)                                                    \
  do {                                                                                 \
    if (const cudaError_t error_ = (expression); error_ != cudaSuccess) return error_; \
  } while (false)

/// Depends on the place and the seed, so that old data, data of another place and zeros are all
/// noticed.
__host__ __device__ uint32_t pattern(uint64_t index, uint32_t seed) {
  uint64_t z = index * 0x9e3779b97f4a7c15ULL + seed;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  return static_cast<uint32_t>(z >> 32);
}

struct PatternArgs {
  uint32_t* to;  ///< [words]
  int64_t words;
  uint32_t seed;
};
__global__ void __launch_bounds__(kPatternThreads)
    write_pattern(const __grid_constant__ PatternArgs args) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kPatternThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kPatternThreads + threadIdx.x; i < args.words;
       i += stride)
    store_global(args.to + i, pattern(static_cast<uint64_t>(i), args.seed));
}

struct ReadArgs {
  uint32_t* to;          ///< [words]
  const uint32_t* from;  ///< [words]
  int64_t words;
};
__global__ void __launch_bounds__(kPatternThreads)
    read_words(const __grid_constant__ ReadArgs args) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kPatternThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kPatternThreads + threadIdx.x; i < args.words;
       i += stride)
    store_global(args.to + i, load_global(args.from + i));
}

/// Memory on one device, freed by the destructor.
class Words {
 public:
  Words() = default;
  Words(const Words&) = delete;
  Words& operator=(const Words&) = delete;
  ~Words() {
    if (data_ == nullptr) return;
    (void)cudaSetDevice(device_);
    (void)cudaFree(data_);
  }
  cudaError_t make(int device, int64_t words) {
    device_ = device;
    RETURN_IF_ERROR(cudaSetDevice(device));
    RETURN_IF_ERROR(cudaMalloc(&data_, static_cast<size_t>(words) * sizeof(uint32_t)));
    RETURN_IF_ERROR(cudaMemset(data_, 0, static_cast<size_t>(words) * sizeof(uint32_t)));
    return cudaDeviceSynchronize();
  }
  uint32_t* data() const { return data_; }

 private:
  uint32_t* data_ = nullptr;
  int device_ = 0;
};

cudaError_t reach(int from, int to) {
  RETURN_IF_ERROR(cudaSetDevice(from));
  if (from == to) return cudaSuccess;
  int can = 0;
  RETURN_IF_ERROR(cudaDeviceCanAccessPeer(&can, from, to));
  if (can == 0) return cudaErrorPeerAccessUnsupported;
  const cudaError_t enabled = cudaDeviceEnablePeerAccess(to, 0);
  if (enabled != cudaErrorPeerAccessAlreadyEnabled) return enabled;
  (void)cudaGetLastError();
  return cudaSuccess;
}

/// Counts the bytes of memory on `device` that differ from the seed's pattern, and adds them to
/// *wrong_bytes.
cudaError_t count_wrong(int device, const uint32_t* memory, int64_t words, uint32_t seed,
                        int64_t* wrong_bytes) {
  const std::unique_ptr<uint32_t[]> host(new (std::nothrow) uint32_t[static_cast<size_t>(words)]());
  if (host == nullptr) return cudaErrorMemoryAllocation;
  RETURN_IF_ERROR(cudaSetDevice(device));
  RETURN_IF_ERROR(cudaMemcpy(host.get(), memory, static_cast<size_t>(words) * sizeof(uint32_t),
                             cudaMemcpyDeviceToHost));
  for (int64_t i = 0; i < words; ++i) {
    uint32_t differ = host[static_cast<size_t>(i)] ^ pattern(static_cast<uint64_t>(i), seed);
    for (; differ != 0; differ >>= 8) *wrong_bytes += (differ & 0xff) != 0 ? 1 : 0;
  }
  return cudaSuccess;
}

/// A kernel on `from` pushes words into memory of `to`, and `to` reads them back. Then a kernel on
/// `from` pulls words that a kernel on `to` has written.
cudaError_t push_and_pull(int from, int to, const Words& ours, const Words& theirs, int64_t words,
                          uint32_t seed, int64_t* wrong_bytes) {
  RETURN_IF_ERROR(cudaSetDevice(from));
  RETURN_IF_ERROR(launch(&write_pattern, kPatternBlocks, kPatternThreads,
                         PatternArgs{theirs.data(), words, seed}, nullptr));
  RETURN_IF_ERROR(cudaDeviceSynchronize());
  RETURN_IF_ERROR(count_wrong(to, theirs.data(), words, seed, wrong_bytes));

  RETURN_IF_ERROR(cudaSetDevice(to));
  RETURN_IF_ERROR(launch(&write_pattern, kPatternBlocks, kPatternThreads,
                         PatternArgs{theirs.data(), words, seed + 1}, nullptr));
  RETURN_IF_ERROR(cudaDeviceSynchronize());
  RETURN_IF_ERROR(cudaSetDevice(from));
  RETURN_IF_ERROR(launch(&read_words, kPatternBlocks, kPatternThreads,
                         ReadArgs{ours.data(), theirs.data(), words}, nullptr));
  RETURN_IF_ERROR(cudaDeviceSynchronize());
  return count_wrong(from, ours.data(), words, seed + 1, wrong_bytes);
}

}  // namespace

int32_t try_peer(int32_t from, int32_t to, int64_t bytes, int64_t* wrong_bytes) {
  const int64_t words = bytes / static_cast<int64_t>(sizeof(uint32_t));
  if (words < 1 || wrong_bytes == nullptr) return cudaErrorInvalidValue;
  *wrong_bytes = 0;
  RETURN_IF_ERROR(reach(from, to));
  Words ours, theirs;
  RETURN_IF_ERROR(ours.make(from, words));
  RETURN_IF_ERROR(theirs.make(to, words));
  // Twice in the same places: if data of the second round is lost, words of the first round remain.
  for (const uint32_t seed : {0x5a17u, 0xc0deu}) {
    RETURN_IF_ERROR(push_and_pull(from, to, ours, theirs, words, seed, wrong_bytes));
  }
  return cudaSuccess;
}

}  // namespace shoal::cuda
