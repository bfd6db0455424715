// A FAKE of libshoal_cuda.so for tests without a GPU: the same table over host memory. Streams
// execute their work at once. Memory of `allocate` is a memfd, so that another process can import
// it. These variables set what it pretends to be (defaults in parentheses):
//   FAKE_CUDA_DEVICES=N       number of devices (8)
//   FAKE_CUDA_PEERS=all|none  whether devices reach each other's memory (none)
//   FAKE_CUDA_DRIVER=N        the driver's CUDA version (13000)
//   FAKE_CUDA_CAPABILITY=X.Y  of every device (9.0)
//   FAKE_CUDA_FAIL=NAME:N     the function NAME of the table returns the error N
//   FAKE_CUDA_PEER_WRONG=N    try_peer finds N wrong bytes
//   FAKE_CUDA_PEER_HANG=F-T   try_peer from F to T never returns
//   FAKE_CUDA_BUILD_ID=TEXT   a build id instead of this build's
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/device/cuda_module.h"

namespace {

// The numbers of cudaError_t.
constexpr int32_t kOk = 0, kInvalidValue = 1, kOutOfMemory = 2, kNoDevice = 100,
                  kInvalidDevice = 101, kInvalidHandle = 400, kPeerUnsupported = 217;

std::string setting(const char* name, const char* otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : text;
}

int device_count() {
  return std::atoi(setting("FAKE_CUDA_DEVICES", "8").c_str());
}

/// The error that the test asks this function to return, or 0.
int32_t planned(const char* function) {
  const std::string text = setting("FAKE_CUDA_FAIL", "");
  const size_t colon = text.find(':');
  return colon != std::string::npos && text.substr(0, colon) == function
             ? std::atoi(text.c_str() + colon + 1)
             : kOk;
}
#define FAIL_IF_PLANNED() \
  if (const int32_t planned_error = planned(__func__); planned_error != kOk) return planned_error

const char* error_text(int32_t error) {
  switch (error) {
    case kInvalidValue:
      return "cudaErrorInvalidValue: invalid argument";
    case kOutOfMemory:
      return "cudaErrorMemoryAllocation: out of memory";
    case 35:
      return "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version";
    case kNoDevice:
      return "cudaErrorNoDevice: no CUDA-capable device is detected";
    case kInvalidDevice:
      return "cudaErrorInvalidDevice: invalid device ordinal";
    case kPeerUnsupported:
      return "cudaErrorPeerAccessUnsupported: peer access is not supported between these two devices";
    case kInvalidHandle:
      return "cudaErrorInvalidResourceHandle: invalid resource handle";
    case 719:
      return "cudaErrorLaunchFailure: unspecified launch failure";
    default:
      return "cudaErrorUnknown: unknown error";
  }
}

int32_t facts(char* text, size_t text_bytes) {
  FAIL_IF_PLANNED();
  if (device_count() <= 0) return kNoDevice;
  std::string json = "{\"driver_version\": " + setting("FAKE_CUDA_DRIVER", "13000") +
                     ", \"runtime_version\": 13000, \"devices\": [";
  std::string peers;
  for (int i = 0; i < device_count(); ++i) {
    char bus[32];
    std::snprintf(bus, sizeof bus, "0000:%02x:00.0", 16 + i);
    json += std::string(i == 0 ? "" : ", ") + "{\"name\": \"Fake GPU\", \"pci_bus_id\": \"" + bus +
            "\", \"uuid\": \"GPU-fake-" + std::to_string(i) + "\", \"compute_capability\": \"" +
            setting("FAKE_CUDA_CAPABILITY", "9.0") + "\", \"total_bytes\": 1073741824}";
    peers += std::string(i == 0 ? "[" : ", [");
    for (int j = 0; j < device_count(); ++j) {
      const bool reaches = i != j && setting("FAKE_CUDA_PEERS", "none") == "all";
      peers += std::string(j == 0 ? "" : ", ") + (reaches ? "true" : "false");
    }
    peers += "]";
  }
  json += "], \"can_access_peer\": [" + peers + "]}";
  std::snprintf(text, text_bytes, "%s", json.c_str());
  return kOk;
}

int32_t try_peer(int32_t from, int32_t to, int64_t, int64_t* wrong_bytes) {
  FAIL_IF_PLANNED();
  if (setting("FAKE_CUDA_PEER_HANG", "") == std::to_string(from) + "-" + std::to_string(to)) {
    for (;;) ::pause();
  }
  if (from != to && setting("FAKE_CUDA_PEERS", "none") != "all") return kPeerUnsupported;
  *wrong_bytes = std::atoll(setting("FAKE_CUDA_PEER_WRONG", "0").c_str());
  return kOk;
}

// Memory. Every allocation is a memfd. Its address identifies its descriptor and size.
struct Block {
  int fd = -1;
  size_t bytes = 0;
};
std::mutex blocks_mutex;
std::map<void*, Block> blocks;

int32_t map_block(int fd, size_t bytes, void** memory) {
  void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) return kOutOfMemory;
  const std::lock_guard<std::mutex> lock(blocks_mutex);
  blocks[mapped] = {fd, bytes};
  *memory = mapped;
  return kOk;
}

