// What shmtest_trace_test.py runs under shmtest: shmtest_deaths CASE. Each case ends in the way
// that its function says.
#include <cerrno>
#include <csetjmp>
#include <csignal>
#include <cstring>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace {

const char* program;

/// Writes to a page beyond the end of a file, as one does in a full /dev/shm.
[[noreturn]] void die() {
  const int file = ::memfd_create("empty", 0);
  auto* page = static_cast<volatile char*>(
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  page[0] = 1;
  ::_exit(99);  // not reached
}

template <typename Act>
int status_of_child(const Act& act, int flags = 0) {
  const pid_t child = ::fork();
  if (child == 0) {
    act();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, flags);
  return status;
}

/// Swallows what happened to the child, so that only the kernel knows.
template <typename Act>
int quietly(const Act& act) {
  (void)status_of_child(act);
  return 1;
}

int in_a_child() {
  return quietly(die);
}

int in_a_grandchild() {
  return quietly([] { quietly(die); });
}

int in_a_thread_of_a_grandchild() {
  return quietly([] { quietly([] { std::thread(die).join(); }); });
}

int in_an_orphan() {
  quietly([] {
    if (::fork() == 0) {
      ::usleep(100'000);
      die();
    }
  });
  ::usleep(300'000);
  return 1;
}

int after_exec() {
  return quietly([] { ::execl(program, program, "die", nullptr); });
}

/// The thread that calls exec takes over the number of the process's first thread.
int after_exec_by_a_thread() {
  return quietly([] { std::thread([] { ::execl(program, program, "die", nullptr); }).join(); });
}

int in_a_vfork_child() {
  const pid_t child = ::vfork();  // NOLINT: this is what is tested
  if (child == 0) die();
  ::waitpid(child, nullptr, 0);
  return 1;
}

int survived() {
  static sigjmp_buf back;
  std::signal(SIGBUS, [](int) { siglongjmp(back, 1); });
  if (sigsetjmp(back, 1) == 0) die();
  return 1;
}

/// 0 if a parent sees its child stop and go on, as a shell with job control does.
int stops_and_goes_on() {
  int hold[2];  // keeps the child alive, because the end of a process hides that it went on
  if (::pipe(hold) != 0) return 9;
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(hold[1]);
    ::raise(SIGSTOP);
    char byte = 0;
    ::_exit(::read(hold[0], &byte, 1) == 0 ? 5 : 6);
  }
  int status = 0;
  if (::waitpid(child, &status, WUNTRACED) != child || !WIFSTOPPED(status)) return 10;
  ::usleep(100'000);
  if (::waitpid(child, &status, WNOHANG) != 0) return 11;
  ::kill(child, SIGCONT);
  if (::waitpid(child, &status, WCONTINUED) != child || !WIFCONTINUED(status)) return 12;
  ::close(hold[1]);
  if (::waitpid(child, &status, 0) != child) return 13;
  return WIFEXITED(status) && WEXITSTATUS(status) == 5 ? 0 : 14;
}

/// 0 if a signal arrives with its sender and its value.
int signals_are_unchanged() {
  static volatile int value = 0, sender = 0;
  struct sigaction action {};
  action.sa_flags = SA_SIGINFO;
  action.sa_sigaction = [](int, siginfo_t* info, void*) {
    value = info->si_value.sival_int;
    sender = info->si_pid;
  };
  ::sigaction(SIGRTMIN, &action, nullptr);
  sigval sent{};
  sent.sival_int = 42;
  ::sigqueue(::getpid(), SIGRTMIN, sent);
  return value == 42 && sender == ::getpid() ? 0 : 10;
}

/// 0 if the child can be traced.
int traces_its_child() {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(20);
    ::raise(SIGUSR1);
    die();
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGUSR1) return 10;
  ::ptrace(PTRACE_CONT, child, nullptr, nullptr);
  ::waitpid(child, &status, 0);
  if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGBUS) return 11;
  ::ptrace(PTRACE_CONT, child, nullptr, static_cast<long>(SIGBUS));
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS ? 0 : 12;
}

/// 0 if a running child, which a third process has stopped meanwhile, can be attached to. A parent
/// that waits in vfork() does not hold it up.
int attaches_below_vfork() {
  const pid_t target = ::fork();
  if (target == 0) {
    while (true) ::pause();
  }
  volatile int result = 10;
  const pid_t child = ::vfork();  // NOLINT: this is what is tested
  if (child == 0) {
    if (::ptrace(PTRACE_ATTACH, target, nullptr, nullptr) == 0) {
      result = ::waitpid(target, nullptr, __WALL) == target || errno == ECHILD ? 0 : 11;
      ::ptrace(PTRACE_DETACH, target, nullptr, nullptr);
    }
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  ::kill(target, SIGKILL);
  ::waitpid(target, nullptr, 0);
  return result;
}

struct Case {
  const char* name;
  int (*run)();
};

constexpr Case kCases[] = {
    {"die",
     [] {
       die();
       return 0;
     }},
    {"child", in_a_child},
    {"grandchild", in_a_grandchild},
    {"thread", in_a_thread_of_a_grandchild},
    {"orphan", in_an_orphan},
    {"exec", after_exec},
    {"exec-by-thread", after_exec_by_a_thread},
    {"vfork", in_a_vfork_child},
    {"survived", survived},
    {"stops", stops_and_goes_on},
    {"signals", signals_are_unchanged},
    {"traces", traces_its_child},
    {"attaches", attaches_below_vfork},
};

}  // namespace

int main(int argc, char** argv) {
  program = argv[0];
  for (const Case& one : kCases) {
    if (argc == 2 && std::strcmp(argv[1], one.name) == 0) return one.run();
  }
  return 64;
}
