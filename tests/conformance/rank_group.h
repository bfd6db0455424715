#pragma once
#include <functional>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "tests/guard.h"

namespace shoal {

/// Every rung by its name, and cma also in the form that it has if no page can be shared.
inline constexpr const char* kCmaNoPage = "cma-no-page";
inline constexpr const char* kTransports[] = {"shm", "shm-lean", "memfd", "cma", kCmaNoPage, "tcp"};
/// Rungs between devices, over the stand-ins for a GPU's module and for NCCL (tests/fakes). They
/// run in processes only. NCCL's other rungs use the same communicator in another environment.
inline constexpr const char* kDeviceTransports[] = {"cuda-ipc", "nccl-shm", "host-memfd"};
enum class RankKind { kThreads, kProcesses };

/// The transport as a part of a test's name, which must be an identifier: for example "CmaNoPage".
std::string test_name(const std::string& transport);
std::string rank_kind_name(RankKind kind);

/// The reason why the transport cannot be tried here; empty if it can.
std::string why_not(const std::string& transport);

struct GroupOptions {
  std::string transport = "shm";
  RankKind kind = RankKind::kProcesses;
  int world_size = 2;
  int timeout_ms = kGuardMs;          ///< for each collective
  Interrupted interrupted = nullptr;  ///< given to every rank
};

/// How one rank ended.
struct RankEnd {
  int signal = 0;      ///< the signal that killed its process, or 0
  std::string report;  ///< what the body returned, or why the communicator did not open
};

/// The code that a rank runs. It returns a report, which by convention is empty if all is well.
using RankBody = std::function<std::string(Communicator&)>;

/// Runs the body in every rank at the same time, and returns how each rank ended, by rank. If a
/// process is still alive (because it is stopped, for example) when all ranks outside `lost` have
/// ended, it is killed. Call this while no other thread is alive, because it forks. Groups are made
/// through the rung table, as in the product.
std::vector<RankEnd> run_ranks(const GroupOptions& options, const RankBody& body,
                               const std::vector<int>& lost = {});

/// The reports of all ranks, one per line with the rank. Empty if every report is empty and no
/// process was killed by a signal.
std::string all_reports(const std::vector<RankEnd>& ends);

}  // namespace shoal
