#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/comm/collectives_bench.h"
#include "runtime/transport/rung.h"
#include "server/command_io.h"
#include "server/commands.h"
#include "server/exit_code.h"
#include "server/host_resources.h"

namespace shoal {
namespace {

constexpr int64_t kTimeoutMs = 20'000;

/// Ranks on CPUs of their own where there are enough.
void bind_rank(int rank, int world_size, const std::vector<int>& cpus) {
  if (static_cast<size_t>(world_size) > cpus.size()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpus[static_cast<size_t>(rank)]), &set);
  ::sched_setaffinity(0, sizeof set, &set);
}

Result<std::vector<CollectiveTiming>> time_rank(const Rung& rung, World world, const TransportSetup& setup) {
  OpenArgs args;
  args.world = world;
  if (setup.shm.size() > 0) args.shm = Fd(::fcntl(setup.shm.fd(), F_DUPFD_CLOEXEC, 3));
  args.shm_bytes = static_cast<int64_t>(setup.shm.size());
  const auto rank = static_cast<size_t>(world.rank);
  if (!setup.listeners.empty()) args.listener = Fd(::fcntl(setup.listeners[rank].get(), F_DUPFD_CLOEXEC, 3));
  args.tcp_ports = setup.tcp_ports;
  args.group_key = setup.group_key;
  args.timeout_ms = kTimeoutMs;
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> communicator, rung.open(std::move(args)));
  return time_collectives(*communicator);
}

/// Ranks 1 .. as children of this process.
class Children {
 public:
  /// They time too, for rank 0 to have partners. This process has one thread, and gRPC has not started: fork is safe.
  Status start(const Rung& rung, int world_size, const TransportSetup& setup, const std::vector<int>& cpus) {
    for (int rank = 1; rank < world_size; ++rank) {
      const pid_t pid = ::fork();
      if (pid < 0) return Status::error(Code::kResourceExhausted, cat("start the process of rank ", rank), errno);
      if (pid == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        set_process_rank(rank);
        bind_rank(rank, world_size, cpus);
        ::_exit(report_failure(time_rank(rung, {rank, world_size}, setup).status(), Stage::kRun));
      }
      pids_.push_back(pid);
    }
    return {};
  }

  /// Waits for all; the first that failed, by name.
  Status wait() {
    Status failed;
    for (size_t i = 0; i < pids_.size(); ++i) {
      int status = 0;
      while (::waitpid(pids_[i], &status, 0) < 0 && errno == EINTR) {
      }
      if (status == 0 || !failed.ok()) continue;
      failed = Status::error(Code::kAborted, WIFSIGNALED(status)
                                                 ? cat("rank ", i + 1, " was killed by signal ", WTERMSIG(status))
                                                 : cat("rank ", i + 1, " exited with code ", WEXITSTATUS(status)));
    }
    pids_.clear();
    return failed;
  }

  ~Children() {
    for (const pid_t pid : pids_) ::kill(pid, SIGKILL);
    (void)wait();
  }

 private:
  std::vector<pid_t> pids_;
};

std::string report(const CollectiveTiming& timing, bool json) {
  char text[256];
  std::snprintf(text, sizeof text,
                json ? "{\"transport\":\"%s\",\"tp\":%d,\"bytes\":%zu,\"median_us\":%.3f,"
                       "\"p99_us\":%.3f}"
                     : "all_reduce %-4s %2d ranks %8zu B  median %8.2f us  p99 %8.2f us\n",
                timing.transport.c_str(), timing.world_size, timing.bytes, timing.median_us, timing.p99_us);
  return text;
}

Result<std::vector<CollectiveTiming>> time_rung(const Rung& rung, int world_size, const std::vector<int>& cpus) {
  SHOAL_ASSIGN_OR_RETURN(const TransportSetup setup, rung.prepare(world_size));
  Children children;
  SHOAL_RETURN_IF_ERROR(children.start(rung, world_size, setup, cpus));
  bind_rank(0, world_size, cpus);
  SHOAL_ASSIGN_OR_RETURN(std::vector<CollectiveTiming> timings, time_rank(rung, {0, world_size}, setup));
  SHOAL_RETURN_IF_ERROR(children.wait());
  return timings;
}

}  // namespace

/// Every transport named, one after the other: this compares them, it does not fall back.
int run_bench_collectives(const BenchCollectivesFlags& flags) {
  const std::vector<int> cpus = host_resources().cpus;  // before this thread is bound to one of them
  std::string objects;
  for (const std::string& name : flags.transport) {
    const Result<std::vector<CollectiveTiming>> timings = time_rung(*find_rung(name), flags.tensor_parallel_size, cpus);
    if (!timings.ok()) return report_failure(timings.status().while_doing("transport " + name), Stage::kStart);
    for (const CollectiveTiming& timing : *timings) {
      const std::string text = report(timing, flags.json);
      if (flags.json) {
        objects += (objects.empty() ? "" : ",") + text;
      } else if (const Status written = write_stdout(text); !written.ok()) {
        return report_failure(written, Stage::kRequest);
      }
    }
  }
  if (!flags.json) return 0;
  return report_failure(write_stdout("{\"bench\":\"collectives\",\"all_reduce\":[" + objects + "]}\n"),
                        Stage::kRequest);
}

}  // namespace shoal
