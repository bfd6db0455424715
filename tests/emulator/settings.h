#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/emulator/tensor_core.h"

namespace shoal::emulator {

/// In which order the lanes of a block, and the blocks of a launch, take their turns. A random
/// order is one of two kinds, which the seed chooses: each turn goes to any lane that can run, so
/// that all advance alike; or lanes have priorities that change rarely, so that some warps or lanes
/// run as far ahead of the others as barriers let them.
enum class Order { kForward, kReverse, kRandom };
/// When copy_async writes: where it is called, or where the lane waits for it.
enum class Copies { kEarly, kLate };
/// When a stream does its work: in a thread of its own, where it is enqueued, or where somebody
/// waits for it.
enum class Streams { kThreads, kAtOnce, kWhenWaitedFor };

/// How memory is treated that nobody has written. Its bytes are NaN in every type. kUnwritten:
/// reading it is an error. kNan: the device treats it as written, so a kernel may read it. If the
/// kernel also uses it, its results show the NaN.
enum class Fresh { kUnwritten, kNan };

/// The numbers of two devices. The number -1 means every device.
struct Pair {
  int from = -2;
  int to = -2;
  bool has(int a, int b) const { return (from == -1 || from == a) && (to == -1 || to == b); }
};

struct Capability {
  int major = 9;
  int minor = 0;
};

/// An error of a function of CUDA's.
struct PlannedError {
  std::string function;
  int error = 0;
  int device = -1;  ///< that it is of; -1: of every one
};

/// What the emulated machine is, and what goes wrong on it. These variables set it (their defaults
/// are in parentheses). N, and what NUMBERS says, may also be the path of a file that holds it, so
/// that a process that starts later can find another one:
///   EMULATED_GPU_DEVICES=N          the number of devices (8); 0 is a machine without any
///   EMULATED_GPU_NUMBERS=D,...|none the devices that are there, in the order of CUDA's numbers:
///                                   2,0 makes device 2 number 0 (all, each under its own number).
///                                   All else here means devices, whatever CUDA's numbers are
///   EMULATED_GPU_PEERS=all|none     whether devices reach each other's memory (none)
///   EMULATED_GPU_DRIVER=N           the driver's CUDA version (13000)
///   EMULATED_GPU_CAPABILITY=X.Y,... of each device; the last one is that of all others too (9.0)
///   EMULATED_GPU_TENSOR_CORE=own|sm80|sm90|other,...  how the tensor cores of each device sum: as
///                                   those of its capability, of a class, or as none that is known;
///                                   the last one is that of all others too (own)
///   EMULATED_GPU_BYTES=N            the memory of each device (1073741824)
///   EMULATED_GPU_TAKEN=N            the bytes of it that other processes have taken (0)
///   EMULATED_GPU_FRESH=unwritten|nan    what cudaMalloc gives: NaN, and to read it is a fault; or
///                                   NaN of a former owner, which may be read (unwritten)
///   EMULATED_GPU_FAIL=NAME:N[:D]    CUDA's function NAME returns the error N, e.g. cudaMalloc:2,
///   on
///                                   device D, or on all
///   EMULATED_GPU_FAIL=PATH          the device breaks once there is a file PATH, which holds
///                                   NAME:N:D: the process in which NAME finds it takes it away,
///                                   and all its calls return N from then on
///   EMULATED_GPU_PEER_WRONG=F-T     what F's kernels write to T's memory is lost; F and T may be *
///   EMULATED_GPU_PEER_HANG=F-T      a kernel of F that writes to T's memory never ends
///   EMULATED_GPU_TRIED=N            the bytes of a pattern with which the module tries a pair, of
///                                   those that it is asked for (all): lanes take half a second for
///                                   what a device copies at once, and eight devices have 56 pairs
///   EMULATED_GPU_HANG=PATH          once the file PATH holds a device's number, kernels of that
///                                   device do not end any more. It may hold several, with spaces
///   EMULATED_GPU_LEAVE_OUT=PATH     once the file PATH holds a device's number, that device leaves
///                                   out one collective, a push or one of the fake NCCL, and
///                                   removes the file. From then on its peers are in other ones
///   EMULATED_GPU_COMPILES=PATH      while there is a file PATH, to load a kernel takes time, as if
///                                   the driver had to compile it
///   EMULATED_GPU_LAUNCHED=PATH      each process adds a line to PATH for every kernel that it
///                                   launches for the first time
///   EMULATED_GPU_ORDER=forward|reverse|N    N is the seed of a random order (forward)
///   EMULATED_GPU_SKIP_BARRIER=FILE:LINE     lanes do not wait at the __syncthreads or __syncwarp
///                                   there, e.g. product.cuh:256, which plants a fault
///   EMULATED_GPU_COPIES=early|late  (early)
///   EMULATED_GPU_STREAMS=threads|at-once|when-waited-for  (threads)
struct Settings {
  int devices = 8;
  std::vector<int> numbers;  ///< the device of each of CUDA's numbers
  /// -1: no device has that number.
  int device_of(int number) const {
    const auto at = static_cast<size_t>(number);
    return number >= 0 && at < numbers.size() ? numbers[at] : -1;
  }
  bool peers = false;
  std::vector<Capability> capabilities;  ///< one for each device
  std::vector<TensorCore> tensor_cores;  ///< the same
  int driver = 13000;
  size_t bytes = size_t{1} << 30;
  size_t taken = 0;
  Fresh fresh = Fresh::kUnwritten;
  PlannedError fails;
  std::string breaks;  ///< the path of a file that will hold another one
  Pair peer_wrong;
  Pair peer_hang;
  int64_t tried = 0;  ///< 0: all
  std::string hang;   ///< a path, like the three that follow
  std::string leave_out;
  std::string compiles;
  std::string launched;
  Order order = Order::kForward;
  uint64_t seed = 0;
  std::string skip_barrier;  ///< text_of its place
  int skip_line = -1;        ///< which that ends with
  Copies copies = Copies::kEarly;
  Streams streams = Streams::kThreads;
};

/// What the environment says now, because a test changes it between two parts. A value that has no
/// meaning ends the process with a message. What is returned stays for as long as the process.
const Settings& settings();

/// Whether there is a file of this path that holds the device's number, and maybe others. "": there
/// is none.
bool holds_number(const std::string& path, int device);

/// What this function of CUDA's must return now if the caller uses the device. 0: nothing is
/// planned.
int planned_error(const char* function, int device);

}  // namespace shoal::emulator