int32_t unmap_block(void* memory) {
  const std::lock_guard<std::mutex> lock(blocks_mutex);
  const auto found = blocks.find(memory);
  if (found == blocks.end()) return kInvalidValue;
  ::munmap(memory, found->second.bytes);
  ::close(found->second.fd);
  blocks.erase(found);
  return kOk;
}

thread_local int32_t selected = -1;

int32_t select(int32_t device) {
  FAIL_IF_PLANNED();
  if (device_count() <= 0) return kNoDevice;
  if (device < 0 || device >= device_count()) return kInvalidDevice;
  selected = device;
  return kOk;
}

int32_t allocate(size_t bytes, void** memory) {
  FAIL_IF_PLANNED();
  const int fd = ::memfd_create("fake-device-memory", MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(bytes)) != 0) return kOutOfMemory;
  return map_block(fd, bytes, memory);
}
int32_t release(void* memory) {
  return unmap_block(memory);
}
int32_t allocate_pinned(size_t bytes, void** memory) {
  FAIL_IF_PLANNED();
  *memory = std::calloc(1, bytes);
  return *memory == nullptr ? kOutOfMemory : kOk;
}
int32_t release_pinned(void* memory) {
  std::free(memory);
  return kOk;
}
int32_t register_host(void* memory, size_t, void** device_memory) {
  FAIL_IF_PLANNED();
  *device_memory = memory;
  return kOk;
}
int32_t unregister_host(void*) {
  return kOk;
}

int32_t make_handle(void** handle) {
  *handle = std::malloc(1);
  return *handle == nullptr ? kOutOfMemory : kOk;
}
int32_t drop_handle(void* handle) {
  std::free(handle);
  return kOk;
}
int32_t create_stream(void** stream) {
  FAIL_IF_PLANNED();
  return make_handle(stream);
}
int32_t record_event(void*, void*) {
  FAIL_IF_PLANNED();
  return kOk;
}
int32_t query_event(void*, int32_t* done) {
  FAIL_IF_PLANNED();
  *done = 1;
  return kOk;
}
int32_t copy(void* to, const void* from, size_t bytes, void*) {
  FAIL_IF_PLANNED();
  std::memcpy(to, from, bytes);
  return kOk;
}

int32_t tree_sum(const ShoalTreeSum* sum, void*) {
  FAIL_IF_PLANNED();
  for (int64_t i = 0; i < sum->count; ++i) {
    float stack[kShoalMostPlanes] = {};
    int depth = 0;
    for (int value = 0; value < sum->values; ++value) {
      stack[depth++] = sum->planes[value][i];
      for (int fold = 0; fold < sum->merges[value]; ++fold) {
        --depth;
        stack[depth - 1] = stack[depth - 1] + stack[depth];
      }
    }
    sum->out[i] = stack[0];
  }
  return kOk;
}

// Another process opens the memfd through /proc. As with CUDA, the process that exported a handle
// cannot import it.
struct Handle {
  pid_t pid;
  int fd;
  size_t bytes;
};
static_assert(sizeof(Handle) <= kShoalIpcHandleBytes);

int32_t export_memory(void* memory, uint8_t handle[kShoalIpcHandleBytes]) {
  FAIL_IF_PLANNED();
  const std::lock_guard<std::mutex> lock(blocks_mutex);
  const auto found = blocks.find(memory);
  if (found == blocks.end()) return kInvalidValue;
  const Handle mine{::getpid(), found->second.fd, found->second.bytes};
  std::memset(handle, 0, kShoalIpcHandleBytes);
  std::memcpy(handle, &mine, sizeof mine);
  return kOk;
}
int32_t import_memory(const uint8_t handle[kShoalIpcHandleBytes], void** memory) {
  FAIL_IF_PLANNED();
  Handle theirs{};
  std::memcpy(&theirs, handle, sizeof theirs);
  if (theirs.pid == ::getpid()) return kInvalidHandle;
  const std::string path =
      "/proc/" + std::to_string(theirs.pid) + "/fd/" + std::to_string(theirs.fd);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  return fd < 0 ? kInvalidHandle : map_block(fd, theirs.bytes, memory);
}

