#include "runtime/transport/facts/cgroup_facts.h"

#include <algorithm>
#include <string_view>

#include "runtime/transport/facts/mount_table.h"

namespace shoal {
namespace {

/// A limit of this size or more means "no limit", because version 1 writes the largest multiple of
/// a page that an int64 holds.
constexpr int64_t kNoLimit = int64_t{1} << 60;

int64_t limit_of(std::optional<int64_t> number) {
  return !number || *number < 0 || *number >= kNoLimit ? -1 : *number;
}

int64_t amount_of(std::optional<int64_t> number) {
  return std::clamp<int64_t>(number.value_or(0), 0, kNoLimit);
}

/// Counts the inactive page cache and half of the active one as reclaimable, because the kernel's
/// own MemAvailable expects that half to be given up before memory is short. Pages of a tmpfs are
/// on the anonymous lists, and so in neither number.
CgroupLevel level_v2(const std::string& directory) {
  CgroupLevel level;
  level.limit_bytes = limit_of(number_in(directory + "/memory.max"));
  level.usage_bytes = amount_of(number_in(directory + "/memory.current"));
  const std::string stat = text_of(directory + "/memory.stat");
  level.reclaimable_bytes = amount_of(number_after(stat, "inactive_file")) +
                            amount_of(number_after(stat, "active_file")) / 2;
  level.oom_group = number_in(directory + "/memory.oom.group") == 1;
  level.high_bytes = limit_of(number_in(directory + "/memory.high"));
  return level;
}

/// hierarchical_memory_limit includes the limits of groups above the mounted one, whose files
/// cannot be seen here.
CgroupLevel level_v1(const std::string& directory) {
  CgroupLevel level;
  const std::string stat = text_of(directory + "/memory.stat");
  const int64_t own = limit_of(number_in(directory + "/memory.limit_in_bytes"));
  const int64_t above = limit_of(number_after(stat, "hierarchical_memory_limit"));
  level.limit_bytes = own < 0 || (above >= 0 && above < own) ? above : own;
  level.usage_bytes = amount_of(number_in(directory + "/memory.usage_in_bytes"));
  level.reclaimable_bytes = amount_of(number_after(stat, "total_inactive_file"));
  return level;
}

/// The path of the process's group below the mount point; "" is the mount point itself. In a cgroup
/// namespace, or if only the container's own group is mounted, the path in /proc/self/cgroup may
/// not exist here. Then what is mounted is the group.
std::string path_below_mount(const SystemPaths& paths, const Mount& mount, std::string_view path) {
  if (!is_below(path, mount.root) || path.find("/..") != std::string_view::npos) return "";
  std::string below(mount.root == "/" ? path : path.substr(mount.root.size()));
  while (below.ends_with('/')) below.pop_back();
  return path_exists(paths.root + mount.point + below) ? below : "";
}

/// A directory of this process's group, or of a group above it.
struct GroupDirectory {
  int version;         // 1 or 2
  const Mount* mount;  // of the hierarchy
  std::string path;    // without SystemPaths::root
};

/// All levels from the group up to the mount point, because the limit of each of them applies.
void add_levels(const SystemPaths& paths, const Mount& mount, std::string_view path, int version,
                std::vector<GroupDirectory>* levels) {
  std::string below = path_below_mount(paths, mount, path);
  for (;;) {
    levels->push_back({version, &mount, mount.point + below});
    if (below.empty()) return;
    below.resize(below.rfind('/'));
  }
}

bool is_hierarchy_of(const char* controller, const Mount& mount, int version) {
  return version == 1 ? mount.fs_type == "cgroup" && mount.has_super_option(controller)
                      : mount.fs_type == "cgroup2";
}

/// The groups of this process that may limit what the controller counts, the nearest group first.
/// The controller is not enabled in every one of them.
std::vector<GroupDirectory> groups_of(const SystemPaths& paths, const std::vector<Mount>& mounts,
                                      const char* controller) {
  const std::string memberships = text_of(paths.root + "/proc/self/cgroup");
  std::vector<GroupDirectory> groups;
  for (const std::string_view line :
       parts_of(memberships, '\n')) {  // "4:memory:/path"; "0::/path" is version 2
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) continue;
    const std::vector<std::string_view> controllers =
        parts_of(line.substr(first + 1, second - first - 1), ',');
    const bool own =
        std::find(controllers.begin(), controllers.end(), controller) != controllers.end();
    if (!own && !controllers.empty()) continue;
    const int version = own ? 1 : 2;
    for (const Mount& mount : mounts) {
      if (is_hierarchy_of(controller, mount, version))
        add_levels(paths, mount, line.substr(second + 1), version, &groups);
    }
  }
  return groups;
}

}  // namespace

