#include "server/commands/needs_table.h"

#include "runtime/base/cat.h"
#include "runtime/transport/needs/nccl_budget.h"
#include "runtime/transport/rungs/rung.h"

namespace shoal {
namespace {

constexpr int kRankCounts[] = {2, 3, 4, 8, 16};
constexpr const char* kNcclVersions[] = {"2.12.12", "2.19.4", "2.20.5", "2.22.3", "2.23.4",
                                         "2.24.3",  "2.25.1", "2.27.7", "2.28.9", "2.30.7"};

std::string rung_rows(bool dev_shm) {
  std::string rows;
  for (const Rung& rung : rungs()) {
    rows += cat("| ", rung.name);
    for (const int ranks : kRankCounts) {
      const ShmNeed need = rung.need(ranks);
      rows += cat(" | ", dev_shm ? need.dev_shm_bytes() : need.memory_bytes());
    }
    rows += " |\n";
  }
  return rows;
}

std::string head(const char* first) {
  std::string text = cat("| ", first);
  for (const int ranks : kRankCounts) text += cat(" | ", ranks, " ranks");
  return text + " |\n|---|--:|--:|--:|--:|--:|\n";
}

/// One channel over files in /dev/shm: no P2P, no cuMem host memory, and the ring only, apart from
/// what NCCL's init connects in any case.
NcclSettings lean_shm(const NcclVersion& version, int ranks) {
  NcclSettings settings;
  settings.version = version;
  settings.ranks = ranks;
  settings.max_ctas = 1;
  settings.tree = false;
  settings.cumem_host = false;
  settings.nvls = false;
  return settings;
}

std::string nccl_rows(bool sockets) {
  std::string rows;
  for (const char* name : kNcclVersions) {
    const Result<NcclVersion> version = parse_nccl_version(name);
    rows += cat("| ", name);
    for (const int ranks : kRankCounts) {
      NcclSettings settings = lean_shm(*version, ranks);
      settings.shm_disabled = sockets;
      const Result<NcclNeed> need = nccl_need(settings);
      rows += need.ok() ? cat(" | ", need->need.dev_shm_bytes()) : " | -";
    }
    rows += " |\n";
  }
  return rows;
}

}  // namespace

std::string needs_table() {
  return cat(
      "Bytes in /dev/shm:\n\n", head("rung"), rung_rows(true),
      "\nBytes of memory, those in /dev/shm among them:\n\n", head("rung"), rung_rows(false),
      "\nNCCL over files in /dev/shm, one channel, ring, before 2.22 the tree too (no P2P, no cuMem host "
      "memory, no NVLS):\n\n",
      head("NCCL"), nccl_rows(false), "\nNCCL over sockets (the proxy-ops pool of each rank):\n\n",
      head("NCCL"), nccl_rows(true));
}

}  // namespace shoal