// The push all_reduce. An area is a header (its rank's own sequence number, and one flag for each
// sender) followed by two halves, which are used in turn by the number's parity. Each half has a
// slot for every sender. A sender cannot be two calls ahead, because it would have needed this
// rank's next flag. So nobody overwrites a slot that is still being read.
struct AreaHeader {
  uint64_t sequence;
  uint64_t came[kShoalMostRanks];
};
constexpr int64_t kHeaderBytes = 4096;

int64_t slot_floats(int64_t area_bytes, int32_t world_size) {
  return (area_bytes - kHeaderBytes) / 2 / world_size / static_cast<int64_t>(sizeof(float));
}
int64_t push_floats(int64_t area_bytes, int32_t world_size, int32_t most_contributions) {
  const int64_t floats =
      slot_floats(area_bytes, world_size) / (most_contributions < 1 ? 1 : most_contributions);
  return floats < 0 ? 0 : floats;
}
float* slot_of(void* area, const ShoalPushAllReduce& args, uint64_t sequence, int sender) {
  auto* floats = reinterpret_cast<float*>(static_cast<char*>(area) + kHeaderBytes);
  const int64_t index = static_cast<int64_t>(sequence & 1) * args.world_size + sender;
  return floats + index * slot_floats(args.area_bytes, args.world_size);
}

bool wait_for(uint64_t* flag, uint64_t sequence, uint64_t spin_ns) {
  const auto began = std::chrono::steady_clock::now();
  while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) < sequence) {
    if (std::chrono::steady_clock::now() - began > std::chrono::nanoseconds(spin_ns)) return false;
    ::usleep(20);
  }
  return true;
}

int32_t push_all_reduce(const ShoalPushAllReduce* args, void* stream) {
  FAIL_IF_PLANNED();
  if (*args->failure != 0) return kOk;
  auto* mine = static_cast<AreaHeader*>(args->areas[args->rank]);
  const uint64_t sequence = ++mine->sequence;
  const int64_t count = args->sum.count;
  for (int peer = 0; peer < args->world_size; ++peer) {
    float* slot = slot_of(args->areas[peer], *args, sequence, args->rank);
    for (int plane = 0; plane < args->contributions[args->rank]; ++plane) {
      std::memcpy(slot + plane * count, args->own + plane * args->pitch,
                  static_cast<size_t>(count) * sizeof(float));
    }
    auto* header = static_cast<AreaHeader*>(args->areas[peer]);
    __atomic_store_n(&header->came[args->rank], sequence, __ATOMIC_RELEASE);
  }
  ShoalTreeSum sum = args->sum;
  int value = 0;
  for (int rank = 0; rank < args->world_size; ++rank) {
    if (!wait_for(&mine->came[rank], sequence, args->spin_ns)) {
      *args->failure = 1 + static_cast<uint32_t>(rank);
      return kOk;
    }
    const float* slot = slot_of(args->areas[args->rank], *args, sequence, rank);
    for (int plane = 0; plane < args->contributions[rank]; ++plane)
      sum.planes[value++] = slot + plane * count;
  }
  return tree_sum(&sum, stream);
}

}  // namespace

// For the fake NCCL, which asks the CUDA runtime for the calling thread's device as the real one
// does. -1: no device was selected.
extern "C" __attribute__((visibility("default"))) int32_t fake_cuda_selected_device() {
  return selected;
}

extern "C" __attribute__((visibility("default"))) const ShoalCudaModule* shoal_cuda_module() {
  static const std::string build_id = setting("FAKE_CUDA_BUILD_ID", SHOAL_BUILD_ID);
  static const ShoalCudaModule module{sizeof(ShoalCudaModule),
                                      build_id.c_str(),
                                      13000,
                                      "75-virtual 80-real 90-real",
                                      error_text,
                                      facts,
                                      try_peer,
                                      select,
                                      allocate,
                                      release,
                                      allocate_pinned,
                                      release_pinned,
                                      register_host,
                                      unregister_host,
                                      create_stream,
                                      drop_handle,
                                      make_handle,
                                      drop_handle,
                                      record_event,
                                      query_event,
                                      copy,
                                      tree_sum,
                                      export_memory,
                                      import_memory,
                                      unmap_block,
                                      push_floats,
                                      push_all_reduce};
  return &module;
}
