#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace shoal {

/// A file that takes room in a directory for shared memory.
struct ShmFile {
  std::string path;
  int64_t bytes = 0;  ///< allocated
  uint32_t uid = 0;   ///< of its owner
  int64_t age_s = 0;  ///< since it was last written
  /// The owner's name in /etc/passwd; empty if it is not there. NSS is not asked, because it may
  /// wait for a server, and a static program must not load its libraries.
  std::string user = {};
  bool operator==(const ShmFile&) const = default;
};

/// What a directory for shared memory (/dev/shm) is and how much it offers. Sizes are in bytes.
struct ShmDirFacts {
  std::string path = "/dev/shm";
  bool exists = false;
  /// Something that is no directory has the path: a file, or a link that leads to none.
  bool occupied = false;
  std::string fs_type;  ///< "tmpfs", "ext4", "overlay" ...; of the mount that holds the path
  /// As in /proc/self/mountinfo: the mount's own options, then the super options.
  std::string mount_options;
  uint64_t device = 0;       ///< st_dev
  int64_t size_bytes = 0;    ///< from statvfs; 0: a tmpfs without a limit
  int64_t free_bytes = 0;    ///< f_bavail; meaningless if size_bytes is 0
  int64_t total_inodes = 0;  ///< 0: no limit
  int64_t free_inodes = 0;
  int open_errno = 0;  ///< why an unnamed file could not be opened there; 0: it could
  /// How many bytes a fallocate was asked for there (and released again); 0: it was not tried.
  int64_t probed_bytes = 0;
  /// The errno of that fallocate; 0: it worked. Also ENOMEM if the process that tried it was
  /// killed, and ETIMEDOUT if it hung.
  int probe_errno = 0;
  std::string probe_note;  ///< why it was not tried, or how it ended if not by errno; may be empty
  /// The largest ones with a name, at most three, the largest first. What has no name any more
  /// takes room as well, but cannot be listed.
  std::vector<ShmFile> largest_files;
  bool operator==(const ShmDirFacts&) const = default;
};

/// One level of the memory cgroup, from the process's own up to the root.
struct CgroupLevel {
  std::string path;          ///< the directory, "/sys/fs/cgroup/..."
  int64_t limit_bytes = -1;  ///< -1: none
  int64_t usage_bytes = 0;
  int64_t reclaimable_bytes = 0;  ///< page cache that the kernel drops before it kills
  bool oom_group = false;         ///< memory.oom.group: a kill in this group kills the whole group
  /// memory.high: beyond it the kernel kills nobody, but slows everybody down to a crawl; -1: none.
  int64_t high_bytes = -1;
  /// Up to where the memory can be used: the lower of the two limits; -1: there is none.
  int64_t least_limit() const;
  bool operator==(const CgroupLevel&) const = default;
};

struct CgroupFacts {
  int version = 0;  ///< 0: no memory controller seen; 1; 2
  std::vector<CgroupLevel> levels;
  /// least_limit - usage + reclaimable, the least of all levels, at least 0; -1: no limit anywhere.
  int64_t available_bytes() const;
  bool operator==(const CgroupFacts&) const = default;
};

/// Soft limits; -1: none.
struct LimitFacts {
  int64_t memlock_bytes = -1;
  int64_t fsize_bytes = -1;
  int64_t nofile = -1;
  int64_t nproc =
      -1;  ///< processes and threads of this user; -1 for root too, who has no such limit
  int64_t address_space_bytes = -1;  ///< of each process
  bool operator==(const LimitFacts&) const = default;
};

/// How many processes and threads the pids cgroup still allows.
struct PidsFacts {
  std::string path;    ///< of the level that allows the fewest; empty: no limit
  int64_t limit = -1;  ///< of that level; -1: none
  int64_t used = 0;
  int64_t own_threads = 1;  ///< of this process, at the time it looked
  bool operator==(const PidsFacts&) const = default;
};

/// Reading a sibling's memory (process_vm_readv), tried between two children of this process.
struct CmaFacts {
  /// The read was tried, and either worked or was forbidden. A try that failed for another reason
  /// shows nothing, and does not count.
  bool tried = false;
  int error = 0;        ///< errno with which it is forbidden: EPERM, EACCES, ENOSYS; 0: it works
  int yama_scope = -1;  ///< /proc/sys/kernel/yama/ptrace_scope; -1: no yama
  int seccomp = 0;      ///< Seccomp in /proc/self/status: 0 none, 1 strict, 2 filter
  /// The kernel lets other processes read this one's memory. It does not if this user may not read
  /// the program's file.
  bool dumpable = true;
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
  /// How many bytes of its memory were free when the devices were looked at, before the first
  /// start of ranks. The CUDA context of the process that looked counts as taken, as that of a rank
  /// will. -1: not known, as for a device that the group does not use.
  int64_t free_bytes = -1;
  bool operator==(const GpuDevice&) const = default;
};

/// The result of pushing and pulling a pattern between two devices. fact_names.h has its text.
struct GpuPeerVerdict {
  /// kNotTried: the probe hung or died at an earlier pair.
  enum class Outcome { kOk, kCorrupt, kHung, kNotTried, kFailed };
  int from = 0;
  int to = 0;
  Outcome outcome = Outcome::kNotTried;
  std::string detail = {};  ///< kCorrupt: how much, "17 bytes"; kFailed: why, in CUDA's own words
  bool operator==(const GpuPeerVerdict&) const = default;
};

