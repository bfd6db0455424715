// Streams, events and graphs of the emulated device, in all of its ways to run them.
#include "tests/emulator/stream.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/emulator/on_device.h"
#include "tests/emulator/report.h"

namespace shoal::emulator {
namespace {

constexpr size_t kWords = 64;
constexpr size_t kBytes = kWords * sizeof(uint32_t);

void in_each_way(const std::function<void()>& body) {
  for (const char* way : {"threads", "at-once", "when-waited-for"}) {
    SCOPED_TRACE(way);
    with_settings({{"STREAMS", way}}, body);
  }
}

cudaStream_t new_stream() {
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  return stream;
}

cudaEvent_t recorded_in(cudaStream_t stream) {
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  return event;
}

void wait_for(cudaEvent_t event) {
  cudaError_t state = cudaErrorNotReady;
  while ((state = cudaEventQuery(event)) == cudaErrorNotReady) std::this_thread::yield();
  EXPECT_EQ(state, cudaSuccess);
}

/// Memory that the device reads where it lies.
uint32_t* new_pinned(uint32_t value) {
  void* memory = nullptr;
  EXPECT_EQ(cudaHostAlloc(&memory, kBytes, cudaHostAllocMapped), cudaSuccess);
  auto* words = static_cast<uint32_t*>(memory);
  std::fill_n(words, kWords, value);
  return words;
}

struct AddArgs {
  uint32_t* to;
  const uint32_t* from;
  uint32_t value;
};

/// to = to + from + value
void add_kernel(AddArgs args) {
  const unsigned i = threadIdx.x;
  const uint32_t sum =
      cuda::load_global(args.to + i) + cuda::load_global(args.from + i) + args.value;
  cuda::store_global(args.to + i, sum);
}

cudaError_t enqueue_add(const AddArgs& args, cudaStream_t stream) {
  return cuda::launch(&add_kernel, 1, static_cast<int>(kWords), args, stream);
}

TEST(StreamTest, WorksInOrder) {
  in_each_way([] {
    const cudaStream_t stream = new_stream();
    uint32_t* in = new_pinned(5);
    uint32_t* out = new_pinned(0);
    const OnDevice<uint32_t> a(kWords), b(kWords);
    EXPECT_EQ(cudaMemcpyAsync(a.get(), in, kBytes, cudaMemcpyDefault, stream), cudaSuccess);
    EXPECT_EQ(cudaMemcpyAsync(b.get(), a.get(), kBytes, cudaMemcpyDefault, stream), cudaSuccess);
    for (uint32_t i = 0; i < 10; ++i)
      EXPECT_EQ(enqueue_add({a.get(), b.get(), i}, stream), cudaSuccess);
    EXPECT_EQ(cudaMemcpyAsync(out, a.get(), kBytes, cudaMemcpyDefault, stream), cudaSuccess);
    const cudaEvent_t event = recorded_in(stream);
    wait_for(event);
    for (size_t i = 0; i < kWords; ++i) EXPECT_EQ(out[i], 5U + 10 * 5 + 45);
    EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    EXPECT_EQ(cudaFreeHost(in), cudaSuccess);
    EXPECT_EQ(cudaFreeHost(out), cudaSuccess);
  });
}

TEST(StreamTest, AnEventThatWasNotRecordedIsReady) {
  in_each_way([] {
    cudaEvent_t event = nullptr;
    ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  });
}

TEST(StreamTest, WorksWhenItIsAsked) {
  for (const bool at_once : {true, false}) {
    with_settings({{"STREAMS", at_once ? "at-once" : "when-waited-for"}}, [&] {
      const cudaStream_t first = new_stream(), second = new_stream();
      uint32_t* one = new_pinned(1);
      uint32_t* other = new_pinned(1);
      EXPECT_EQ(enqueue_add({one, one, 1}, first), cudaSuccess);
      EXPECT_EQ(enqueue_add({other, other, 1}, second), cudaSuccess);
      EXPECT_EQ(one[0], at_once ? 3U : 1U);
      EXPECT_EQ(cudaStreamSynchronize(second), cudaSuccess);
      EXPECT_EQ(one[0], at_once ? 3U : 1U) << "nobody has waited for the first stream";
      EXPECT_EQ(other[0], 3U);
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      EXPECT_EQ(one[0], 3U);
    });
  }
}

TEST(StreamTest, AnEventStandsForWhatWasEnqueuedBeforeIt) {
  with_settings({{"STREAMS", "when-waited-for"}}, [] {
    const cudaStream_t stream = new_stream();
    uint32_t* words = new_pinned(1);
    EXPECT_EQ(enqueue_add({words, words, 0}, stream), cudaSuccess);
    const cudaEvent_t event = recorded_in(stream);
    EXPECT_EQ(enqueue_add({words, words, 0}, stream), cudaSuccess);
    EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
    EXPECT_EQ(words[0], 2U);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    EXPECT_EQ(words[0], 4U) << "what was enqueued runs all the same";
  });
}

/// What the device has if the host changes the source of a copy right after the call.
uint32_t copied_from(uint32_t* source) {
  const cudaStream_t stream = new_stream();
  const OnDevice<uint32_t> on_device(kWords);
  EXPECT_EQ(cudaMemcpyAsync(on_device.get(), source, kBytes, cudaMemcpyDefault, stream),
            cudaSuccess);
  std::fill_n(source, kWords, 9U);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  return on_device.values()[kWords - 1];
}

TEST(StreamTest, APinnedBufferThatIsReusedTooEarlyIsSeen) {
  with_settings({{"STREAMS", "at-once"}}, [] { EXPECT_EQ(copied_from(new_pinned(4)), 4U); });
  with_settings({{"STREAMS", "when-waited-for"}},
                [] { EXPECT_EQ(copied_from(new_pinned(4)), 9U); });
}

TEST(StreamTest, ACopyOfMemoryThatIsNotPinnedIsReported) {
  for (const bool from_it : {true, false}) {
    in_each_way([from_it] {
      std::vector<uint32_t> pageable(kWords, 4);
      const OnDevice<uint32_t> on_device(std::vector<uint32_t>(kWords, 7));
      void* const device = on_device.get();
      void* const host = pageable.data();
      EXPECT_EQ(cudaMemcpyAsync(from_it ? device : host, from_it ? host : device, kBytes,
                                cudaMemcpyDefault, nullptr),
                cudaErrorInvalidValue);
      EXPECT_EQ(first_report(), std::string("copy of memory that is not pinned: 256 B ") +
                                    (from_it ? "from it" : "to it"));
      EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaErrorLaunchFailure) << "the device has failed";
      EXPECT_EQ(pageable, std::vector<uint32_t>(kWords, 4));
    });
  }
}

TEST(StreamTest, AFullStreamLetsTheCallerWait) {
  const std::string path = testing::TempDir() + "/emulated_gpu_hangs";
  with_settings({{"STREAMS", "threads"}, {"HANG", path}}, [&path] {
    std::ofstream(path) << 0;
    uint32_t* words = new_pinned(1);
    uint32_t* none = new_pinned(0);
    for (uint64_t i = 0; i < kMostOperations; ++i)
      EXPECT_EQ(enqueue_add({words, none, 1}, nullptr), cudaSuccess);
    std::atomic<bool> enqueued{false};
    std::thread one_more([&] {
      EXPECT_EQ(enqueue_add({words, none, 1}, nullptr), cudaSuccess);
      enqueued = true;
    });
    // no deadline: no moment shows that a thread waits for ever, so this look can only miss a fault
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(enqueued);
    std::ofstream(path) << -1;
    one_more.join();
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(words[0], 1U + kMostOperations + 1);
  });
  std::remove(path.c_str());
}

TEST(StreamTest, AFullStreamThatNobodyWaitsForWorks) {
  for (const char* way : {"at-once", "when-waited-for"}) {
    with_settings({{"STREAMS", way}}, [] {
      uint32_t* words = new_pinned(1);
      uint32_t* none = new_pinned(0);
      for (uint64_t i = 0; i < 2 * kMostOperations; ++i)
        EXPECT_EQ(enqueue_add({words, none, 1}, nullptr), cudaSuccess);
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      EXPECT_EQ(words[0], 1U + 2 * kMostOperations);
    });
  }
}

TEST(StreamTest, ACopyThatEndsBehindItsMemoryIsRefused) {
  in_each_way([] {
    const OnDevice<uint32_t> small(kWords), large(2 * kWords);
    EXPECT_EQ(cudaMemcpyAsync(small.get(), large.get(), 2 * kBytes, cudaMemcpyDefault, nullptr),
              cudaErrorInvalidValue);
    EXPECT_EQ(cudaMemcpyAsync(large.get(), small.get() + 1, kBytes, cudaMemcpyDefault, nullptr),
              cudaErrorInvalidValue);
    EXPECT_EQ(cudaMemcpy(small.get(), large.get(), 2 * kBytes, cudaMemcpyDefault),
              cudaErrorInvalidValue);
    EXPECT_EQ(cudaMemset(small.get() + 1, 0, kBytes), cudaErrorInvalidValue);
  });
}

struct PollArgs {
  const uint64_t* flag;
};

void poll_kernel(PollArgs args) {
  while (cuda::load_acquire(args.flag) == 0) {
  }
}

TEST(StreamTest, AKernelThatDoesNotEndLeavesTheHostFree) {
  with_settings({{"STREAMS", "threads"}}, [] {
    const cudaStream_t stream = new_stream(), other = new_stream();
    uint32_t* words = new_pinned(0);
    auto* flag = reinterpret_cast<uint64_t*>(words);
    EXPECT_EQ(cuda::launch(&poll_kernel, 2, 32, PollArgs{flag}, stream), cudaSuccess);
    const cudaEvent_t event = recorded_in(stream);
    uint32_t* free = new_pinned(1);
    EXPECT_EQ(enqueue_add({free, free, 1}, other), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(other), cudaSuccess);
    EXPECT_EQ(free[0], 3U) << "nor does another stream wait";
    // no deadline: the kernel polls a word that nobody has set, however long this waits
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
    std::atomic_ref<uint64_t>(*flag).store(1, std::memory_order_release);
    wait_for(event);
  });
}

/// Keeps what `enqueue` gives to the stream.
cudaGraphExec_t captured(cudaStream_t stream, const std::function<void()>& enqueue) {
  EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  enqueue();
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  cudaGraphExec_t replay = nullptr;
  EXPECT_EQ(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  return replay;
}

TEST(StreamTest, AGraphKeepsArgumentsAndReadsMemory) {
  in_each_way([] {
    const cudaStream_t stream = new_stream();
    uint32_t* source = new_pinned(10);
    const OnDevice<uint32_t> sum(std::vector<uint32_t>(kWords, 0)), copy(kWords);
    AddArgs args{sum.get(), copy.get(), 1};
    const cudaGraphExec_t replay = captured(stream, [&] {
      EXPECT_EQ(cudaMemcpyAsync(copy.get(), source, kBytes, cudaMemcpyDefault, stream),
                cudaSuccess);
      EXPECT_EQ(enqueue_add(args, stream), cudaSuccess);
    });
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(sum.values(), std::vector<uint32_t>(kWords, 0)) << "nothing has run";
    args.value = 1000;  // not seen
    EXPECT_EQ(cudaGraphLaunch(replay, stream), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(sum.values(), std::vector<uint32_t>(kWords, 11));
    std::fill_n(source, kWords, 20U);  // seen
    EXPECT_EQ(cudaGraphLaunch(replay, stream), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(cudaGraphLaunch(replay, nullptr), cudaSuccess) << "any stream may replay it";
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(sum.values(), std::vector<uint32_t>(kWords, 11 + 21 + 21));
    EXPECT_EQ(cudaGraphExecDestroy(replay), cudaSuccess);
  });
}

TEST(StreamTest, AStreamThatIsCapturedCannotBeWaitedFor) {
  in_each_way([] {
    const cudaStream_t stream = new_stream();
    uint32_t* words = new_pinned(1);
    const cudaGraphExec_t replay = captured(stream, [&] {
      EXPECT_EQ(enqueue_add({words, words, 0}, stream), cudaSuccess);
      EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
      cudaEvent_t event = nullptr;
      EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
      EXPECT_EQ(cudaEventRecord(event, stream), cudaErrorStreamCaptureUnsupported);
      EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                cudaErrorIllegalState);
    });
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(words[0], 1U);
    EXPECT_EQ(cudaGraphLaunch(replay, stream), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(words[0], 2U) << "what was refused is not in the graph";
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorIllegalState);
    EXPECT_EQ(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeThreadLocal),
              cudaErrorIllegalState);
  });
}

}  // namespace
}  // namespace shoal::emulator
