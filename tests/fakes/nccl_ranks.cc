#include "tests/fakes/nccl_ranks.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/cat.h"
#include "runtime/base/fd.h"
#include "runtime/comm/device/staged_communicator.h"
#include "runtime/device/module_loader.h"
#include "tests/moved_clock.h"

namespace shoal {
namespace {

constexpr int kMostRanks = 16;
constexpr const char* kTell = "FAKE_NCCL_TELL";

/// Memory that all processes of a group share.
struct Board {
  struct Rank {
    std::atomic<bool> brought;
    std::atomic<bool> reported;  // its report is written, or it has ended
    size_t bytes;
    char data[1000];
    int signal;
    Code code;
    Fault fault;
    char report[4000];
  };
  Rank ranks[kMostRanks];
  std::atomic<int> arrived;
  char skipped[200];
  int64_t left_files;
};

Board* make_board() {
  void* memory =
      ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  return static_cast<Board*>(memory);  // zeroed
}

template <size_t kSize>
void put(char (&to)[kSize], const std::string& text) {
  const size_t length = std::min(text.size(), kSize - 1);
  std::memcpy(to, text.data(), length);
  to[length] = '\0';
}

Exchange exchange_of(Board& board, int rank, int world_size) {
  return [&board, rank, world_size](std::string mine) -> Result<std::vector<std::string>> {
    Board::Rank& own = board.ranks[rank];
    if (mine.size() > sizeof own.data) std::abort();
    std::copy(mine.begin(), mine.end(), own.data);
    own.bytes = mine.size();
    own.brought.store(true, std::memory_order_release);
    std::vector<std::string> all;
    const Deadline deadline = Deadline::after_ms(kGuardMs);
    for (int other = 0; other < world_size; ++other) {
      const Board::Rank& part = board.ranks[other];
      while (!part.brought.load(std::memory_order_acquire)) {
        if (deadline.passed())
          return Status::error(Code::kDeadlineExceeded, cat("rank ", other, " brings nothing"));
        ::usleep(200);  // no deadline: a poll
      }
      all.emplace_back(part.data, part.bytes);
    }
    return all;
  };
}

/// Whether time may pass in the ranks now.
bool may_pass(const NcclGroup& group, const Board& board) {
  switch (group.time_passes) {
    case TimePasses::kAlways:
      return true;
    case TimePasses::kOnceARankHasReported:
      return std::any_of(board.ranks, board.ranks + group.world_size,
                         [](const Board::Rank& rank) { return rank.reported.load(); });
    case TimePasses::kOnceRanksHang:
      return times_told("hangs") >= group.hanging;
  }
  return true;
}

/// What a rank asks in every long wait. If its clock stands still, a part of the timeout passes
/// with each question.
Waiting asked(const NcclGroup& group, const Board& board) {
  return [&group, &board](const std::string& where) -> Status {
    if (group.time_passes != TimePasses::kAlways && may_pass(group, board))
      MovedClock::advance(static_cast<double>(group.timeout_ms) / 4e3);
    return group.waits ? group.waits(where) : Status();
  };
}

Result<std::unique_ptr<Communicator>> open(const NcclGroup& group, Board& board, int rank) {
  const Waiting waits = asked(group, board);
  SHOAL_ASSIGN_OR_RETURN(const ShoalCudaModule* module, load_cuda_module(SHOAL_EMULATED_MODULE));
  SHOAL_ASSIGN_OR_RETURN(std::shared_ptr<Device> device,
                         Device::open(*module, rank / group.ranks_per_gpu));
  NcclOptions options;
  options.library = group.library_of.contains(rank) ? group.library_of.at(rank) : SHOAL_FAKE_NCCL;
  options.reproducible = group.reproducible;
  options.timeout_ms = group.timeout_ms;
  SHOAL_ASSIGN_OR_RETURN(auto collective,
                         open_nccl_collective(device, {rank, group.world_size}, options,
                                              exchange_of(board, rank, group.world_size), waits));
  return make_staged_communicator(device, std::move(collective), group.timeout_ms,
                                  [waits] { return waits("a collective"); });
}

/// Waits until every rank has reported or has ended. A failed rank does: if its process ended at
/// once, its sockets would too, and what another rank then reports would depend on how far it had
/// come.
void wait_for_all_reports(const Board& board, int world_size) {
  for (int rank = 0; rank < world_size; ++rank) {
    // no deadline: a poll
    while (!board.ranks[rank].reported.load()) ::usleep(500);
  }
}

void run_rank(const NcclGroup& group, Board& board, int rank, const NcclBody& body) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // CTest ends a test that hangs
  std::optional<MovedClock> clock;
  if (group.time_passes != TimePasses::kAlways) clock.emplace();
  if (group.channels > 0) {
    for (const char* name : {"NCCL_MIN_CTAS", "NCCL_MAX_CTAS"})
      ::setenv(name, cat(group.channels).c_str(), 1);
  }
  for (const auto& [name, value] : group.environment) ::setenv(name.c_str(), value.c_str(), 1);
  if (group.of_rank.contains(rank)) {
    for (const auto& [name, value] : group.of_rank.at(rank))
      ::setenv(name.c_str(), value.c_str(), 1);
  }
  int met = 0;
  const auto meet = [&] {
    board.arrived.fetch_add(1);
    ++met;
    // no deadline: a poll
    while (board.arrived.load() < met * group.world_size) ::usleep(500);
  };
  auto communicator = open(group, board, rank);
  if (!communicator.ok()) {
    board.ranks[rank].code = communicator.status().code();
    board.ranks[rank].fault = communicator.status().fault();
    put(board.ranks[rank].report, communicator.status().to_string());
    board.ranks[rank].reported = true;
    group.after_failure();
    wait_for_all_reports(board, group.world_size);
    return;
  }
  NcclRank self{**communicator, meet};
  const std::string report = body(self);
  put(board.ranks[rank].report, report);
  board.ranks[rank].reported = true;
  if (!report.empty()) wait_for_all_reports(board, group.world_size);
}

bool write_text(const char* path, const std::string& text) {
  const int fd = ::open(path, O_WRONLY | O_CLOEXEC);
  const bool wrote =
      fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (fd >= 0) ::close(fd);
  return wrote;
}

/// Mounts a /dev/shm that only this process and its children see, if necessary as root of a user
/// namespace.
bool own_dev_shm(int64_t bytes, bool read_only) {
  const uid_t user = ::getuid();
  const gid_t group = ::getgid();
  if (::unshare(CLONE_NEWNS) != 0) {
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0 ||
        !write_text("/proc/self/setgroups", "deny") ||
        !write_text("/proc/self/uid_map", cat("0 ", user, " 1")) ||
        !write_text("/proc/self/gid_map", cat("0 ", group, " 1")))
      return false;
  }
  return ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("tmpfs", "/dev/shm", "tmpfs", read_only ? MS_RDONLY : 0,
                 cat("size=", bytes).c_str()) == 0;
}

