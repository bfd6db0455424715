// A FAKE of libnccl 2.28.9 for tests without a GPU. It reproduces what can be seen from outside:
// the same names, files and sizes in /dev/shm at the same moments (lazily, in the first collective
// of each algorithm), the same log lines, and the same failure: ENOSPC leaves an empty file and
// ends that rank's call, while the other ranks spin in accept and never notice. Buffers are host
// memory. A collective makes its connections in the call, and then runs on the stream of the
// emulated device, or in the caller's thread if there is none. Bytes always travel over loopback
// sockets, whatever the log says. Communicators must be blocking. NCCL_* variables and nccl.conf
// are read once. If the process exits while a call runs, it aborts. These variables set what it
// pretends to be (defaults in parentheses):
//   EMULATED_GPU_PEERS=all|none whether GPUs reach each other's memory, as for the emulated device
//                               (none)
//   FAKE_NCCL_VERSION=X.Y.Z     the version, which also selects the sizes of the proxy pool and of
//                               the region for NVLS, and what 2.30.7 changed in the log (2.28.9)
//   EMULATED_GPU_LEAVE_OUT=FILE a rank leaves a collective out (tests/emulator/settings.h)
//   FAKE_NCCL_POOL_BYTES=N      the proxy pool has this size instead, as in a version that nobody
//                               knows
//   FAKE_NCCL_CHANNELS=N        channels that the search finds (2)
//   FAKE_NCCL_NVLS=0|1          whether the hardware has NVLS (0)
//   FAKE_NCCL_CUMEM_HOST=0|1    whether cuMem host memory works (0)
//   FAKE_NCCL_HANG=init|collective[:RANK]   the init, or the first collective, never returns
//   FAKE_NCCL_HANG=collective:RANK:N|PATH   the rank's N-th collective, or the next one once there
//                               is the file PATH, which it takes away, spins for ever
//   FAKE_NCCL_DIE=FILE          the rank whose number FILE holds removes the file, and ends its
//                               process by SIGKILL in its next collective, before it connects
//   FAKE_NCCL_HOLD_INIT=FILE    the init goes on only once there is this file
//   FAKE_NCCL_TELL=FILE         gets a line when a call hangs or is held, and when the init is over
//   FAKE_NCCL_MOST_GATHERED=N   refuses an all-gather of more than N bytes per rank (no limit)
//   FAKE_NCCL_WRONG_BYTES=N     each data segment takes N bytes more than that of 2.28.9 (0)
#include <atomic>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <functional>
#include <memory>
#include <random>

#include "tests/fakes/fake_nccl_comm.h"
#include "tests/fakes/fake_nccl_log.h"
#include "tests/fakes/fake_nccl_settings.h"

using fake_nccl::Comm;
using fake_nccl::Result;