CgroupFacts cgroup_facts(const SystemPaths& paths) {
  const std::vector<Mount> mounts = parse_mountinfo(text_of(paths.root + "/proc/self/mountinfo"));
  CgroupFacts facts;
  const Mount* mount = nullptr;  // the first that has a level: others show the same groups again
  for (const GroupDirectory& group : groups_of(paths, mounts, "memory")) {
    if (mount != nullptr && mount != group.mount) break;
    const std::string directory = paths.root + group.path;
    // The root group of version 2 has no such file, and a group may not have the controller.
    if (!path_exists(directory +
                     (group.version == 1 ? "/memory.usage_in_bytes" : "/memory.current"))) {
      continue;
    }
    CgroupLevel level = group.version == 1 ? level_v1(directory) : level_v2(directory);
    level.path = group.path;
    level.reclaimable_bytes = std::min(level.reclaimable_bytes, level.usage_bytes);
    facts.levels.push_back(std::move(level));
    facts.version = group.version;
    mount = group.mount;
  }
  return facts;
}

PidsFacts pids_facts(const SystemPaths& paths) {
  const std::vector<Mount> mounts = parse_mountinfo(text_of(paths.root + "/proc/self/mountinfo"));
  PidsFacts facts;
  const std::string status = text_of(paths.root + "/proc/self/status");
  facts.own_threads = std::max<int64_t>(number_after(status, "Threads:").value_or(1), 1);
  for (const GroupDirectory& group : groups_of(paths, mounts, "pids")) {
    const std::string directory = paths.root + group.path;
    const int64_t limit = limit_of(number_in(directory + "/pids.max"));
    const int64_t used = amount_of(number_in(directory + "/pids.current"));
    if (limit < 0 || (facts.limit >= 0 && facts.limit - facts.used <= limit - used)) continue;
    facts.path = group.path;
    facts.limit = limit;
    facts.used = used;
  }
  return facts;
}

void count_page_cache_in_full(const SystemPaths& paths, CgroupFacts* facts) {
  const std::string prefix = facts->version == 1 ? "total_" : "";
  for (CgroupLevel& level : facts->levels) {
    const std::string stat = text_of(paths.root + level.path + "/memory.stat");
    const int64_t cache = amount_of(number_after(stat, prefix + "inactive_file")) +
                          amount_of(number_after(stat, prefix + "active_file"));
    level.reclaimable_bytes = std::min(cache, level.usage_bytes);
  }
}

int64_t CgroupLevel::least_limit() const {
  if (limit_bytes < 0 || high_bytes < 0) return std::max(limit_bytes, high_bytes);
  return std::min(limit_bytes, high_bytes);
}

int64_t CgroupFacts::available_bytes() const {
  int64_t least = -1;
  for (const CgroupLevel& level : levels) {
    if (level.least_limit() < 0) continue;
    const int64_t left =
        std::max<int64_t>(level.least_limit() - level.usage_bytes + level.reclaimable_bytes, 0);
    least = least < 0 ? left : std::min(least, left);
  }
  return least;
}

}  // namespace shoal
