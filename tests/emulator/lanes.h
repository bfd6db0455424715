#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>

#include "tests/emulator/report.h"
#include "tests/emulator/settings.h"

/// The lanes (CUDA's threads) of a kernel. Each is a fiber that runs until it must wait for others:
/// at a barrier of its block, at a meeting of its warp, or because it polls memory. The scheduler
/// then gives another lane its turn, in the order that the settings ask for. So a kernel that needs
/// a barrier and has none computes something else in some order, and ThreadSanitizer, which sees
/// each lane as a thread that only barriers order, names both lines.
namespace shoal::emulator {

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

/// What the running lane sees as CUDA's threadIdx, blockIdx, blockDim and gridDim.
struct Index {
  Dim3 thread, block, block_size, grid;
};
extern thread_local constinit Index current_index;

struct LaunchShape {
  Dim3 grid;
  unsigned threads = 1;  ///< of a block, in one dimension
  size_t memory = 0;     ///< bytes of memory of each block
  const void* kernel = nullptr;
};

/// Runs body once for each lane of the launch, in the calling thread, to the end. As many blocks as
/// make 512 lanes are under way at the same time. False: the kernel was abandoned, and
/// first_report says why.
bool run_lanes(int device, const LaunchShape& shape, const std::function<void()>& body);

// The rest is called by lanes.

/// Waits for all lanes of the block. Returns whether any of them gave a value other than 0.
bool meet_block(int value, const Place& place);
/// Waits for the lanes of the warp that are in the mask. The last one to come calls
/// compute(operands), which has the operand of each, and nullptr for lanes outside of the mask.
/// Memory is ordered by the meeting only if `orders` is true.
void meet_warp(uint32_t mask, bool orders, void* operand, void (*compute)(void* const operands[]),
               const Place& place);
inline void meet_nobody(void* const*) {}
/// Lets others run, because this lane waits for memory to change.
void let_others_run();
/// The memory of the lane's block: LaunchShape::memory bytes that hold NaN until they are written.
unsigned char* memory_of_block();
size_t bytes_of_block();
/// Whether the lane has yet to wait for the kernels before its own, which was started early. Until
/// then it must not touch device memory, except for weights (copy_weights_async), nor end.
bool& is_early();
/// Reports a lane that is early. what: what it does, e.g. "device memory is read".
void check_not_early(const Place& place, const char* what);
/// What is fixed while a kernel runs.
struct LaunchFacts {
  const Settings* settings = nullptr;
  Capability capability;
  TensorCore tensor_core;
};
const LaunchFacts& facts_of_launch();
/// Ends the kernel of the calling lane, whose device has failed.
[[noreturn]] void abandon_kernel();

}  // namespace shoal::emulator
