#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <functional>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/terminal.h"
#include "runtime/transport/rungs/rung.h"
#include "server/cli/command_io.h"
#include "server/cli/exit_code.h"
#include "server/commands/bare_exchange.h"
#include "server/commands/collectives_bench.h"
#include "server/commands/commands.h"
#include "server/host/host_resources.h"

namespace shoal {
namespace {

constexpr int64_t kTimeoutMs = 20'000;

/// Gives each rank a CPU of its own, if there are enough.
void bind_rank(int rank, int world_size, const std::vector<int>& cpus) {
  if (static_cast<size_t>(world_size) > cpus.size()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpus[static_cast<size_t>(rank)]), &set);
  ::sched_setaffinity(0, sizeof set, &set);
}

using Timings = std::vector<CollectiveTiming>;
/// Times one rank, in a separate process.
using TimeRank = std::function<Result<Timings>(World)>;

/// Memory that all ranks share. It must be made before they are forked.
class SharedMemory {
 public:
  static Result<SharedMemory> create(size_t bytes) {
    void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (data == MAP_FAILED)
      return Status::error(Code::kResourceExhausted, cat("map ", bytes, " bytes"), errno);
    return SharedMemory(static_cast<std::byte*>(data), bytes);
  }
  SharedMemory(SharedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  SharedMemory& operator=(SharedMemory&&) = delete;
  ~SharedMemory() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }
  std::byte* data() const { return data_; }

 private:
  SharedMemory(std::byte* data, size_t bytes) : data_(data), bytes_(bytes) {}
  std::byte* data_;
  size_t bytes_;
};

/// Takes the place of the front in a real group: every rank leaves a note, and reads those of all
/// ranks.
struct Note {
  std::atomic<uint32_t> length;  ///< length plus one; 0: not written yet
  char text[1020];
};
static_assert(sizeof(Note) == 1024);

Result<std::vector<std::string>> exchange_notes(Note* notes, World world, const std::string& mine) {
  Note& own = notes[world.rank];
  if (mine.size() > sizeof own.text)
    return Status::error(Code::kInternal, "a note too long to exchange");
  std::memcpy(own.text, mine.data(), mine.size());
  own.length.store(static_cast<uint32_t>(mine.size()) + 1, std::memory_order_release);
  std::vector<std::string> all;
  const Deadline deadline = Deadline::after_ms(kTimeoutMs);
  for (int rank = 0; rank < world.size; ++rank) {
    uint32_t length = 0;
    while ((length = notes[rank].length.load(std::memory_order_acquire)) == 0) {
      if (deadline.passed())
        return Status::error(Code::kDeadlineExceeded, cat("rank ", rank, " left no note"));
      ::usleep(100);
    }
    all.emplace_back(notes[rank].text, length - 1);
  }
  return all;
}

Result<Timings> time_rank(const Rung& rung, World world, const TransportSetup& setup, Note* notes) {
  OpenArgs args;
  args.world = world;
  if (setup.shm.size() > 0) args.shm = Fd(::fcntl(setup.shm.fd(), F_DUPFD_CLOEXEC, 3));
  args.shm_bytes = static_cast<int64_t>(setup.shm.size());
  const auto rank = static_cast<size_t>(world.rank);
  if (!setup.listeners.empty())
    args.listener = Fd(::fcntl(setup.listeners[rank].get(), F_DUPFD_CLOEXEC, 3));
  args.tcp_ports = setup.tcp_ports;
  args.group_key = setup.group_key;
  args.timeout_ms = kTimeoutMs;
  args.exchange = [=](const std::string& mine) { return exchange_notes(notes, world, mine); };
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> communicator,
                         rung.open(std::move(args)));
  return time_collectives(*communicator);
}

/// Ranks 1 and up, as children of this process.
class Children {
 public:
  /// The children run the same calls, so that rank 0 has partners. It is safe to fork, because this
  /// process has one thread and has not started gRPC.
  Status start(const TimeRank& time_rank, int world_size, const std::vector<int>& cpus) {
    for (int rank = 1; rank < world_size; ++rank) {
      const pid_t pid = ::fork();
      if (pid < 0)
        return Status::error(Code::kResourceExhausted, cat("start the process of rank ", rank),
                             errno);
      if (pid == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        set_process_rank(rank);
        bind_rank(rank, world_size, cpus);
        ::_exit(report_failure(at(Stage::kRun, time_rank({rank, world_size}).status())));
      }
      pids_.push_back(pid);
    }
    return {};
  }

