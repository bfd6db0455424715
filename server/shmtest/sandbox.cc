#include "server/shmtest/sandbox.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/fd.h"
#include "server/shmtest/dev_shm.h"
#include "server/shmtest/init.h"
#include "server/shmtest/memory_cgroup.h"
#include "server/shmtest/outcome.h"

namespace shoal::shmtest {
namespace {

Status failed(const std::string& what) {
  return Status::error(Code::kPermissionDenied, what, errno);
}

Status write_file(const char* path, const std::string& text) {
  const Fd file(::open(path, O_WRONLY | O_CLOEXEC));
  if (!file.valid() || ::write(file.get(), text.data(), text.size()) < 0)
    return failed(cat("write ", path));
  return {};
}

/// A user namespace in which the user is who it was: the command must not notice.
Status enter_user_namespace() {
  const uid_t user = ::geteuid();
  const gid_t group = ::getegid();
  if (::unshare(CLONE_NEWUSER) != 0) return failed("make a user namespace");
  (void)write_file("/proc/self/setgroups",
                   "deny");  // absent in old kernels, which do not ask for it
  SHOAL_RETURN_IF_ERROR(write_file("/proc/self/uid_map", cat(user, " ", user, " 1")));
  return write_file("/proc/self/gid_map", cat(group, " ", group, " 1"));
}

/// What every condition needs.
Status enter_namespaces() {
  if (::unshare(CLONE_NEWNS) != 0) {
    if (errno != EPERM) return failed("make a mount namespace");
    SHOAL_RETURN_IF_ERROR(enter_user_namespace());
    if (::unshare(CLONE_NEWNS) != 0) return failed("make a mount namespace");
  }
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    return failed("make mounts private");
  if (::unshare(CLONE_NEWPID) != 0) return failed("make a process namespace");
  return {};
}

/// What this condition needs; it may be refused alone.
Status enter_condition(const Condition& condition, std::string& disk_folder, MemoryCgroup& cgroup) {
  if (condition.private_network() && ::unshare(CLONE_NEWNET) != 0)
    return failed("make a network namespace");
  if (condition.cgroup_bytes > 0) {
    SHOAL_ASSIGN_OR_RETURN(cgroup, MemoryCgroup::create(condition.cgroup_bytes));
  }
  return mount_dev_shm(condition, disk_folder);
}

/// Waits for pid 1; ends it once the runner is gone.
void wait_for_init(pid_t init, int lifeline) {
  const Fd ended(static_cast<int>(::syscall(SYS_pidfd_open, init, 0)));
  pollfd waits[] = {{lifeline, 0, 0}, {ended.get(), POLLIN, 0}};
  // Without pidfds (Linux 5.2 and older): look ten times a second.
  const int interval_ms = ended.valid() ? -1 : 100;
  while (::waitpid(init, nullptr, WNOHANG) == 0) {
    ::poll(waits, 2, interval_ms);
    if (waits[0].revents == 0) continue;
    ::kill(init, SIGKILL);  // and with it, by the kernel, everything in its namespace
    while (::waitpid(init, nullptr, 0) < 0 && errno == EINTR) {
    }
    return;
  }
}

}  // namespace

int run_keeper(const SandboxArgs& args) {
  ::setsid();
  if (const Status status = enter_namespaces(); !status.ok()) {
    send_record(args.report, "forbidden", root_reason(status));
    return 1;
  }
  std::string disk_folder;
  MemoryCgroup cgroup;
  if (const Status status = enter_condition(args.condition, disk_folder, cgroup); !status.ok()) {
    send_record(args.report, "skip", root_reason(status));
  } else if (const pid_t init = ::fork(); init == 0) {
    // The keeper may be killed alone. Set here, after the user namespace: entering one clears it.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    run_init(args, cgroup);
  } else if (init > 0) {
    ::close(args.output);
    wait_for_init(init, args.lifeline);
  } else {
    send_record(args.report, "skip", root_reason(failed("start a process")));
  }
  if (cgroup.exists()) send_record(args.report, "oom", cat(cgroup.oom_kills()));
  remove_disk_folder(disk_folder);
  return 0;
}

}  // namespace shoal::shmtest