/// Starts the ranks and waits for them.
void run_group(const NcclGroup& group, Board& board, const NcclBody& body) {
  // If a mount is possible, files of killed ranks vanish with it.
  const bool own =
      own_dev_shm(group.shm_bytes > 0 ? group.shm_bytes : int64_t{1} << 30, group.shm_read_only);
  if (group.shm_bytes > 0 && !own) return put(board.skipped, "no mount namespace here");
  std::vector<pid_t> pids;
  for (int rank = 0; rank < group.world_size; ++rank) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      run_rank(group, board, rank, body);
      ::_exit(0);
    }
    pids.push_back(pid);
  }
  int status = 0;
  for (pid_t pid; (pid = ::waitpid(-1, &status, 0)) > 0;) {
    const auto rank = std::find(pids.begin(), pids.end(), pid) - pids.begin();
    if (rank == group.world_size) continue;  // a process that is no rank
    board.ranks[rank].signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
      put(board.ranks[rank].report, cat("exited with ", WEXITSTATUS(status)));
    board.ranks[rank].reported = true;
  }
  if (group.shm_bytes == 0) return;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
    ++board.left_files;
}

}  // namespace

int times_told(const std::string& what) {
  std::ifstream file(std::getenv(kTell));
  int times = 0;
  for (std::string line; std::getline(file, line);) times += line == what ? 1 : 0;
  return times;
}

NcclEnds run_nccl_ranks(const NcclGroup& group, const NcclBody& body) {
  Board* const board = make_board();
  char told[] = "/tmp/shoal-told-XXXXXX";
  if (const Fd file(::mkstemp(told)); !file.valid()) std::abort();
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::setenv(kTell, told, 1);
    run_group(group, *board, body);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  ::unlink(told);
  NcclEnds ends;
  ends.skipped =
      status == 0 ? board->skipped : cat("the group's process ended with status ", status);
  ends.left_files = board->left_files;
  for (int rank = 0; rank < group.world_size; ++rank) {
    const Board::Rank& end = board->ranks[rank];
    ends.ranks.push_back({end.signal, end.code, end.fault, end.report});
  }
  ::munmap(board, sizeof(Board));
  return ends;
}

std::string all_reports(const NcclEnds& ends) {
  std::string text = ends.skipped.empty() ? "" : ends.skipped + "\n";
  for (size_t rank = 0; rank < ends.ranks.size(); ++rank) {
    const NcclEnd& end = ends.ranks[rank];
    if (end.signal != 0) text += cat("rank ", rank, " was killed by signal ", end.signal, "\n");
    if (!end.report.empty()) text += cat("rank ", rank, ": ", end.report, "\n");
  }
  return text;
}

int64_t dev_shm_used() {
  struct statvfs file_system {};
  if (::statvfs("/dev/shm", &file_system) != 0) return -1;
  return static_cast<int64_t>((file_system.f_blocks - file_system.f_bfree) * file_system.f_frsize);
}

}  // namespace shoal
