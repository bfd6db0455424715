#pragma once
#include <functional>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"

namespace shoal {

/// Every rung by its name, and cma as it is where no page can be shared.
inline constexpr const char* kCmaNoPage = "cma-no-page";
inline constexpr const char* kTransports[] = {"shm", "shm-lean", "memfd", "cma", kCmaNoPage, "tcp"};
/// Rungs between devices, over the stand-ins for a GPU's module and NCCL (tests/fakes); in
/// processes only. NCCL's other rungs are the same communicator in another environment.
inline constexpr const char* kDeviceTransports[] = {"cuda-ipc", "nccl-shm", "host-memfd"};
enum class RankKind { kThreads, kProcesses };

/// "CmaNoPage" and the like, as test names must be.
std::string test_name(const std::string& transport);
std::string rank_kind_name(RankKind kind);

/// Why the transport cannot be tried here; empty: it can.
std::string why_not(const std::string& transport);

struct GroupOptions {
  std::string transport = "shm";
  RankKind kind = RankKind::kProcesses;
  int world_size = 2;
  int timeout_ms = 20'000;  ///< of a collective; generous, because the machine may be busy
  Interrupted interrupted = nullptr;  ///< of every rank
};

/// How a rank ended.
struct RankEnd {
  int signal = 0;      ///< that ended its process, or 0
  std::string report;  ///< what the body returned, or why the communicator did not open
};

/// What a rank does; the result is its report, by custom empty when all is well.
using RankBody = std::function<std::string(Communicator&)>;

/// Runs the body as every rank at the same time and returns their ends by rank. A process still
/// alive (stopped, say) when all ranks outside `lost` have ended is killed. Call it with no other
/// thread alive: it forks. A process that runs for a minute and a half is ended by SIGALRM, so that
/// no fault hangs the test. Groups are made through the rung table, as the product makes them.
std::vector<RankEnd> run_ranks(const GroupOptions& options, const RankBody& body,
                               const std::vector<int>& lost = {});

/// The reports of all ranks, one a line with the rank; empty when each is empty and no process
/// died.
std::string all_reports(const std::vector<RankEnd>& ends);

}  // namespace shoal
