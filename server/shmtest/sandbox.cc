#include "server/shmtest/sandbox.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/fd.h"
#include "server/shmtest/dev_shm.h"
#include "server/shmtest/forbidden.h"
#include "server/shmtest/init.h"
#include "server/shmtest/memory_cgroup.h"
#include "server/shmtest/os_failure.h"
#include "server/shmtest/outcome.h"
#include "server/shmtest/processes.h"

namespace shoal::shmtest {
namespace {

/// The kind whose limit was reached, if one was.
using Reached = std::optional<NamespaceKind>;

/// The error for a namespace of that kind that cannot be made. ENOSPC is about the limit of their
/// number here, and not about /dev/shm; `reached` becomes the kind then.
Status not_made(NamespaceKind kind, Reached& reached) {
  constexpr const char* kWords[] = {"user", "mount", "process", "network"};
  const int error = errno;
  const char* const word = kWords[static_cast<size_t>(kind)];
  const std::string what = cat("make a ", word, " namespace");
  if (error != ENOSPC) return Status::error(Code::kPermissionDenied, what, error);
  reached = kind;
  const std::optional<int64_t> most = namespace_limit(kind);
  const std::string how = !most        ? " is 0 or used up"
                          : *most == 0 ? cat(" is 0: ", word, " namespaces are switched off")
                                       : " is used up";
  return Status::error(Code::kResourceExhausted, cat(what, ": ", limit_name(kind), how));
}

Status write_file(const char* path, const std::string& text) {
  const Fd file(::open(path, O_WRONLY | O_CLOEXEC));
  if (!file.valid() || ::write(file.get(), text.data(), text.size()) < 0)
    return failed(cat("write ", path), Code::kPermissionDenied);
  return {};
}

/// Enters a user namespace that maps the user to the same ids, so that the command does not notice
/// it.
Status enter_user_namespace(Reached& reached) {
  const uid_t user = ::geteuid();
  const gid_t group = ::getegid();
  if (::unshare(CLONE_NEWUSER) != 0) return not_made(NamespaceKind::kUser, reached);
  (void)write_file("/proc/self/setgroups",
                   // Old kernels lack this file and do not require it.
                   "deny");
  SHOAL_RETURN_IF_ERROR(write_file("/proc/self/uid_map", cat(user, " ", user, " 1")));
  return write_file("/proc/self/gid_map", cat(group, " ", group, " 1"));
}

/// Makes the namespaces that every condition needs. Errors, which rule out all conditions:
/// PERMISSION_DENIED, and RESOURCE_EXHAUSTED if there are as many already as may be; `reached` is
/// that kind then.
Status enter_namespaces(Reached& reached) {
  if (::unshare(CLONE_NEWNS) != 0) {
    if (errno != EPERM) return not_made(NamespaceKind::kMount, reached);
    SHOAL_RETURN_IF_ERROR(enter_user_namespace(reached));
    if (::unshare(CLONE_NEWNS) != 0) return not_made(NamespaceKind::kMount, reached);
  }
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    return failed("make mounts private", Code::kPermissionDenied);
  if (::unshare(CLONE_NEWPID) != 0) return not_made(NamespaceKind::kProcess, reached);
  return {};
}

/// Whether a sandbox can be had. Found out in a child, because no process can leave a namespace.
bool sandbox_works() {
  const pid_t child = ::fork();
  if (child == 0) {
    Reached reached;
    if (!enter_namespaces(reached).ok()) ::_exit(1);
    const pid_t init = ::fork();
    if (init == 0) ::_exit(mount_own_proc().ok() ? 0 : 1);
    int status = 1;
    ::_exit(init > 0 && ::waitpid(init, &status, 0) == init && status == 0 ? 0 : 1);
  }
  int status = 1;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status == 0;
}

/// Makes what only this condition needs. An error rules out this condition alone.
Status enter_condition(const Condition& condition, std::string& disk_folder, MemoryCgroup& cgroup) {
  Reached reached;
  if (condition.private_network() && ::unshare(CLONE_NEWNET) != 0)
    return not_made(NamespaceKind::kNetwork, reached);
  if (condition.cgroup_bytes > 0) {
    SHOAL_ASSIGN_OR_RETURN(cgroup, MemoryCgroup::create(condition.cgroup_bytes));
  }
  return mount_dev_shm(condition, disk_folder);
}

/// Waits for pid 1, and kills it once the runner is gone.
void wait_for_init(pid_t init, int lifeline) {
  const Fd ended(static_cast<int>(::syscall(SYS_pidfd_open, init, 0)));
  pollfd waits[] = {{lifeline, 0, 0}, {ended.get(), POLLIN, 0}};
  // Linux 5.2 and older have no pidfds, so check ten times a second.
  const int interval_ms = ended.valid() ? -1 : 100;
  while (::waitpid(init, nullptr, WNOHANG) == 0) {
    ::poll(waits, 2, interval_ms);
    if (waits[0].revents == 0) continue;
    ::kill(init, SIGKILL);  // the kernel then kills everything in its namespace
    while (::waitpid(init, nullptr, 0) < 0 && errno == EINTR) {
    }
    return;
  }
}

}  // namespace

int run_keeper(const SandboxArgs& wanted) {
  ::setsid();
  SandboxArgs args = wanted;
  args.in_place = wanted.in_place && !sandbox_works();
  Reached reached;
  if (args.in_place) {
    send_record(args.report, "in_place", "");
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  } else if (const Status status = enter_namespaces(reached); !status.ok()) {
    if (reached) send_record(args.report, "reached", cat(static_cast<int>(*reached)));
    send_record(args.report, "forbidden", root_reason(status));
    return 1;
  }
  std::string disk_folder;
  MemoryCgroup cgroup;
  if (const Status status = enter_condition(args.condition, disk_folder, cgroup); !status.ok()) {
    send_record(args.report, "skip", root_reason(status));
  } else if (const pid_t init = ::fork(); init == 0) {
    // Somebody may kill the keeper alone. This must follow the user namespace, because entering one
    // clears the setting.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    run_init(args, cgroup);
  } else if (init > 0) {
    ::close(args.output);
    wait_for_init(init, args.lifeline);
    if (args.in_place) end_descendants();
  } else {
    send_record(args.report, "skip",
                root_reason(failed("start a process", Code::kPermissionDenied)));
  }
  if (cgroup.exists()) send_record(args.report, "oom", cat(cgroup.oom_kills()));
  remove_disk_folder(disk_folder);
  return 0;
}

}  // namespace shoal::shmtest
