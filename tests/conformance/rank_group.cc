#include "tests/conformance/rank_group.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <memory>
#include <signal.h>
#include <string_view>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "runtime/base/cat.h"
#include "runtime/device/module_loader.h"
#include "runtime/transport/rungs/rung.h"
#include "tests/guard.h"

namespace shoal {
namespace {

constexpr int kMaxRanks = 32;
constexpr size_t kMaxExchangeBytes = 4000;
constexpr int64_t kNcclBytes = int64_t{8} * 2 * 9650176;

/// Takes the place of the front: memory that threads and forked processes share, where each rank
/// leaves its part of an exchange.
struct Board {
  struct Part {
    std::atomic<bool> there;
    size_t bytes;
    char data[kMaxExchangeBytes];
  };
  Part parts[kMaxRanks];
};

Board* make_board() {
  void* memory =
      ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  return static_cast<Board*>(memory);  // zeroed
}

/// What the front prepares for a rung.
struct Prepared {
  const Rung* rung = nullptr;
  TransportSetup setup;
  std::unique_ptr<Board, void (*)(Board*)> board{make_board(),
                                                 [](Board* b) { ::munmap(b, sizeof(Board)); }};
};

Prepared prepare(const GroupOptions& options) {
  Prepared prepared;
  const bool no_page = options.transport == kCmaNoPage;
  prepared.rung = find_rung(no_page ? "cma" : options.transport);
  if (prepared.rung == nullptr) std::abort();
  auto setup = prepared.rung->prepare(options.world_size);
  if (!setup.ok()) std::abort();
  prepared.setup = std::move(*setup);
  if (no_page) prepared.setup.shm = ShmSegment();
  return prepared;
}

/// The exchange of one rank. Each rank can use it once.
Exchange exchange_of(Board* board, World world) {
  return [board, world](std::string mine) -> Result<std::vector<std::string>> {
    if (mine.size() > kMaxExchangeBytes) std::abort();
    Board::Part& own = board->parts[world.rank];
    std::copy(mine.begin(), mine.end(), own.data);
    own.bytes = mine.size();
    own.there.store(true, std::memory_order_release);
    std::vector<std::string> all;
    const Deadline deadline = Deadline::after_ms(kGuardMs);
    for (int rank = 0; rank < world.size; ++rank) {
      const Board::Part& part = board->parts[rank];
      while (!part.there.load(std::memory_order_acquire)) {
        if (deadline.passed())
          return Status::error(Code::kDeadlineExceeded, cat("rank ", rank, " brings nothing"));
        ::usleep(200);  // no deadline: a poll
      }
      all.emplace_back(part.data, part.bytes);
    }
    return all;
  };
}

/// Adds what the front and the worker give a rank on a device: its environment and the stand-ins.
Status add_device(const Rung& rung, World world, OpenArgs& args) {
  ::setenv("EMULATED_GPU_PEERS", "all", 1);
  const RungContext context(world.size);
  const auto settings = rung.environment == nullptr ? std::vector<RungSetting>()
                                                    : rung.environment(context, world.rank);
  for (const RungSetting& setting : settings) {
    if (!setting.name.starts_with("NCCL_DEBUG"))
      ::setenv(setting.name.c_str(), setting.value.c_str(), 1);
  }
  SHOAL_ASSIGN_OR_RETURN(const ShoalCudaModule* module, load_cuda_module(SHOAL_EMULATED_MODULE));
  SHOAL_ASSIGN_OR_RETURN(args.device, Device::open(*module, world.rank));
  args.nccl_library = SHOAL_FAKE_NCCL;
  return {};
}

std::string run_rank(const GroupOptions& options, Prepared& prepared, int rank,
                     const RankBody& body) {
  OpenArgs args;
  args.world = {rank, options.world_size};
  TransportSetup& setup = prepared.setup;
  if (setup.shm.size() > 0) {
    args.shm = Fd(::fcntl(setup.shm.fd(), F_DUPFD_CLOEXEC, 3));
    args.shm_bytes = static_cast<int64_t>(setup.shm.size());
  }
  if (!setup.listeners.empty()) args.listener = std::move(setup.listeners[rank]);
  args.tcp_ports = setup.tcp_ports;
  args.group_key = setup.group_key;
  args.timeout_ms = options.timeout_ms;
  args.exchange = exchange_of(prepared.board.get(), args.world);
  args.interrupted = options.interrupted;
  if (prepared.rung->on_device) {
    if (const Status status = add_device(*prepared.rung, args.world, args); !status.ok())
      return status.to_string();
  }
  auto communicator = prepared.rung->open(std::move(args));
  if (!communicator.ok()) return communicator.status().to_string();
  if (std::string_view((*communicator)->name()) != prepared.rung->name)
    return "it has another rung's name";
  return body(**communicator);
}

std::vector<RankEnd> run_threads(const GroupOptions& options, Prepared& prepared,
                                 const RankBody& body) {
  std::vector<RankEnd> ends(options.world_size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options.world_size; ++rank) {
    threads.emplace_back(
        [&, rank] { ends[rank].report = run_rank(options, prepared, rank, body); });
  }
  for (std::thread& thread : threads) thread.join();
  return ends;
}

struct Child {
  pid_t pid = -1;
  Fd report;
};

Child start_child(const GroupOptions& options, Prepared& prepared, int rank, const RankBody& body) {
  int ends[2];
  if (::pipe(ends) != 0) std::abort();
  Child child{::fork(), Fd(ends[0])};
  Fd write_end(ends[1]);
  if (child.pid != 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // CTest ends a test that hangs
  // Close the listeners of the other ranks. They would otherwise stay open here after their owner's
  // death.
  for (size_t other = 0; other < prepared.setup.listeners.size(); ++other) {
    if (static_cast<int>(other) != rank) prepared.setup.listeners[other].reset();
  }
  const std::string report = run_rank(options, prepared, rank, body);
  for (size_t at = 0; at < report.size();) {
    const ssize_t written = ::write(write_end.get(), report.data() + at, report.size() - at);
    if (written <= 0) break;
    at += static_cast<size_t>(written);
  }
  ::_exit(0);
}

RankEnd collect(Child& child) {
  RankEnd end;
  char buffer[4096];
  for (ssize_t got; (got = ::read(child.report.get(), buffer, sizeof(buffer))) > 0;) {
    end.report.append(buffer, static_cast<size_t>(got));
  }
  int status = 0;
  ::waitpid(child.pid, &status, 0);
  if (WIFSIGNALED(status)) end.signal = WTERMSIG(status);
  return end;
}

std::vector<RankEnd> run_processes(const GroupOptions& options, Prepared& prepared,
                                   const RankBody& body, const std::vector<int>& lost) {
  std::vector<Child> children;
  for (int rank = 0; rank < options.world_size; ++rank) {
    children.push_back(start_child(options, prepared, rank, body));
  }
  prepared.setup.listeners.clear();
  std::vector<RankEnd> ends(options.world_size);
  const auto is_lost = [&](int rank) {
    return std::find(lost.begin(), lost.end(), rank) != lost.end();
  };
  for (int rank = 0; rank < options.world_size; ++rank) {
    if (!is_lost(rank)) ends[rank] = collect(children[rank]);
  }
  for (const int rank : lost) {
    ::kill(children[rank].pid, SIGKILL);
    ends[rank] = collect(children[rank]);
  }
  return ends;
}

}  // namespace

std::string test_name(const std::string& transport) {
  std::string name;
  bool upper = true;
  for (const char c : transport) {
    if (c != '-') name += upper ? static_cast<char>(c - 'a' + 'A') : c;
    upper = c == '-';
  }
  return name;
}

std::string why_not(const std::string& transport) {
  if (transport.starts_with("nccl-shm")) {
    struct statvfs file_system {};
    const bool known = ::statvfs("/dev/shm", &file_system) == 0;
    const auto free = known ? static_cast<int64_t>(file_system.f_bavail * file_system.f_frsize) : 0;
    if (free < kNcclBytes)
      return cat("/dev/shm has ", free, " bytes free, 8 ranks of NCCL take ", kNcclBytes);
  }
  if (transport.substr(0, 3) != "cma") return "";
  char from = 1;
  char to = 0;
  const iovec local{&to, 1};
  const iovec remote{&from, 1};
  if (::process_vm_readv(::getpid(), &local, 1, &remote, 1, 0) == 1) return "";
  return cat("process_vm_readv is forbidden here: errno ", errno);
}

std::string rank_kind_name(RankKind kind) {
  return kind == RankKind::kThreads ? "Threads" : "Processes";
}

std::vector<RankEnd> run_ranks(const GroupOptions& options, const RankBody& body,
                               const std::vector<int>& lost) {
  Prepared prepared = prepare(options);
  return options.kind == RankKind::kThreads ? run_threads(options, prepared, body)
                                            : run_processes(options, prepared, body, lost);
}

std::string all_reports(const std::vector<RankEnd>& ends) {
  std::string text;
  for (size_t rank = 0; rank < ends.size(); ++rank) {
    if (ends[rank].signal != 0) text += cat("rank ", rank, ": signal ", ends[rank].signal, "\n");
    if (!ends[rank].report.empty()) text += cat("rank ", rank, ": ", ends[rank].report, "\n");
  }
  return text;
}

}  // namespace shoal
