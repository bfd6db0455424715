#include "runtime/supervisor/helper_process.h"

#include <cerrno>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/base/deadline.h"
#include "runtime/base/process_limit.h"
#include "runtime/base/program_path.h"
#include "runtime/supervisor/process_end.h"

extern char** environ;

namespace shoal {

Result<HelperProcess> start_helper(std::vector<std::string> words) {
  SHOAL_ASSIGN_OR_RETURN(SelfCommand command, self_command(std::move(words)));
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return Status::error(Code::kResourceExhausted, "make a pipe", errno);
  HelperProcess helper{-1, Fd(), Fd(ends[0])};
  const Fd write_end(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, write_end.get(), STDOUT_FILENO);
  const int error = ::posix_spawn(&helper.pid, command.file.c_str(), &actions, nullptr,
                                  command.argv().data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0)
    return Status::error(Code::kResourceExhausted,
                         cat("start a process", error == EPERM ? process_denial() : proc_hint()),
                         error);
  helper.pidfd.reset(static_cast<int>(::syscall(SYS_pidfd_open, helper.pid, 0)));
  return helper;
}

bool kill_helper(const HelperProcess& helper) {
  ::kill(helper.pid, SIGKILL);
  return await_end(helper.pid, helper.pidfd, Deadline::after_ms(kDeathMs)).has_value();
}

}  // namespace shoal
