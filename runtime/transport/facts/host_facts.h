#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"

namespace shoal {

/// What a directory for shared memory (/dev/shm) is and gives. Sizes in bytes.
struct ShmDirFacts {
  std::string path = "/dev/shm";
  bool exists = false;
  std::string fs_type;        ///< "tmpfs", "ext4", "overlay" ...; of the mount that holds the path
  std::string mount_options;  ///< as /proc/self/mountinfo says, super options after the mount's own
  uint64_t device = 0;        ///< st_dev
  int64_t size_bytes = 0;     ///< statvfs; 0: a tmpfs without a limit
  int64_t free_bytes = 0;     ///< f_bavail; meaningless where size_bytes is 0
  int64_t total_inodes = 0;   ///< 0: no limit
  int64_t free_inodes = 0;
  int open_errno = 0;  ///< why an unnamed file could not be opened there; 0: it could
  int64_t probed_bytes =
      0;  ///< what a fallocate there was asked for (and released again); 0: not tried
  int probe_errno =
      0;  ///< what it answered; ENOMEM too where the try was killed, ETIMEDOUT where it hung
  std::string probe_note;  ///< why it was not tried, or how it ended beside the errno; may be empty
  bool operator==(const ShmDirFacts&) const = default;
};

/// One level of the memory cgroup, from the process's own up to the root.
struct CgroupLevel {
  std::string path;          ///< the directory, "/sys/fs/cgroup/..."
  int64_t limit_bytes = -1;  ///< -1: none
  int64_t usage_bytes = 0;
  int64_t reclaimable_bytes = 0;  ///< page cache that the kernel drops before it kills
  bool oom_group = false;  ///< memory.oom.group: who is killed here takes the whole group along
  bool operator==(const CgroupLevel&) const = default;
};

struct CgroupFacts {
  int version = 0;  ///< 0: no memory controller seen; 1; 2
  std::vector<CgroupLevel> levels;
  /// limit - usage + reclaimable, the least of all levels, at least 0; -1: no limit anywhere.
  int64_t available_bytes() const;
  bool operator==(const CgroupFacts&) const = default;
};

/// Soft limits; -1: none.
struct LimitFacts {
  int64_t memlock_bytes = -1;
  int64_t fsize_bytes = -1;
  int64_t nofile = -1;
  bool operator==(const LimitFacts&) const = default;
};

/// Reading a sibling's memory (process_vm_readv), tried between two children of this process.
struct CmaFacts {
  bool tried = false;   ///< and answered: a try that failed for another reason than a prohibition
                        ///< tells nothing
  int error = 0;        ///< errno of what forbids it: EPERM, EACCES, ENOSYS; 0: it works
  int yama_scope = -1;  ///< /proc/sys/kernel/yama/ptrace_scope; -1: no yama
  int seccomp = 0;      ///< Seccomp in /proc/self/status: 0 none, 1 strict, 2 filter
  bool operator==(const CmaFacts&) const = default;
};

/// One device as the module sees it.
struct GpuDevice {
  std::string name;
  std::string pci_bus_id;          ///< "0000:17:00.0"
  std::string uuid;                ///< "GPU-..."; may be empty
  std::string compute_capability;  ///< "9.0"
  int64_t bytes = 0;               ///< of its memory
  std::string why_unusable;        ///< empty: usable
  bool operator==(const GpuDevice&) const = default;
};

/// What a pattern pushed and pulled between two devices came to.
struct GpuPeerVerdict {
  int from = 0;
  int to = 0;
  /// "ok", "corrupt N bytes", "hung", "not tried" (one before it hung), "failed: ..." in CUDA's
  /// words.
  std::string verdict;
  bool operator==(const GpuPeerVerdict&) const = default;
};

/// Devices, and what is needed to use them. Only the first three fields are read without loading
/// anything; the others come from a process of its own (runtime/supervisor/gpu_probe.h), and only
/// where ranks are to be on devices.
struct GpuFacts {
  int count = 0;               ///< device nodes seen
  std::string driver_version;  ///< of /proc/driver/nvidia/version; empty: no driver
  std::vector<std::vector<bool>>
      peers;  ///< peers[i][j]: the driver lets i reach j's memory; empty: not known

