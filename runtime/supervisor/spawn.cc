#include "runtime/supervisor/spawn.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <spawn.h>
#include <string_view>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <vector>

#include "runtime/base/counted.h"
#include "runtime/base/process_limit.h"
#include "runtime/base/program_path.h"
#include "runtime/base/signals.h"
#include "runtime/control/descriptors.h"
#include "runtime/supervisor/process_end.h"

extern char** environ;

namespace shoal {
namespace {

/// Each source is first duplicated to a number above every target, so that no dup2 of the list
/// overwrites the source of a later one.
constexpr int kFirstSafeFd = kFirstWorkFd;

/// "; this process may have only 16 open files (ulimit -n)", if that is the reason.
std::string descriptor_limit(int error) {
  struct rlimit limit;
  if (error != EMFILE || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return "";
  return cat("; this process may have only ", counted(limit.rlim_cur, "open file"), " (ulimit -n)");
}

/// What keeps a process from being started, with its number if there is one.
std::string spawn_limit(int error) {
  if (error == EAGAIN) return process_limit();
  if (error == ENOMEM) return "; memory is short";
  if (error == EPERM) return process_denial();
  if (error == ENOENT || error == EACCES) return cat("; tried ", program_name(), proc_hint());
  return descriptor_limit(error);
}

/// What ran out may be there again soon. Anything else stays as it is.
Code spawn_code(int error) {
  const bool ran_out = error == EAGAIN || error == ENOMEM || error == EMFILE || error == ENFILE;
  return ran_out ? Code::kResourceExhausted : Code::kUnavailable;
}

/// The descriptor that reports the end of the process, or none where the kernel has no such thing:
/// Linux before 5.3 answers ENOSYS, and a container's filter may answer EPERM. The end is then
/// found by looking (RankProcess::unwatched). Only a lack of descriptors or memory is an error. No
/// other process can have this pid, because the kernel keeps it for our child until we reap it.
Result<Fd> open_pidfd(int rank, pid_t pid) {
  Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  const int error = errno;
  if (!pidfd.valid() && (error == EMFILE || error == ENFILE || error == ENOMEM)) {
    return Status::error(Code::kResourceExhausted,
                         cat("open a pidfd for rank ", rank, descriptor_limit(error)), error);
  }
  if (pidfd.valid()) ::fcntl(pidfd.get(), F_SETFD, FD_CLOEXEC);
  return pidfd;
}

class FileActions {
 public:
  /// The descriptors in `kept` are inherited under their own numbers.
  explicit FileActions(const std::vector<int>& kept) {
    posix_spawn_file_actions_init(&actions_);
    // A dup2 onto the same number only clears close-on-exec (POSIX).
    for (const int fd : kept) posix_spawn_file_actions_adddup2(&actions_, fd, fd);
  }
  ~FileActions() { posix_spawn_file_actions_destroy(&actions_); }
  FileActions(const FileActions&) = delete;
  FileActions& operator=(const FileActions&) = delete;

  Status pass(int fd, int as) {
    if (fd < 0) return {};
    Fd high(::fcntl(fd, F_DUPFD_CLOEXEC, kFirstSafeFd));
    if (!high.valid()) {
      const int error = errno == EINVAL ? EMFILE : errno;  // the limit is below that number
      return Status::error(Code::kResourceExhausted,
                           cat("duplicate a descriptor for a worker", descriptor_limit(error)),
                           error);
    }
    posix_spawn_file_actions_adddup2(&actions_, high.get(), as);
    kept_.push_back(std::move(high));
    return {};
  }
  void stdout_to_stderr() {
    posix_spawn_file_actions_adddup2(&actions_, STDERR_FILENO, STDOUT_FILENO);
  }
  const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_;
  std::vector<Fd> kept_;
};

/// This process's environment, in which `own` replaces variables of the same name. Holds pointers
/// into both, and nullptr last.
std::vector<char*> environment_with(const std::vector<std::string>& own) {
  const auto replaced = [&](std::string_view entry) {
    const std::string_view name = entry.substr(0, entry.find('=') + 1);
    return std::any_of(own.begin(), own.end(),
                       [&](const std::string& one) { return one.starts_with(name); });
  };
  std::vector<char*> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!replaced(*entry)) all.push_back(*entry);
  }
  for (const std::string& one : own)
    all.push_back(const_cast<char*>(one.c_str()));  // posix_spawn does not write to it
  all.push_back(nullptr);
  return all;
}

}  // namespace

Result<WorkerProcess> spawn_worker(int rank, const WorkerDescriptors& descriptors,
                                   const std::vector<std::string>& environment) {
  SHOAL_ASSIGN_OR_RETURN(SelfCommand command,
                         self_command({"worker", cat(kWorkerControlFd), cat("rank-", rank)}));
  FileActions actions(descriptors.work);
  actions.stdout_to_stderr();
  SHOAL_RETURN_IF_ERROR(actions.pass(descriptors.control, kWorkerControlFd));
  SHOAL_RETURN_IF_ERROR(actions.pass(descriptors.shm, kWorkerShmFd));
  SHOAL_RETURN_IF_ERROR(actions.pass(descriptors.listener, kWorkerListenerFd));
  SHOAL_RETURN_IF_ERROR(actions.pass(descriptors.log, kWorkerLogFd));

  // Blocked until the worker ignores them, so that a signal to the process group does not end it.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t blocked;
  sigemptyset(&blocked);
  for (const int number : kFrontSignals) sigaddset(&blocked, number);
  posix_spawnattr_setsigmask(&attributes, &blocked);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);

  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, command.file.c_str(), actions.get(), &attributes,
                                  command.argv().data(), environment_with(environment).data());
  posix_spawnattr_destroy(&attributes);
  if (error != 0)
    return Status::error(spawn_code(error),
                         cat("start the process of rank ", rank, spawn_limit(error)), error);
  Result<Fd> pidfd = open_pidfd(rank, pid);
  if (!pidfd.ok()) {
    ::kill(pid, SIGKILL);
    (void)await_end(pid, Fd(), Deadline::after_ms(kDeathMs));
    return pidfd.status();
  }
  return WorkerProcess{pid, std::move(pidfd).value()};
}

}  // namespace shoal
