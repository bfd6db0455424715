#include "server/commands/needs_table.h"

#include <optional>

#include "runtime/base/cat.h"
#include "runtime/base/quantity.h"
#include "runtime/transport/needs/nccl_budget.h"
#include "runtime/transport/needs/nccl_releases.h"
#include "runtime/transport/rungs/rung.h"

namespace shoal {
namespace {

/// The layout of needs_json().
constexpr int kNeedsSchema = 1;
constexpr int kRankCounts[] = {2, 3, 4, 8, 16};
constexpr const char* kNcclVersions[] = {"2.12.12", "2.19.4", "2.20.5", "2.22.3",
                                         "2.23.4",  "2.24.3", "2.25.1", "2.27.7",
                                         "2.28.9",  "2.30.7", "2.31.2", "2.32.3"};

/// A machine of which nothing is known but its pages.
HostFacts machine(int64_t page_bytes) {
  HostFacts facts;
  facts.page_bytes = page_bytes;
  return facts;
}

/// A row of what `bytes` gives for each number of ranks, and below it one of the same rounded, if
/// there is any. Both in one cell would make the table wider than a terminal.
template <typename Bytes>
std::string rows_of(const char* name, const Bytes& bytes) {
  std::string exact = cat("| ", name), rounded = "|";
  bool any = false;
  for (const int ranks : kRankCounts) {
    const std::optional<int64_t> value = bytes(ranks);
    const std::string short_text = rounded_bytes_text(value.value_or(0));
    exact += value ? cat(" | ", *value) : " | -";
    rounded += cat(" | ", short_text);
    any |= !short_text.empty();
  }
  return cat(exact, " |\n", any ? rounded + " |\n" : "");
}

std::string rung_rows(bool dev_shm, int64_t page_bytes) {
  std::string rows;
  for (const Rung& rung : rungs()) {
    rows += rows_of(rung.name, [&](int ranks) {
      const ShmNeed need = rung.need({ranks, machine(page_bytes)});
      return std::optional(dev_shm ? need.dev_shm_bytes() : need.memory_bytes());
    });
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
NcclSettings lean_shm(const NcclVersion& version, int ranks, int64_t page_bytes) {
  NcclSettings settings;
  settings.version = version;
  settings.ranks = ranks;
  settings.max_ctas = 1;
  settings.tree = false;
  settings.cumem_host = false;
  settings.nvls = false;
  settings.page_bytes = page_bytes;
  return settings;
}

/// What `bytes` gives for each number of ranks; nullopt becomes null.
template <typename Bytes>
Json by_ranks(const Bytes& bytes) {
  Json object = Json::object();
  for (const int ranks : kRankCounts) {
    const std::optional<int64_t> value = bytes(ranks);
    object[cat(ranks)] = value ? Json(*value) : Json(nullptr);
  }
  return object;
}

std::optional<int64_t> nccl_bytes(const NcclVersion& version, int ranks, bool sockets,
                                  int64_t page_bytes) {
  NcclSettings settings = lean_shm(version, ranks, page_bytes);
  settings.shm_disabled = sockets;
  const Result<NcclNeed> need = nccl_need(settings);
  if (!need.ok()) return std::nullopt;
  return need->need.dev_shm_bytes();
}

std::string nccl_rows(bool sockets, int64_t page_bytes) {
  std::string rows;
  for (const char* name : kNcclVersions) {
    const Result<NcclVersion> version = parse_nccl_version(name);
    rows +=
        rows_of(name, [&](int ranks) { return nccl_bytes(*version, ranks, sockets, page_bytes); });
  }
  return rows;
}

/// The releases whose sizes are known, which scripts/check-nccl compares with NCCL's libraries.
Json nccl_releases_json() {
  Json rows = Json::array();
  for (const NcclRelease& release : nccl_releases()) {
    const int64_t pool = nccl_pool_bytes(release);
    rows.push_back({{"minor", release.minor},
                    {"last_patch", release.last_patch},
                    {"pool_bytes", pool},
                    {"pool_file_bytes", pool + nccl_count_bytes(release)}});
  }
  return rows;
}

}  // namespace

Json needs_json(int64_t page_bytes) {
  Json all = Json::array(), nccl = Json::array();
  for (const Rung& rung : rungs()) {
    const auto need = [&](int ranks) { return rung.need({ranks, machine(page_bytes)}); };
    const auto dev_shm = [&](int ranks) { return std::optional(need(ranks).dev_shm_bytes()); };
    const auto memory = [&](int ranks) { return std::optional(need(ranks).memory_bytes()); };
    all.push_back({{"rung", rung.name},
                   {"cost", {{"8_kib", rung.cost.small}, {"1_mib", rung.cost.large}}},
                   {"dev_shm_bytes", by_ranks(dev_shm)},
                   {"memory_bytes", by_ranks(memory)}});
  }
  for (const char* name : kNcclVersions) {
    const Result<NcclVersion> version = parse_nccl_version(name);
    const auto shm = [&](int ranks) { return nccl_bytes(*version, ranks, false, page_bytes); };
    const auto socket = [&](int ranks) { return nccl_bytes(*version, ranks, true, page_bytes); };
    nccl.push_back(
        {{"version", name}, {"shm_bytes", by_ranks(shm)}, {"socket_bytes", by_ranks(socket)}});
  }
  return {{"schema", kNeedsSchema},
          {"page_bytes", page_bytes},
          {"rungs", std::move(all)},
          {"nccl", std::move(nccl)},
          {"nccl_releases", nccl_releases_json()}};
}

std::string needs_table(int64_t page_bytes) {
  return cat(
      "Bytes in /dev/shm, in pages of ", page_bytes, " B:\n\n", head("rung"),
      rung_rows(true, page_bytes), "\nBytes of memory, those in /dev/shm among them:\n\n",
      head("rung"), rung_rows(false, page_bytes),
      "\nNCCL over files in /dev/shm, one channel, ring, before 2.22 the tree too (no P2P, no cuMem host"
      "\nmemory, no NVLS):\n\n",
      head("NCCL"), nccl_rows(false, page_bytes),
      "\nNCCL over sockets (the proxy-ops pool of each rank):\n\n", head("NCCL"),
      nccl_rows(true, page_bytes));
}

}  // namespace shoal
