// What a kernel may do wrong, and how the emulated device reports it.
#include <atomic>
#include <cstdint>
#include <string>

#include "tests/emulator/on_device.h"
#include "tests/emulator/report.h"

namespace shoal::emulator {
namespace {

struct FaultArgs {
  unsigned char* memory;  ///< of the device; only the first 64 bytes have been written
  unsigned char* other;   ///< of another device
};

std::atomic<int> line_of_fault{0};  // lanes that do wrong together all write it
/// Does what a kernel must not do, and notes the line.
#define WRONG(call) (line_of_fault = __LINE__, (call))

template <typename T>
T* bytes_at(unsigned char* memory) {
  return reinterpret_cast<T*>(memory);
}

void parted_barriers(FaultArgs) {
  if (threadIdx.x < 20) {
    __syncthreads();
  } else {
    WRONG(__syncthreads());
  }
}
void barrier_after_the_end(FaultArgs) {
  if (threadIdx.x < 20) WRONG(__syncthreads());
}
void meeting_after_the_end(FaultArgs) {
  if (threadIdx.x < 20) WRONG(__syncwarp());
}
void mask_without_the_lane(FaultArgs) {
  if (threadIdx.x == 3) WRONG(__syncwarp(0x10));
}
void mask_with_missing_lanes(FaultArgs) {
  WRONG(__syncwarp(0xffffffff));
}
void parted_masks(FaultArgs) {
  if (threadIdx.x == 0) {
    __syncwarp(0x3);
  } else {
    WRONG(__syncwarp(0x7));
  }
}
void misaligned_read(FaultArgs args) {
  WRONG(cuda::load_global(bytes_at<uint16_t>(args.memory + 1)));
}
void misaligned_write(FaultArgs args) {
  WRONG(cuda::store_global(bytes_at<float>(args.memory + 2), 1.0F));
}
void misaligned_pack(FaultArgs args) {
  WRONG(__ldcg(bytes_at<float4>(args.memory + 8)));
}
void misaligned_copy(FaultArgs args) {
  WRONG(cuda::copy_async(args.memory, args.memory + 8, true));
}
void misaligned_copy_to(FaultArgs args) {
  WRONG(cuda::copy_async(cuda::block_memory() + 8, args.memory, true));
}
void misaligned_row(FaultArgs) {
  uint32_t to[4];
  WRONG(cuda::load_matrices(to, cuda::block_memory() + 2));
}
void copy_behind_the_block(FaultArgs args) {
  WRONG(cuda::copy_async(cuda::block_memory() + 1024, args.memory, true));
}
void zeros_behind_the_block(FaultArgs) {
  WRONG(cuda::copy_async(cuda::block_memory() + 1024, nullptr, false));
}
void row_behind_the_block(FaultArgs) {
  uint32_t to[4];
  WRONG(cuda::load_matrices(to, cuda::block_memory() + 1024));
}
void row_before_the_block(FaultArgs) {
  uint32_t to[4];
  WRONG(cuda::load_transposed(to, cuda::block_memory() - 16));
}
/// Plain accesses, of which the last one is wrong.
void reads_behind_the_block(FaultArgs) {
  const volatile unsigned char* const memory = cuda::block_memory();
  for (int i = 0; i <= 1024; ++i) static_cast<void>(memory[i]);
}
void writes_behind_the_block(FaultArgs) {
  volatile unsigned char* const memory = cuda::block_memory();
  for (int i = 0; i <= 1024; ++i) memory[i] = 1;
}
void unwritten_read(FaultArgs args) {
  WRONG(cuda::load_global(args.memory + 64));
}
void unwritten_part(FaultArgs args) {
  WRONG(cuda::load_global(bytes_at<uint64_t>(args.memory + 56 + 8)));
}
void unwritten_copy(FaultArgs args) {
  WRONG(cuda::copy_async(cuda::block_memory(), args.memory + 64, true));
}
void read_behind_the_end(FaultArgs args) {
  WRONG(cuda::load_global(args.memory + 128));
}
void write_behind_the_end(FaultArgs args) {
  WRONG(cuda::store_global(args.memory + 128, static_cast<unsigned char>(1)));
}
void read_of_the_host(FaultArgs) {
  int on_stack = 0;
  WRONG(cuda::load_global(&on_stack));
}
void read_of_a_peer(FaultArgs args) {
  WRONG(cuda::load_global(args.other));
}
void write_to_a_peer(FaultArgs args) {
  WRONG(cuda::store_global(args.other + threadIdx.x, static_cast<unsigned char>(1)));
}

void early_read(FaultArgs args) {
  WRONG(cuda::load_global(args.memory));
}
void early_write(FaultArgs args) {
  WRONG(cuda::store_global(args.memory + threadIdx.x, static_cast<unsigned char>(1)));
}
void early_cached_read(FaultArgs args) {
  WRONG(__ldcg(bytes_at<float>(args.memory)));
}
void early_copy(FaultArgs args) {
  WRONG(cuda::copy_async(cuda::block_memory() + 16 * threadIdx.x, args.memory, true));
}
/// One lane does not wait for earlier kernels, and the others do.
void early_lane(FaultArgs args) {
  if (threadIdx.x != 5) cuda::await_earlier_kernels();
  WRONG(cuda::load_global(args.memory));
}

struct FaultyKernel {
  void (*kernel)(FaultArgs);
  int threads;
  std::string report;
  bool early = false;  ///< started with launch_early
};

void expect_report(const FaultyKernel& one) {
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  const OnDevice<unsigned char> other(std::vector<unsigned char>(64));
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  const OnDevice<unsigned char> memory(128);
  ASSERT_EQ(cudaMemset(memory.get(), 1, 64), cudaSuccess);
  EXPECT_EQ(first_report(), "");
  EXPECT_EQ(run_block(one.kernel, one.threads, 1024, {memory.get(), other.get()}, one.early),
            cudaErrorLaunchFailure);
  const std::string place = one.report + " at fault_test.cc:" + std::to_string(line_of_fault);
  EXPECT_EQ(first_report().substr(0, place.size()), place) << first_report();
  EXPECT_EQ(cudaGetErrorString(cudaErrorLaunchFailure),
            "unspecified launch failure (emulated GPU: " + first_report() + ")");
  // The device stays failed.
  void* more = nullptr;
  EXPECT_EQ(cudaMalloc(&more, 64), cudaErrorLaunchFailure);
  EXPECT_EQ(run_block(one.kernel, one.threads, 1024, {memory.get(), other.get()}, one.early),
            cudaErrorLaunchFailure);
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure);
}

void expect_reports(const std::vector<FaultyKernel>& cases) {
  for (const FaultyKernel& one : cases) {
    SCOPED_TRACE(one.report + ", case " + std::to_string(&one - cases.data()));
    for (const char* streams : {"threads", "at-once", "when-waited-for"})
      with_settings({{"STREAMS", streams}}, [&] { expect_report(one); });
  }
}

TEST(FaultTest, BarriersThatNotAllLanesReach) {
  expect_reports({{&parted_barriers, 64, "divergent barrier"},
                  {&barrier_after_the_end, 64, "divergent barrier"},
                  {&meeting_after_the_end, 32, "divergent barrier"}});
}

TEST(FaultTest, MasksThatLanesDoNotAgreeOn) {
  expect_reports({{&mask_without_the_lane, 32, "warp collective with a wrong mask"},
                  {&mask_with_missing_lanes, 16, "warp collective with a wrong mask"},
                  {&parted_masks, 2, "warp collective with a wrong mask"},
                  {&parted_masks, 3, "warp collective with a wrong mask"}});
}

TEST(FaultTest, AddressesThatAreNotAligned) {
  for (auto* kernel : {&misaligned_read, &misaligned_write, &misaligned_pack, &misaligned_copy,
                       &misaligned_copy_to, &misaligned_row})
    expect_reports({{kernel, 32, "misaligned address"}});
}

TEST(FaultTest, MemoryThatNobodyHasWritten) {
  for (auto* kernel : {&unwritten_read, &unwritten_part, &unwritten_copy})
    expect_reports({{kernel, 32, "read of device memory that was never written"}});
}

TEST(FaultTest, AddressesThatTheDeviceDoesNotHave) {
  for (auto* kernel : {&read_behind_the_end, &write_behind_the_end, &read_of_the_host})
    expect_reports({{kernel, 32, "address that the device does not have"}});
}

TEST(FaultTest, MemoryOutsideOfTheBlocks) {
  const std::string name = "address outside of the block's memory";
  for (auto* kernel : {&copy_behind_the_block, &zeros_behind_the_block, &row_behind_the_block,
                       &row_before_the_block})
    expect_reports({{kernel, 32, name}});
  // Nobody checks these before the processor does, which knows no line.
  for (auto* kernel : {&reads_behind_the_block, &writes_behind_the_block}) {
    for (const char* streams : {"threads", "at-once"}) {
      with_settings({{"STREAMS", streams}}, [&] {
        EXPECT_EQ(run_block(kernel, 32, 1024, FaultArgs{}), cudaErrorLaunchFailure);
        EXPECT_EQ(first_report(), name + ": lane 0 touches byte 1024");
      });
    }
  }
}

TEST(FaultTest, DevicesThatAreOutOfReach) {
  for (auto* kernel : {&read_of_a_peer, &write_to_a_peer}) {
    expect_reports({{kernel, 32, "memory of a device that is out of reach"}});
    with_settings({{"PEERS", "all"}}, [&] {
      ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
      const OnDevice<unsigned char> other(std::vector<unsigned char>(64));
      ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
      EXPECT_EQ(run_block(kernel, 32, 0, {nullptr, other.get()}), cudaSuccess) << first_report();
    });
  }
}

TEST(FaultTest, KernelsThatDoNotAwaitEarlierOnes) {
  for (auto* kernel : {&early_read, &early_write, &early_cached_read, &early_copy, &early_lane}) {
    expect_reports({{kernel, 32, "kernel that does not await earlier ones", true}});
    with_settings({}, [&] {  // started in the usual way, it does nothing wrong
      const OnDevice<unsigned char> memory(std::vector<unsigned char>(64));
      EXPECT_EQ(run_block(kernel, 32, 1024, FaultArgs{memory.get(), nullptr}), cudaSuccess);
    });
  }
  with_settings({}, [] {
    const auto kernel = +[](FaultArgs) {};
    EXPECT_EQ(run_block(kernel, 32, 0, FaultArgs{}, true), cudaErrorLaunchFailure);
    EXPECT_EQ(first_report(), "kernel that does not await earlier ones: a lane has ended");
  });
  // Weights may be copied before the wait.
  with_settings({}, [] {
    const OnDevice<unsigned char> memory(std::vector<unsigned char>(64));
    const auto kernel = +[](FaultArgs args) {
      cuda::copy_weights_async(cuda::block_memory(), args.memory, true);
      cuda::await_earlier_kernels();
      cuda::store_global(args.memory, static_cast<unsigned char>(1));
    };
    EXPECT_EQ(run_block(kernel, 1, 1024, FaultArgs{memory.get(), nullptr}, true), cudaSuccess);
  });
}

TEST(FaultTest, ADeviceThatHasFailedDoesNothingMore) {
  with_settings({{"STREAMS", "when-waited-for"}}, [] {
    const OnDevice<unsigned char> memory(128);
    void* pinned = nullptr;
    ASSERT_EQ(cudaHostAlloc(&pinned, 4, cudaHostAllocMapped), cudaSuccess);
    auto* word = static_cast<uint32_t*>(pinned);
    *word = 1;
    const auto kernel = +[](uint32_t* to) { cuda::store_global(to, 2U); };
    EXPECT_EQ(cuda::launch(kernel, 1, 1, word, nullptr), cudaSuccess);
    EXPECT_EQ(cuda::launch(&unwritten_read, 1, 1, FaultArgs{memory.get(), nullptr}, nullptr),
              cudaSuccess);
    const auto later = +[](uint32_t* to) { cuda::store_global(to, 3U); };
    EXPECT_EQ(cuda::launch(later, 1, 1, word, nullptr), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaErrorLaunchFailure);
    EXPECT_EQ(*word, 2U);
  });
}

TEST(FaultTest, AFaultOfOneLaneEndsTheKernelWhileOthersWait) {
  // Half of the lanes wait at a barrier, some have ended, and one reads what is not there.
  const auto kernel = +[](FaultArgs args) {
    if (threadIdx.x < 30) return;
    if (threadIdx.x == 63) WRONG(cuda::load_global(args.memory + 100));
    __syncthreads();
  };
  expect_reports({{kernel, 64, "read of device memory that was never written"}});
}

}  // namespace
}  // namespace shoal::emulator
