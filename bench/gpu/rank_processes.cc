#include "bench/gpu/rank_processes.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/cat.h"
#include "runtime/base/deadline.h"
#include "runtime/base/fd.h"
#include "runtime/device/cuda_module.h"

namespace shoal::gpu {
namespace {

constexpr size_t kMostBytes = 4000;

/// Replaces the front in exchanges: shared memory in which each rank leaves its part.
struct Board {
  struct Part {
    std::atomic<bool> there;
    size_t bytes;
    char data[kMostBytes];
  };
  Part parts[kMostExchanges][kShoalMostRanks];
};

Board* make_board() {
  void* memory =
      ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  return static_cast<Board*>(memory);  // zeroed
}

Exchange exchange_over(Board* board, World world) {
  return [board, world, round = 0](std::string mine) mutable -> Result<std::vector<std::string>> {
    if (round >= kMostExchanges || mine.size() > kMostBytes) {
      return Status::error(Code::kInternal, cat("exchange ", round, " of ", mine.size(), " bytes"));
    }
    Board::Part* parts = board->parts[round++];
    std::copy(mine.begin(), mine.end(), parts[world.rank].data);
    parts[world.rank].bytes = mine.size();
    parts[world.rank].there.store(true, std::memory_order_release);
    std::vector<std::string> all;
    const Deadline deadline = Deadline::after_ms(20'000);
    for (int rank = 0; rank < world.size; ++rank) {
      while (!parts[rank].there.load(std::memory_order_acquire)) {
        if (deadline.passed())
          return Status::error(Code::kDeadlineExceeded, cat("rank ", rank, " brings nothing"));
        ::usleep(200);
      }
      all.emplace_back(parts[rank].data, parts[rank].bytes);
    }
    return all;
  };
}

struct Child {
  pid_t pid = -1;
  Fd report;
};

Child start(int seconds, const std::function<std::string()>& body) {
  int ends[2];
  if (::pipe(ends) != 0) std::abort();
  const Fd write_end(ends[1]);
  Child child{::fork(), Fd(ends[0])};
  if (child.pid < 0) std::abort();
  if (child.pid > 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::alarm(static_cast<unsigned>(seconds));
  const std::string report = body();
  for (size_t at = 0; at < report.size();) {
    const ssize_t written = ::write(write_end.get(), report.data() + at, report.size() - at);
    if (written <= 0) break;
    at += static_cast<size_t>(written);
  }
  ::_exit(0);
}

std::string collect(const Child& child) {
  std::string report;
  char buffer[4096];
  for (ssize_t got; (got = ::read(child.report.get(), buffer, sizeof buffer)) > 0;) {
    report.append(buffer, static_cast<size_t>(got));
  }
  int status = 0;
  ::waitpid(child.pid, &status, 0);
  if (!WIFSIGNALED(status)) return report;
  return report + (WTERMSIG(status) == SIGALRM ? "not done in its time"
                                               : cat("ended by signal ", WTERMSIG(status)));
}

}  // namespace

std::vector<std::string> run_ranks(int world_size, int seconds, const RankBody& body) {
  const std::unique_ptr<Board, void (*)(Board*)> board(
      make_board(), [](Board* b) { ::munmap(b, sizeof(Board)); });
  std::vector<Child> children;
  for (int rank = 0; rank < world_size; ++rank) {
    const World world{rank, world_size};
    children.push_back(start(seconds, [&] {
      return body({world, exchange_over(board.get(), world)});
    }));
  }
  std::vector<std::string> reports;
  for (const Child& child : children) reports.push_back(collect(child));
  return reports;
}

std::string run_apart(int seconds, const std::function<std::string()>& body) {
  return collect(start(seconds, body));
}

std::string all_reports(const std::vector<std::string>& reports) {
  std::string text;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    if (!reports[rank].empty()) text += cat("rank ", rank, ": ", reports[rank], "\n");
  }
  return text;
}

}  // namespace shoal::gpu
