// Prints what works on this machine, as JSON. It is the first step on an unknown machine. Usage:
// gpu_machine_facts --module PATH. Each question is asked in a child process with a deadline, so
// that no question can hang the others. Exit code 77: no device.
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <dlfcn.h>
#include <fcntl.h>
#include <fstream>
#include <sched.h>
#include <string>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <vector>

#include "bench/gpu/rank_processes.h"
#include "runtime/base/cat.h"
#include "runtime/base/fd.h"
#include "runtime/device/device.h"
#include "runtime/device/module_loader.h"
#include "runtime/memory/shm_segment.h"

namespace shoal::gpu {
namespace {

constexpr int kSeconds = 60;
constexpr const char* kWorks = "works";

std::string quoted(const std::string& text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') json += '\\';
    if (c == '\n') {
      json += "\\n";
    } else if (static_cast<unsigned char>(c) >= ' ') {
      json += c;
    }
  }
  return json + '"';
}

std::string failed(const char* what) {
  return cat(what, ": ", std::strerror(errno), " (", errno, ")");
}

Result<std::shared_ptr<Device>> open_device(const std::string& path) {
  SHOAL_ASSIGN_OR_RETURN(const ShoalCudaModule* module, load_cuda_module(path));
  return Device::open(*module, 0);
}

/// The module's facts as JSON, or a JSON string that says why there are none.
std::string device_facts(const std::string& path) {
  const Result<const ShoalCudaModule*> module = load_cuda_module(path);
  if (!module.ok()) return quoted(module.status().to_string());
  static char text[64 * 1024];
  const int32_t error = (*module)->facts(text, sizeof text);
  return error == 0 ? text : quoted((*module)->error_text(error));
}

Status copy_and_wait(Device& device, void* to, const void* from, size_t bytes) {
  SHOAL_ASSIGN_OR_RETURN(const Device::Stream stream, device.make_stream());
  SHOAL_ASSIGN_OR_RETURN(const Device::Event event, device.make_event());
  SHOAL_RETURN_IF_ERROR(device.copy(to, from, bytes, stream.get()));
  SHOAL_RETURN_IF_ERROR(device.record(event.get(), stream.get()));
  return device.wait(event.get(), Deadline::after_ms(20'000), {});
}

/// Rank 0 exports a word, rank 1 imports it and writes to it, and rank 0 checks that it sees the
/// value.
Status share_a_word(const std::string& path, const RankPlace& place) {
  SHOAL_ASSIGN_OR_RETURN(const std::shared_ptr<Device> device, open_device(path));
  SHOAL_ASSIGN_OR_RETURN(const Device::Memory memory, device->allocate(2 << 20));
  SHOAL_ASSIGN_OR_RETURN(const Device::Memory pinned, device->allocate_pinned(sizeof(uint32_t)));
  auto* word = static_cast<uint32_t*>(pinned.get());
  uint8_t handle[kShoalIpcHandleBytes] = {};
  SHOAL_RETURN_IF_ERROR(
      device->check(device->module().export_memory(memory.get(), handle), "cudaIpcGetMemHandle"));
  SHOAL_ASSIGN_OR_RETURN(
      const std::vector<std::string> handles,
      place.exchange(std::string(reinterpret_cast<char*>(handle), sizeof handle)));
  if (place.world.rank == 1) {
    void* theirs = nullptr;
    SHOAL_RETURN_IF_ERROR(
        device->check(device->module().import_memory(
                          reinterpret_cast<const uint8_t*>(handles[0].data()), &theirs),
                      "cudaIpcOpenMemHandle"));
    *word = 0x5ca1ab1e;
    SHOAL_RETURN_IF_ERROR(copy_and_wait(*device, theirs, word, sizeof *word));
    SHOAL_RETURN_IF_ERROR(
        device->check(device->module().close_memory(theirs), "cudaIpcCloseMemHandle"));
  }
  SHOAL_RETURN_IF_ERROR(place.exchange("written").status());
  if (place.world.rank == 1) return {};
  SHOAL_RETURN_IF_ERROR(copy_and_wait(*device, word, memory.get(), sizeof *word));
  return *word == 0x5ca1ab1e ? Status() : Status::error(Code::kDataLoss, "the word did not come");
}

std::string cuda_ipc(const std::string& path) {
  const std::string wrong = all_reports(run_ranks(2, kSeconds, [&](const RankPlace& place) {
    const Status status = share_a_word(path, place);
    return status.ok() ? std::string() : status.to_string();
  }));
  return wrong.empty() ? kWorks : wrong;
}

std::string register_memfd(const std::string& path) {
  const Result<std::shared_ptr<Device>> device = open_device(path);
  if (!device.ok()) return device.status().to_string();
  const Result<ShmSegment> segment = ShmSegment::create_memfd(16 << 20);
  if (!segment.ok()) return segment.status().to_string();
  void* mapped = nullptr;
  const Status status =
      (*device)->check((*device)->module().register_host(segment->data(), segment->size(), &mapped),
                       "cudaHostRegister of 16 MiB");
  return status.ok() ? kWorks : status.to_string();
}

/// Mounts a tmpfs of 1 MiB over /dev/shm in a new mount namespace, as root or through a user
/// namespace.
std::string mount_in_a_namespace() {
  const int flags = ::geteuid() == 0 ? CLONE_NEWNS : CLONE_NEWNS | CLONE_NEWUSER;
  if (::unshare(flags) != 0) return failed("unshare");
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    return failed("mount / private");
  if (::mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=1m") != 0)
    return failed("mount a tmpfs of 1 MiB on /dev/shm");
  return kWorks;
}

std::string fallocate_in_shm() {
  const Fd file(::open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!file.valid()) return failed("O_TMPFILE in /dev/shm");
  if (::fallocate(file.get(), 0, 0, 1 << 20) != 0) return failed("fallocate 1 MiB in /dev/shm");
  return kWorks;
}

std::string nccl() {
  void* library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return ::dlerror();
  const auto version_of = reinterpret_cast<int (*)(int*)>(::dlsym(library, "ncclGetVersion"));
  int version = 0;
  Dl_info info{};
  if (version_of == nullptr || version_of(&version) != 0) return "ncclGetVersion fails";
  return cat(version, " ",
             ::dladdr(reinterpret_cast<void*>(version_of), &info) != 0 ? info.dli_fname : "");
}

/// The path under which a shell would find the tool.
std::string find_tool(const std::string& name) {
  std::string folders = std::getenv("PATH") == nullptr ? "" : std::getenv("PATH");
  folders += ":/usr/local/cuda/bin:/usr/local/nvidia/bin";
  for (size_t at = 0; at < folders.size();) {
    const size_t colon = std::min(folders.find(':', at), folders.size());
    const std::string path = folders.substr(at, colon - at) + "/" + name;
    if (::access(path.c_str(), X_OK) == 0) return path;
    at = colon + 1;
  }
  return "none";
}

std::string cgroup_memory_limit() {
  std::string limit = "unknown";
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    if (std::ifstream file(path); file >> limit) return limit;
  }
  return limit;
}

void print(const char* name, const std::string& json, bool last = false) {
  std::printf("  \"%s\": %s%s\n", name, json.c_str(), last ? "" : ",");
  std::fflush(stdout);
}

int print_facts(const std::string& path) {
  const auto ask = [](const auto& question) {
    return run_apart(kSeconds, [&]() -> std::string { return question(); });
  };
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  utsname name{};
  ::uname(&name);
  struct statvfs shm {};
  ::statvfs("/dev/shm", &shm);
  rlimit memlock{};
  ::getrlimit(RLIMIT_MEMLOCK, &memlock);

  std::printf("{\n");
  print("date", quoted(date));
  print("kernel", quoted(cat(name.sysname, " ", name.release)));
  print("cpus", std::to_string(::sysconf(_SC_NPROCESSORS_ONLN)));
  const std::string devices = ask([&] { return device_facts(path); });
  print("cuda", devices.empty() ? "null" : devices);
  print("cuda_ipc", quoted(cuda_ipc(path)));
  print("register_memfd", quoted(ask([&] { return register_memfd(path); })));
  print("mount_in_a_namespace", quoted(ask(mount_in_a_namespace)));
  print("fallocate_in_shm", quoted(ask(fallocate_in_shm)));
  print("shm_free_bytes", std::to_string(static_cast<uint64_t>(shm.f_bavail) * shm.f_frsize));
  print("memlock_bytes",
        memlock.rlim_cur == RLIM_INFINITY ? "null" : std::to_string(memlock.rlim_cur));
  print("cgroup_memory_limit", quoted(cgroup_memory_limit()));
  print("nccl", quoted(ask(nccl)));
  print("compute_sanitizer", quoted(find_tool("compute-sanitizer")));
  print("mps_control", quoted(find_tool("nvidia-cuda-mps-control")));
  print("nvidia_smi", quoted(find_tool("nvidia-smi")), true);
  std::printf("}\n");
  if (devices.find("\"pci_bus_id\"") != std::string::npos) return 0;
  std::fflush(stdout);
  std::fprintf(stderr, "gpu_machine_facts: no device\n");
  return 77;
}

}  // namespace
}  // namespace shoal::gpu

int main(int argc, char** argv) {
  if (argc != 3 || std::string(argv[1]) != "--module") {
    std::fprintf(stderr, "gpu_machine_facts --module PATH\n");
    return 64;
  }
  return shoal::gpu::print_facts(argv[2]);
}
