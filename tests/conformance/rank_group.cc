#include "tests/conformance/rank_group.h"

#include <algorithm>
#include <cstdlib>
#include <signal.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "runtime/base/cat.h"
#include "runtime/comm/shm_communicator.h"
#include "runtime/comm/tcp_communicator.h"
#include "runtime/memory/shm_segment.h"

namespace shoal {
namespace {

constexpr uint64_t kGroupKey = 0x5eed;
constexpr unsigned kChildSeconds = 90;

/// What the front prepares: a segment, or a listener per rank.
struct Prepared {
  ShmSegment segment;
  TcpListeners tcp;
};

Prepared prepare(const GroupOptions& options) {
  Prepared prepared;
  if (options.transport == Transport::kTcp) {
    auto listeners = make_tcp_listeners(options.world_size);
    if (!listeners.ok()) std::abort();
    prepared.tcp = std::move(*listeners);
  } else {
    const size_t slot = options.transport == Transport::kShm ? kShmSlotBytes : kMinShmSlotBytes;
    auto segment = ShmSegment::create(shm_communicator_bytes(options.world_size, slot));
    if (!segment.ok()) std::abort();
    prepared.segment = std::move(*segment);
  }
  return prepared;
}

std::string run_rank(const GroupOptions& options, Prepared& prepared, int rank, const RankBody& body) {
  const World world{rank, options.world_size};
  auto communicator =
      options.transport == Transport::kTcp
          ? open_tcp_communicator(world, std::move(prepared.tcp.listeners[rank]), prepared.tcp.ports,
                                  options.timeout_ms, kGroupKey)
          : open_shm_communicator(world, prepared.segment.fd(), prepared.segment.size(), options.timeout_ms);
  if (!communicator.ok()) return communicator.status().to_string();
  return body(**communicator);
}

std::vector<RankEnd> run_threads(const GroupOptions& options, Prepared& prepared, const RankBody& body) {
  std::vector<RankEnd> ends(options.world_size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options.world_size; ++rank) {
    threads.emplace_back([&, rank] { ends[rank].report = run_rank(options, prepared, rank, body); });
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
  ::alarm(kChildSeconds);
  // The other ranks' listeners would otherwise stay open here after their owner's death.
  for (size_t other = 0; other < prepared.tcp.listeners.size(); ++other) {
    if (static_cast<int>(other) != rank) prepared.tcp.listeners[other].reset();
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

std::vector<RankEnd> run_processes(const GroupOptions& options, Prepared& prepared, const RankBody& body,
                                   const std::vector<int>& lost) {
  std::vector<Child> children;
  for (int rank = 0; rank < options.world_size; ++rank) {
    children.push_back(start_child(options, prepared, rank, body));
  }
  prepared.tcp.listeners.clear();
  std::vector<RankEnd> ends(options.world_size);
  const auto is_lost = [&](int rank) { return std::find(lost.begin(), lost.end(), rank) != lost.end(); };
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

std::string transport_name(Transport transport) {
  switch (transport) {
    case Transport::kShm:
      return "Shm";
    case Transport::kShmSmallSlots:
      return "ShmSmallSlots";
    case Transport::kTcp:
      return "Tcp";
  }
  return "none";
}

std::string rank_kind_name(RankKind kind) {
  return kind == RankKind::kThreads ? "Threads" : "Processes";
}

std::vector<RankEnd> run_ranks(const GroupOptions& options, const RankBody& body, const std::vector<int>& lost) {
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
