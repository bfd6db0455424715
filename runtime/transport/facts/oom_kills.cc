#include "runtime/transport/facts/oom_kills.h"

#include "runtime/transport/facts/cgroup_facts.h"
#include "runtime/transport/facts/host_facts.h"

namespace shoal {

bool OomKills::may_have_grown_since(const OomKills& before) const {
  const auto both = [](const auto& now, const auto& then) { return now && then; };
  const bool group_known = both(of_group, before.of_group),
             machine_known = both(of_machine, before.of_machine);
  if (!group_known && !machine_known) return true;
  return (group_known && *of_group > *before.of_group) ||
         (machine_known && *of_machine > *before.of_machine);
}

std::optional<int64_t> oom_kills_of_group(const std::string& folder) {
  const std::optional<int64_t> v2 = number_after(text_of(folder + "/memory.events"), "oom_kill");
  return v2 ? v2 : number_after(text_of(folder + "/memory.oom_control"), "oom_kill");
}

OomKills oom_kills(const SystemPaths& paths) {
  OomKills kills;
  const CgroupFacts groups = cgroup_facts(paths);
  if (!groups.levels.empty())
    kills.of_group = oom_kills_of_group(paths.root + groups.levels.front().path);
  kills.of_machine = number_after(text_of(paths.root + "/proc/vmstat"), "oom_kill");
  return kills;
}

}  // namespace shoal