/// The step of looking for devices that failed: finding the module, loading it, asking it, or the
/// process that did all of this (it hung or died). kNowhere: none failed.
enum class GpuErrorAt { kNowhere, kFind, kLoad, kFacts, kProbe };

/// Devices, and what is needed to use them. Only count and driver_version are read without loading
/// anything. The other fields come from a separate process (runtime/supervisor/gpu_probe.h), which
/// is started only if ranks are to use devices.
struct GpuFacts {
  int count = 0;               ///< device nodes seen
  std::string driver_version;  ///< of /proc/driver/nvidia/version; empty: no driver
  /// peers[i][j]: the driver lets device i reach the memory of device j; empty: not known.
  std::vector<std::vector<bool>> peers;

  bool asked = false;     ///< devices were looked for in that process
  int ranks = 0;          ///< of the group that was asked for
  int ranks_per_gpu = 1;  ///< rank r uses device r / ranks_per_gpu
  std::string module_path;
  std::string module_build_id;
  std::string module_architectures;  ///< "80-virtual 80-real 90-real 100-real 120-real"
  int cuda_runtime = 0;              ///< of the module, 13000; 0: no module was loaded
  int cuda_driver = 0;  ///< the newest CUDA that the driver knows, 13000; 0: no driver answered
  std::vector<GpuDevice> devices;  ///< by CUDA's index
  /// One for every pair of the group's devices that the driver allows.
  std::vector<GpuPeerVerdict> verdicts;
  GpuErrorAt error_at = GpuErrorAt::kNowhere;
  /// Why no device can be used, in the loader's or CUDA's own words; empty: nothing is in the way.
  std::string error;
  int nccl_version = 0;  ///< 22809; 0: not loaded
  std::string nccl_path;
  std::string nccl_error;  ///< the loader's own words
  /// "13.1.1", of the cuBLASLt that computes products. If none was asked for, the version in the
  /// name of a file, and nothing is loaded. Empty: there is none.
  std::string cublas_version;
  std::string cublas_path;   ///< of the library that was loaded
  std::string cublas_error;  ///< why it cannot be used
  bool operator==(const GpuFacts&) const = default;
};

/// Whether anybody still uses a file. kStale: nobody has it open; kOtherUser: it belongs to another
/// user, so that it is not opened, not even by root; kUnknown: it has other names, is empty and
/// only seconds old, or no lease on it is granted.
enum class LeftFileState { kStale, kInUse, kOtherUser, kUnknown };

/// A file that a killed run may have left: one of Shoal's, or one of NCCL's (nccl-XXXXXX). A write
/// lease shows whether it is still used; its name and age do not.
struct LeftFile {
  std::string path;
  int64_t bytes = 0;  ///< allocated
  uint32_t uid = 0;
  LeftFileState state = LeftFileState::kUnknown;
  bool operator==(const LeftFile&) const = default;
};

/// Everything about this machine or container that decides which transport works. Gathered once,
/// before any thread is started. It is written and parsed as JSON, so that a bug report can become
/// a unit test.
struct HostFacts {
  std::string kernel;      ///< uname release
  std::string container;   ///< "docker", "podman", "kubernetes", "containerd" or "" (none seen)
  bool can_mount = false;  ///< this process has CAP_SYS_ADMIN, which a container may be given too
  int64_t page_bytes = 4096;
  int64_t memory_total_bytes = 0;
  int64_t memory_available_bytes = 0;
  int numa_nodes = 1;
  ShmDirFacts dev_shm;
  int memfd_error = 0;  ///< errno of memfd_create with sealing; 0: it works
  CgroupFacts cgroup;
  LimitFacts limits;
  PidsFacts pids;
  bool proc_mounted = true;  ///< false: no /proc, so that limits of a container cannot be read
  CmaFacts cma;
  bool loopback_ipv4 = false;  ///< a connection over 127.0.0.1 could be made
  bool loopback_ipv6 = false;  ///< the same over ::1
  /// Why none could be made over 127.0.0.1 (ENETUNREACH: the interface is down); 0: not known or
  /// nothing.
  int loopback_error = 0;
  /// How many ports the kernel gives out by itself (ip_local_port_range); -1: not known.
  int64_t local_ports = -1;
  std::vector<std::string> interfaces;
  GpuFacts gpu;
  std::vector<LeftFile> left_files;
  double gather_ms = 0;
  bool operator==(const HostFacts&) const = default;
};

/// Whether NCCL makes files of this many bytes in /dev/shm.
using NcclSize = std::function<bool(int64_t bytes)>;

struct FactsRequest {
  std::string shm_dir = "/dev/shm";
  /// For left_files. Empty: no size is known, so that only empty files can be NCCL's.
  NcclSize is_nccl_size;
  /// How much a test fallocate may take, which must not be more than the need; 0: no test.
  int64_t probe_bytes = 0;
  bool probe_cma = true;  ///< forks two children for some milliseconds
};

/// Takes well under 100 ms (about 5 ms, and 1 ms for each 4 MiB probed). Never fails: what cannot
/// be read is left at its default. It forks (for cma, and for the shm probe near a memory limit),
/// so call it while this process has one thread.
HostFacts gather_host_facts(const FactsRequest& request);

/// Reads again what changes while a server runs: the free memory of the machine and of the cgroup,
/// the processes that its limit allows, and the directory facts->dev_shm.path, whose earlier probe
/// is dropped and not repeated. All other facts stay. May be called from any thread at any time,
/// because it does not fork.
void refresh_host_facts(HostFacts* facts);

}  // namespace shoal