namespace {

struct UniqueId {
  char internal[128];
};

/// The content of a unique id.
struct Meeting {
  char magic[8];
  uint64_t key;
  int32_t port;
};
constexpr char kMagic[8] = {'F', 'A', 'K', 'E', 'N', 'C', 'C', 'L'};

/// The part of ncclConfig_t that is read here. Every version of it starts with these members.
struct Config {
  size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
};

size_t type_bytes(int type) {
  return type == 0 || type == 1 ? 1 : type == 7 ? 4 : 0;
}

/// A function of the emulated module, or nullptr if the process has not opened the module.
template <typename Function>
Function* of_the_device(const char* name) {
  void* module = ::dlopen("libemulated_cuda_module.so", RTLD_NOW | RTLD_NOLOAD);
  if (module == nullptr) return nullptr;
  auto* const function = reinterpret_cast<Function*>(::dlsym(module, name));
  ::dlclose(module);
  return function;
}

/// Whether this rank is to leave out the collective that it begins, as if its program had another
/// order. NCCL does not compare what ranks call.
bool left_out() {
  auto* const leaves_out = of_the_device<bool()>("emulated_leaves_out");
  return leaves_out != nullptr && leaves_out();
}

/// The device that the calling thread has selected, or -1 if it has selected none or no emulated
/// module is loaded.
int selected_device() {
  auto* const selected = of_the_device<int32_t()>("emulated_selected_device");
  return selected == nullptr ? -1 : selected();
}

/// Puts what remains of a collective, which writes these bytes, on the stream.
fake_nccl::Enqueue onto(void* stream, void* out, size_t bytes) {
  return [=](std::function<void()> rest) {
    auto* const enqueue =
        of_the_device<void(void*, void*, size_t, void (*)(void*), void*)>("emulated_enqueue");
    if (enqueue == nullptr) return rest();
    enqueue(
        stream, out, bytes,
        [](void* work) {
          const std::unique_ptr<std::function<void()>> mine(
              static_cast<std::function<void()>*>(work));
          (*mine)();
        },
        new std::function<void()>(std::move(rest)));
  };
}

std::atomic<int> running_calls{0};

/// Counts a call that may take long, while it runs.
struct Running {
  Running() { ++running_calls; }
  ~Running() { --running_calls; }
};

/// At the exit of its process the real library takes away what a running call uses.
__attribute__((destructor)) void check_that_no_call_runs() {
  if (running_calls == 0) return;
  std::fprintf(stderr, "fake NCCL: the process exits while a call runs\n");
  std::abort();
}

Result invalid(const char* what) {
  fake_nccl::warn("init.cc:1869", "%s", what);
  return fake_nccl::kInvalidArgument;
}

Result take_config(const Config* config, fake_nccl::InitArgs* args) {
  if (config == nullptr) return fake_nccl::kSuccess;
  if (config->magic != 0xcafebeef || config->size < sizeof(Config))
    return invalid("ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
  if (config->blocking != INT_MIN) args->blocking = config->blocking != 0;
  return fake_nccl::kSuccess;
}

}  // namespace

#define FAKE_API extern "C" __attribute__((visibility("default")))

FAKE_API Result ncclGetVersion(int* version) {
  if (version == nullptr) return fake_nccl::kInvalidArgument;
  *version = fake_nccl::version_code();
  return fake_nccl::kSuccess;
}

FAKE_API const char* ncclGetErrorString(Result result) {
  switch (result) {
    case fake_nccl::kSuccess:
      return "no error";
    case fake_nccl::kUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case fake_nccl::kSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case fake_nccl::kInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case fake_nccl::kInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case fake_nccl::kInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case fake_nccl::kRemoteError:
      return "remote process exited or there was a network error";
    case fake_nccl::kInProgress:
      return "NCCL operation in progress";
  }
  return "unknown result code";
}

FAKE_API const char* ncclGetLastError(Comm*) {
  return fake_nccl::last_error();
}

FAKE_API Result ncclGetUniqueId(UniqueId* id) {
  Meeting meeting{};
  std::memcpy(meeting.magic, kMagic, sizeof kMagic);
  meeting.key = (uint64_t{std::random_device()()} << 32) | std::random_device()();
  meeting.port = fake_nccl::start_root(meeting.key);
  if (meeting.port == 0) {
    fake_nccl::warn("bootstrap.cc:94", "Bootstrap : no socket interface found");
    return fake_nccl::kSystemError;
  }
  fake_nccl::info(fake_nccl::Subsystem::kBootstrap, "Bootstrap: Using lo:127.0.0.1<0>");
  std::memset(id, 0, sizeof *id);
  std::memcpy(id->internal, &meeting, sizeof meeting);
  return fake_nccl::kSuccess;
}

FAKE_API Result ncclCommInitRankConfig(Comm** comm, int ranks, UniqueId id, int rank,
                                       const Config* config) {
  const Running call;
  Meeting meeting{};
  std::memcpy(&meeting, id.internal, sizeof meeting);
  if (comm == nullptr || ranks < 1 || rank < 0 || rank >= ranks)
    return invalid("Invalid rank requested");
  if (std::memcmp(meeting.magic, kMagic, sizeof kMagic) != 0)
    return invalid("the unique id is not one of this fake");
  fake_nccl::InitArgs args;
  args.root_port = meeting.port;
  args.key = meeting.key;
  args.ranks = ranks;
  args.rank = rank;
  args.device = selected_device();
  if (const Result result = take_config(config, &args); result != fake_nccl::kSuccess)
    return result;
  if (fake_nccl::settings().blocking >= 0) args.blocking = fake_nccl::settings().blocking != 0;
  auto* const made = new Comm(args);  // lives until the process ends
  return made->init(comm);
}

FAKE_API Result ncclCommGetAsyncError(Comm* comm, Result* error) {
  if (comm == nullptr || error == nullptr) return fake_nccl::kInvalidArgument;
  *error = comm->state();
  return fake_nccl::kSuccess;
}

FAKE_API Result ncclAllGather(const void* mine, void* all, size_t count, int type, Comm* comm,
                              void* stream) {
  const Running call;
  if (comm == nullptr || type_bytes(type) == 0) return invalid("AllGather : invalid type");
  if (left_out()) return fake_nccl::kSuccess;
  const size_t bytes = count * type_bytes(type);
  return comm->all_gather(static_cast<const char*>(mine), static_cast<char*>(all), bytes,
                          onto(stream, all, bytes * static_cast<size_t>(comm->ranks())));
}

FAKE_API Result ncclAllReduce(const void* own, void* out, size_t count, int type, int op,
                              Comm* comm, void* stream) {
  const Running call;
  if (comm == nullptr || type != 7 || op != 0) return invalid("AllReduce : this fake sums floats");
  if (left_out()) return fake_nccl::kSuccess;
  return comm->all_reduce(static_cast<const float*>(own), static_cast<float*>(out), count,
                          onto(stream, out, count * sizeof(float)));
}
