#include "runtime/transport/remedy_dev_shm.h"

#include <algorithm>
#include <cerrno>
#include <sstream>
#include <utility>

#include "runtime/base/counted.h"
#include "runtime/base/quantity.h"
#include "runtime/transport/remedy_place.h"

namespace shoal {
namespace {

bool has_option(const std::string& options, const std::string& wanted) {
  std::istringstream text(options);
  for (std::string option; std::getline(text, option, ',');)
    if (option == wanted) return true;
  return false;
}

/// The files that killed runs left.
struct Stale {
  int64_t files = 0;
  int64_t bytes = 0;
};

Stale stale_files(const HostFacts& facts) {
  Stale stale;
  for (const LeftFile& file : facts.left_files) {
    if (file.state != LeftFileState::kStale) continue;
    ++stale.files;
    stale.bytes += file.bytes;
  }
  return stale;
}

/// The same for a new container, in which nobody makes the files of killed runs again, so that
/// their bytes are left out. All others are counted, because what made them may do so there too.
/// Its /dev/shm is never smaller than this one, because others in the container may need that much.
/// What is no tmpfs has the size of a disk.
ShmTrouble in_new_container(const HostFacts& facts, ShmTrouble trouble) {
  const int64_t gone = std::min(stale_files(facts).bytes, trouble.used_bytes);
  const int64_t now = trouble.no_tmpfs ? 0 : facts.dev_shm.size_bytes;
  trouble.used_bytes -= gone;
  trouble.total_bytes = in_pages(facts, trouble.total_bytes - gone);
  // A file system that refuses what it shows as free has less room than anybody can say.
  const bool unknown =
      facts.dev_shm.probe_errno == ENOSPC && trouble.bytes <= facts.dev_shm.free_bytes;
  trouble.small = trouble.small && (unknown || trouble.total_bytes > now);
  trouble.total_bytes = std::max(trouble.total_bytes, now);
  return trouble;
}

/// What is wrong, with the number of ranks that a size in the same title is for.
std::string why(const ShmTrouble& trouble, const std::string& path) {
  const std::string& ranks = trouble.ranks;
  const std::string they_need_it = cat(", and is needed for ", ranks);
  if (trouble.occupied) return cat(path, " is no directory", they_need_it);
  if (trouble.missing) return cat(path, " is missing", they_need_it);
  if (trouble.no_tmpfs) return cat(path, " is no tmpfs", they_need_it);
  if (trouble.read_only) return cat(path, " is read-only", they_need_it);
  if (trouble.forbidden) return cat(path, " may not be written", they_need_it);
  if (!trouble.small) return cat(path, " has too few inodes for ", ranks);
  return cat(
      path, " is too small for ", ranks,
      trouble.used_bytes == 0 ? "" : cat(" and the ", bytes_text(trouble.used_bytes), " in it"));
}

/// The same for somebody whose ranks do as well without /dev/shm.
std::string wish(const ShmTrouble& trouble, const std::string& path) {
  if (trouble.occupied || trouble.missing || trouble.no_tmpfs)
    return cat(path, " would have to be a tmpfs");
  if (trouble.read_only || trouble.forbidden) return cat(path, " would have to be writable");
  if (!trouble.small) return cat(path, " would have to have more inodes");
  return cat(
      trouble.used_bytes == 0 ? "" : cat("with the ", bytes_text(trouble.used_bytes), " in it, "),
      path, " would have to be larger");
}

/// A remedy whose titles say what is wrong and then what to do.
Remedy to_do(const char* kind, const ShmTrouble& trouble, const std::string& path,
             const std::string& what, std::string text, bool sizes_dev_shm) {
  return {kind, cat(why(trouble, path), ": ", what), std::move(text), sizes_dev_shm,
          cat(wish(trouble, path), ": ", what)};
}

/// "1314816 B (1.3 MiB), or 2m", and "at least " before it if that is all that is known.
std::string size_text(const ShmTrouble& trouble) {
  return cat(trouble.at_least ? words(Bound::kAtLeast) : "", exact_or_round(trouble.total_bytes));
}

/// What the file system must hold, for a title.
std::string room(const ShmTrouble& trouble) {
  const std::string inodes = counted(trouble.total_inodes, "inode");
  if (!trouble.few_inodes) return size_text(trouble);
  return trouble.small ? cat(size_text(trouble), ", and ", inodes) : inodes;
}

/// Whether the size of a new mount is part of what is wrong.
bool size_matters(const ShmTrouble& trouble) {
  return trouble.missing || trouble.no_tmpfs || trouble.small || trouble.few_inodes;
}

/// The titles where nothing is wrong in a new container or pod, because only the files of killed
/// runs take the room.
void say_new_is_enough(const ShmTrouble& trouble, const std::string& path, const char* what,
                       Remedy* remedy) {
  if (trouble.mount_helps()) return;
  remedy->title =
      cat("a new ", what, " has an empty ", path, ", whose ", bytes_text(trouble.total_bytes),
          trouble.at_least ? " may be enough for " : " are enough for ", trouble.ranks);
  remedy->optional_title = remedy->title;
}

Remedy docker_shm(const HostFacts& facts, const ShmTrouble& trouble) {
  const std::string& path = facts.dev_shm.path;
  // --ipc=none leaves /dev/shm out, and a volume on it hides it.
  const bool hidden = trouble.missing || trouble.no_tmpfs || trouble.read_only || trouble.forbidden;
  const std::string own = hidden ? cat("a ", path, " of its own") : "";
  const std::string size = size_matters(trouble) ? room(trouble) : "";
  Remedy remedy =
      to_do("docker", trouble, path,
            cat("start the container with ", own, hidden && !size.empty() ? ", of " : "", size), "",
            true);
  say_new_is_enough(trouble, path, "container", &remedy);
  if (trouble.few_inodes) {
    // --shm-size does not set the number of inodes, but a separate tmpfs has an option for it.
    remedy.text = cat(docker_command(facts), " --tmpfs ", path,
                      ":rw,nosuid,nodev,noexec,mode=1777,size=", trouble.total_bytes,
                      ",nr_inodes=", trouble.total_inodes, " ...");
    return remedy;
  }
  remedy.text =
      cat(docker_command(facts), hidden ? " --ipc=private" : "", " ",
          shm_size_flag(trouble.total_bytes), " ...\n", "# in compose.yaml, under the service:\n",
          hidden ? "ipc: private\n" : "", "shm_size: \"", trouble.total_bytes, "b\"");
  if (hidden) remedy.text += cat("\n# and without a volume on ", path);
  return remedy;
}

Remedy kubernetes_shm(const HostFacts& facts, const ShmTrouble& trouble) {
  const std::string text =
      cat("spec:\n"
          "  containers:\n"
          "    - name: shoal\n"
          "      volumeMounts:\n"
          "        - name: dshm\n"
          "          mountPath: ",
          facts.dev_shm.path,
          "\n"
          "  volumes:\n"
          "    - name: dshm\n"
          "      emptyDir:\n"
          "        medium: Memory\n"
          "        ",
          size_limit_line(trouble.total_bytes, trouble.at_least));
  const std::string size = cat(" of ", trouble.at_least ? words(Bound::kAtLeast) : "",
                               exact_or_quantity(trouble.total_bytes));
  Remedy remedy =
      to_do("kubernetes", trouble, facts.dev_shm.path,
            cat("mount an emptyDir", size_matters(trouble) ? size : "", " there"), text, true);
  say_new_is_enough(trouble, facts.dev_shm.path, "pod", &remedy);
  return remedy;
}

/// "mount -o remount", which keeps the options that the mount has. mount(8) passes all of them back
/// to the kernel. In a user namespace the kernel refuses the uid= that it has listed itself,
/// because that is an id of the outside, so that there only the flags are repeated.
std::string remount_command(const std::string& mount_options) {
  bool owned = false;
  std::string flags;
  std::istringstream text(mount_options);
  for (std::string option; std::getline(text, option, ',');) {
    owned = owned || option.starts_with("uid=") || option.starts_with("gid=");
    if (option == "nosuid" || option == "nodev" || option == "noexec") flags += cat(",", option);
  }
  return owned ? cat("mount --options-mode ignore -o remount", flags) : "mount -o remount";
}

void add_mount(const HostFacts& facts, const ShmTrouble& trouble, std::vector<Remedy>& list) {
  const std::string& path = facts.dev_shm.path;
  if (trouble.missing || trouble.no_tmpfs) {
    list.push_back(
        to_do("mount", trouble, path, cat("mount a tmpfs of ", size_text(trouble), " there"),
              cat(trouble.occupied ? cat("rm ", path, " && ") : "", "mkdir -p ", path,
                  " && mount -t tmpfs -o size=", trouble.total_bytes, ",mode=1777 tmpfs ", path),
              true));
    return;
  }
  std::string options;
  if (trouble.read_only) options += ",rw";
  if (trouble.small) options += cat(",size=", trouble.total_bytes);
  if (trouble.few_inodes) options += cat(",nr_inodes=", trouble.total_inodes);
  if (!options.empty()) {
    ShmTrouble of_room = trouble;
    of_room.forbidden = false;  // which a remount leaves as it is
    const bool sized = trouble.small || trouble.few_inodes;
    list.push_back(to_do(
        "mount", of_room, path, cat("remount it", sized ? cat(" with ", room(trouble)) : ""),
        cat(remount_command(facts.dev_shm.mount_options), options, " ", path), trouble.small));
  }
  if (trouble.forbidden) {
    list.push_back(
        to_do("mount", trouble, path, "open it to all users", cat("chmod 1777 ", path), false));
  }
}

/// Bytes and inodes of the largest of the needs; 0: none of them is about /dev/shm.
ShmTrouble largest_need(const std::string& ranks, const std::vector<Shortage>& refused) {
  ShmTrouble trouble;
  trouble.ranks = ranks;
  for (const Shortage& shortage : refused) {
    if (shortage.need.dev_shm_bytes() == 0) continue;
    // No file system holds this much, and the sum of two such numbers may overflow, so that no size
    // of a mount helps.
    if (shortage.headroom_bytes > kMostShmBytes - shortage.need.dev_shm_bytes()) continue;
    trouble.bytes =
        std::max(trouble.bytes, shortage.need.dev_shm_bytes() + shortage.headroom_bytes);
    trouble.inodes = std::max(trouble.inodes, shortage.need.dev_shm_inodes());
    trouble.at_least = trouble.at_least || shortage.need.bound == Bound::kAtLeast;
  }
  return trouble;
}

}  // namespace

ShmTrouble shm_trouble(const HostFacts& facts, const std::string& ranks,
                       const std::vector<Shortage>& refused) {
  ShmTrouble trouble = largest_need(ranks, refused);
  if (trouble.bytes == 0) return trouble;
  const ShmDirFacts& dir = facts.dev_shm;
  trouble.total_bytes = in_pages(facts, trouble.bytes);
  trouble.total_inodes = trouble.inodes;
  if (!dir.exists) {
    trouble.missing = true;
    trouble.occupied = dir.occupied;
    return trouble;
  }
  trouble.no_tmpfs = !dir.fs_type.empty() && dir.fs_type != "tmpfs";
  if (trouble.no_tmpfs) return trouble;
  trouble.read_only =
      dir.open_errno == EROFS || (dir.open_errno != 0 && has_option(dir.mount_options, "ro"));
  trouble.forbidden = !trouble.read_only && (dir.open_errno == EACCES || dir.open_errno == EPERM);
  if (dir.size_bytes > 0) {
    trouble.used_bytes = dir.size_bytes - dir.free_bytes;
    trouble.total_bytes = in_pages(facts, trouble.used_bytes + trouble.bytes);
    trouble.small = trouble.bytes > dir.free_bytes;
    if (!trouble.small && dir.probe_errno == ENOSPC && dir.probed_bytes <= trouble.bytes) {
      // statvfs reports enough room, but a real fallocate failed. How much is missing is not known,
      // so ask for the whole need on top of the present size.
      trouble.small = true;
      trouble.total_bytes = in_pages(facts, dir.size_bytes + trouble.bytes);
    }
  }
  if (dir.total_inodes > 0) {
    trouble.total_inodes = dir.total_inodes - dir.free_inodes + trouble.inodes;
    trouble.few_inodes = trouble.inodes > dir.free_inodes;
  }
  return trouble;
}

void add_dev_shm(const HostFacts& facts, const ShmTrouble& trouble, std::vector<Remedy>& list) {
  if (trouble.mount_helps()) {
    const ShmTrouble in_new = in_new_container(facts, trouble);
    if (facts.container == "kubernetes") {
      list.push_back(kubernetes_shm(facts, in_new));
    } else if (is_docker(facts)) {
      list.push_back(docker_shm(facts, in_new));
      // Kubernetes runs on containerd, and the facts do not always show it.
      if (facts.container == "containerd") list.push_back(kubernetes_shm(facts, in_new));
    }
    // This works in a container too, if it was given the right to mount. The mount lasts as long as
    // the container.
    if (facts.container.empty() || facts.can_mount) add_mount(facts, trouble, list);
  }
}

void add_stale(const HostFacts& facts, const ShmTrouble& trouble, const std::string& command,
               std::vector<Remedy>& list) {
  const auto [files, bytes] = stale_files(facts);
  if (files == 0 || (!trouble.small && !trouble.few_inodes)) return;
  const ShmDirFacts& dir = facts.dev_shm;
  const bool enough = (!trouble.small || dir.free_bytes + bytes >= trouble.bytes) &&
                      (!trouble.few_inodes || dir.free_inodes + files >= trouble.inodes) &&
                      !trouble.read_only && !trouble.forbidden;
  const Remedy remedy{
      "other",
      cat("killed runs left ", bytes_text(bytes), " in ", dir.path, " (files: ", files,
          "): remove them", enough ? cat(", which is enough for ", trouble.ranks) : ""),
      command};
  list.insert(enough ? list.begin() : list.end(), remedy);
}

}  // namespace shoal