  bool asked = false;     ///< the fields below were looked for
  int ranks = 0;          ///< of the group that was asked for
  int ranks_per_gpu = 1;  ///< rank r uses device r / ranks_per_gpu
  std::string module_path;
  std::string module_build_id;
  std::string module_architectures;  ///< "75-virtual 80-real 90-real"
  int cuda_runtime = 0;              ///< of the module, 13000; 0: no module was loaded
  int cuda_driver = 0;  ///< the newest CUDA that the driver knows, 13000; 0: no driver answered
  std::vector<GpuDevice> devices;  ///< by CUDA's index
  std::vector<GpuPeerVerdict>
      verdicts;  ///< of every pair of the group's devices that the driver allows
  /// What stands in the way of all devices, in the loader's or CUDA's own words, and where: "find",
  /// "load", "facts", "probe" (the process that looked hung or died). Both empty: nothing does.
  std::string error_at;
  std::string error;
  int nccl_version = 0;  ///< 22809; 0: not loaded
  std::string nccl_path;
  std::string nccl_error;  ///< the loader's own words
  std::string
      cublas_version;  ///< of a file's name, "13.1.0.3"; nothing of it is loaded. Empty: none seen
  bool operator==(const GpuFacts&) const = default;
};

/// A file that a killed run may have left: ours or NCCL's (nccl-XXXXXX). Told by a write lease,
/// never by name or age.
struct LeftFile {
  std::string path;
  int64_t bytes = 0;  ///< allocated
  uint32_t uid = 0;
  /// "stale": nobody has it open; "in use"; "other user": not ours to look into; "unknown": no
  /// lease could be asked for.
  std::string state;
  bool operator==(const LeftFile&) const = default;
};

/// Everything about this place that decides which transport works. Gathered once, before any thread
/// is started; prints and parses as JSON, so that a bug report becomes a unit test.
struct HostFacts {
  std::string kernel;      ///< uname release
  std::string container;   ///< "docker", "podman", "kubernetes", "containerd" or "" (none seen)
  bool can_mount = false;  ///< CAP_SYS_ADMIN here: also in a container that was given it
  int64_t page_bytes = 4096;
  int64_t memory_total_bytes = 0;
  int64_t memory_available_bytes = 0;
  int numa_nodes = 1;
  ShmDirFacts dev_shm;
  int memfd_error = 0;  ///< errno of memfd_create with sealing; 0: it works
  CgroupFacts cgroup;
  LimitFacts limits;
  CmaFacts cma;
  bool loopback_ipv4 = false;  ///< a socket could be bound to 127.0.0.1
  bool loopback_ipv6 = false;
  std::vector<std::string> interfaces;
  GpuFacts gpu;
  std::vector<LeftFile> left_files;
  double gather_ms = 0;
  bool operator==(const HostFacts&) const = default;
};

struct FactsRequest {
  std::string shm_dir = "/dev/shm";
  int64_t probe_bytes = 0;  ///< how much a fallocate probe may try: no more than the need
  bool probe_cma = true;    ///< forks two children for some milliseconds
};

/// Well under 100 ms (some 5 ms, and 1 ms for each 4 MiB probed). Never fails: what cannot be read
/// is left at its default. Forks (cma, and the shm probe near a cgroup limit), so call it while
/// this process has one thread.
HostFacts gather_host_facts(const FactsRequest& request);

/// Reads again what changes while a server runs: the machine's memory, the cgroup's, and
/// facts->dev_shm.path without any try. The rest stays. Forks nothing: for any thread, at any time.
void refresh_host_facts(HostFacts* facts);

std::string to_json(const HostFacts& facts);
/// INVALID_ARGUMENT names the first field that is wrong. Absent fields keep their defaults, unknown
/// ones are ignored.
Result<HostFacts> parse_host_facts(std::string_view text);

}  // namespace shoal