  /// Waits for all children. Returns the error of the first that failed, naming its rank.
  Status wait() {
    Status failed;
    for (size_t i = 0; i < pids_.size(); ++i) {
      int status = 0;
      while (::waitpid(pids_[i], &status, 0) < 0 && errno == EINTR) {
      }
      if (status == 0 || !failed.ok()) continue;
      failed = Status::error(Code::kAborted,
                             WIFSIGNALED(status)
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

Result<Timings> time_ranks(const TimeRank& time_rank, int world_size,
                           const std::vector<int>& cpus) {
  Children children;
  SHOAL_RETURN_IF_ERROR(children.start(time_rank, world_size, cpus));
  bind_rank(0, world_size, cpus);
  SHOAL_ASSIGN_OR_RETURN(Timings timings, time_rank({0, world_size}));
  SHOAL_RETURN_IF_ERROR(children.wait());
  return timings;
}

Result<Timings> time_rung(const Rung& rung, int world_size, const std::vector<int>& cpus,
                          const HostFacts& facts) {
  SHOAL_ASSIGN_OR_RETURN(const TransportSetup setup, rung.prepare({world_size, facts}));
  SHOAL_ASSIGN_OR_RETURN(const SharedMemory notes,
                         SharedMemory::create(sizeof(Note) * static_cast<size_t>(world_size)));
  return time_ranks(
      [&](World world) {
        return time_rank(rung, world, setup, reinterpret_cast<Note*>(notes.data()));
      },
      world_size, cpus);
}

/// Times the bare exchange, which shows what any shared memory between two processes costs here.
Result<Timings> time_bare_exchange(const std::vector<int>& cpus) {
  const size_t largest = *std::max_element(std::begin(kTimedBytes), std::end(kTimedBytes));
  SHOAL_ASSIGN_OR_RETURN(const SharedMemory shared,
                         SharedMemory::create(bare_exchange_bytes(largest)));
  return time_ranks(
      [&](World world) {
        return time_collectives(*make_bare_exchange(world.rank, shared.data(), largest));
      },
      2, cpus);
}

void add(std::vector<CollectiveRow>& rows, const Timings& timings) {
  for (const CollectiveTiming& timing : timings) {
    const auto known = std::find_if(rows.begin(), rows.end(), [&](const CollectiveRow& row) {
      return row.transport == timing.transport && row.bytes == timing.bytes;
    });
    if (known == rows.end()) {
      rows.push_back({timing.transport, timing.bytes, {timing.median_us}, timing.p99_us});
    } else {
      known->medians_us.push_back(timing.median_us);
      known->p99_us = std::min(known->p99_us, timing.p99_us);
    }
  }
}

/// Every failure here counts as a transport failure, because the bench does nothing but move bytes.
Ending failed(const Status& status, const std::string& what) {
  return at(Stage::kStart, status.blamed_on(Fault::kTransport).while_doing(what));
}

/// Shows what is being timed, because all of it takes minutes: on a terminal as one line that
/// changes, elsewhere as lines of the log. An empty text takes the line away.
void show_progress(const std::string& text) {
  if (log_options().level > LogLevel::kInfo && is_terminal(STDERR_FILENO))
    show_progress_line(text);
  else if (!text.empty())
    log_info(text);
}

/// Runs every transport named, one after the other, without falling back, because the purpose is to
/// compare them. It does so in several rounds, because the hypervisor may place two virtual CPUs
/// close together in one minute and far apart in the next.
Staged<std::vector<CollectiveRow>> time_rounds(const BenchCollectivesFlags& flags) {
  const std::vector<int> cpus =
      host_resources().cpus;  // must be read before this thread is bound to one of them
  const int world_size = flags.tensor_parallel_size;
  const HostFacts facts = gather_host_facts({});
  std::vector<CollectiveRow> rows;
  for (int round = 0; round < flags.rounds; ++round) {
    const std::string head = cat("round ", round + 1, " of ", flags.rounds, ": ");
    for (const std::string& name : flags.transport) {
      show_progress(head + name);
      const Result<Timings> timings = time_rung(*find_rung(name), world_size, cpus, facts);
      if (!timings.ok()) return failed(timings.status(), "transport " + name);
      add(rows, *timings);
    }
    if (world_size != 2 || cpus.size() < 2)
      // The yardstick never sleeps, so each rank needs a CPU of its own.
      continue;
    show_progress(head + "the bare exchange");
    const Result<Timings> timings = time_bare_exchange(cpus);
    if (!timings.ok()) return failed(timings.status(), "the bare exchange");
    add(rows, *timings);
  }
  return rows;
}

}  // namespace

int run_bench_collectives(const BenchCollectivesFlags& flags) {
  const MachineLoad load = MachineLoad::now();
  const Staged<std::vector<CollectiveRow>> rows = time_rounds(flags);
  show_progress("");
  if (!rows.ok()) return report_failure(rows.error());
  return report_failure(
      at(Stage::kRequest,
         write_stdout(collectives_report(*rows, load, flags.tensor_parallel_size, flags.json))));
}

}  // namespace shoal
