#include "server/cli/process_start.h"

#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <malloc.h>
#include <string>
#include <string_view>
#include <sys/resource.h>
#include <unistd.h>

#include "runtime/base/cat.h"
#include "runtime/base/fd.h"
#include "runtime/base/log.h"
#include "server/cli/exit_code.h"

namespace shoal {
namespace {

/// begin_process() has found that SIGPIPE may end this process.
bool g_ends_by_broken_pipe = false;

/// Opens the standard descriptors that are closed, so that a file opened later does not become
/// stdout by accident. Writing to them fails, as it would on a closed descriptor.
void open_standard_descriptors() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", O_RDONLY) < 0)
      ::_exit(static_cast<int>(ExitCode::kInternal));
  }
}

/// A library may have made something of its own before main() while a standard descriptor was
/// closed, and have got that number. A command would then read from the library's descriptor and
/// wait for ever. Only a new start with the descriptors open helps, because the library keeps its
/// numbers. If that fails, this process goes on as it is.
void start_again_with_descriptors(char** argv) {
  constexpr const char* kOnce = "SHOAL_STARTED_AGAIN";
  bool taken = false;
  for (int fd = 0; fd <= 2; ++fd) {
    char target[32] = {};
    const std::string link = cat("/proc/self/fd/", fd);
    if (::readlink(link.c_str(), target, sizeof target - 1) <= 0) continue;
    if (!std::string_view(target).starts_with("anon_inode:")) continue;
    taken = true;
    const Fd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (null.valid()) ::dup2(null.get(), fd);
  }
  if (!taken || std::getenv(kOnce) != nullptr) return;
  ::setenv(kOnce, "1", 1);
  ::execv("/proc/self/exe", argv);
  ::unsetenv(kOnce);
}

/// The kernel drops signals for the first process of a container (PID 1), unless it has a handler.
/// With these it ends as any other process would, and a shell sees the same code. The kernel then
/// kills what is left in the container. A command with better handlers of its own replaces them.
void end_on_signals_as_pid_1() {
  if (::getpid() != 1) return;
  struct sigaction action {};
  action.sa_handler = [](int number) {
    clear_progress_line();
    ::_exit(128 + number);
  };
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    struct sigaction before {};
    ::sigaction(number, nullptr, &before);
    if (before.sa_handler == SIG_DFL) ::sigaction(number, &action, nullptr);
  }
}

/// Under a limit of address space (ulimit -v) all threads share one heap. Otherwise each would
/// reserve 64 MiB or more for one of its own, and who comes first would decide whether there is
/// still room for the stack of another.
void share_heap_under_a_limit() {
#ifdef M_ARENA_MAX  // other C libraries have one heap anyway
  struct rlimit space = {};
  if (::getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY)
    ::mallopt(M_ARENA_MAX, 1);
#endif
}

}  // namespace

void begin_process(char** argv) {
  share_heap_under_a_limit();
  start_again_with_descriptors(argv);
  ::unsetenv("SHOAL_STARTED_AGAIN");  // not for the processes that this one starts
  end_on_signals_as_pid_1();
  open_standard_descriptors();
  // If a reader is gone, or a file has grown to its limit (ulimit -f), write() returns an error
  // instead. Every caller handles that, and a log that is full must not end a server.
  g_ends_by_broken_pipe = std::signal(SIGPIPE, SIG_IGN) == SIG_DFL;
  std::signal(SIGXFSZ, SIG_IGN);
  // A shell's trap '' CHLD reaches us through exec. While SIGCHLD is ignored, the kernel does not
  // keep the exit status of children for us.
  std::signal(SIGCHLD, SIG_DFL);
}

void end_by_broken_pipe() {
  if (!g_ends_by_broken_pipe) return;
  std::signal(SIGPIPE, SIG_DFL);
  std::raise(SIGPIPE);
  ::_exit(128 + SIGPIPE);  // as PID 1, for which the kernel drops the signal
}

}  // namespace shoal
