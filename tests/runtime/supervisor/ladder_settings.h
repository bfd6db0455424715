#pragma once
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/page_size.h"
#include "runtime/supervisor/ladder.h"
#include "tests/guard.h"

namespace shoal {

inline WorkerGroupOptions transport_only(int world_size) {
  WorkerGroupOptions options;
  options.world_size = world_size;
  options.startup_timeout_s = kGuardSeconds;
  options.start.transport_only = true;
  options.start.collective_timeout_ms = kGuardMs;
  return options;
}

/// Facts of a machine on which everything works, with the pages of this one.
inline HostFacts good_facts() {
  HostFacts facts;
  facts.page_bytes = static_cast<int64_t>(page_size());
  facts.dev_shm.exists = true;
  facts.dev_shm.fs_type = "tmpfs";
  facts.dev_shm.size_bytes = facts.dev_shm.free_bytes = int64_t{1} << 30;
  facts.dev_shm.total_inodes = facts.dev_shm.free_inodes = 1000;
  facts.loopback_ipv4 = true;
  return facts;
}

inline HostFacts facts_with_free(int64_t bytes) {
  HostFacts facts = good_facts();
  facts.dev_shm.size_bytes = facts.dev_shm.free_bytes = bytes;
  return facts;
}

/// Facts with two devices, as a front finds them.
inline HostFacts facts_with_gpus() {
  HostFacts facts = good_facts();
  facts.gpu.asked = true;
  facts.gpu.ranks = 2;
  facts.gpu.cuda_runtime = facts.gpu.cuda_driver = 13000;
  facts.gpu.devices.resize(2);
  return facts;
}

inline LadderOptions in_order(std::vector<std::string> order) {
  LadderOptions options;
  options.order = std::move(order);
  return options;
}

/// Appends " shm>memfd" for a refusal of shm before memfd was tried, and " shm=memfd" if nothing is
/// lost.
inline std::function<void(const Refusal&, const std::string&, bool)> append_to(std::string* told) {
  return [told](const Refusal& refusal, const std::string& next, bool as_good) {
    *told += cat(" ", refusal.rung, as_good ? "=" : ">", next);
  };
}

inline std::vector<std::string> every_rung() {
  std::vector<std::string> names;
  for (const Rung& rung : rungs()) names.emplace_back(rung.name);
  return names;
}

}  // namespace shoal
