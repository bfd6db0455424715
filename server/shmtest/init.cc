#include "server/shmtest/init.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <poll.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include "runtime/base/deadline.h"
#include "runtime/base/fd.h"
#include "runtime/base/number_text.h"
#include "server/shmtest/confine.h"
#include "server/shmtest/dev_shm.h"
#include "server/shmtest/network.h"
#include "server/shmtest/os_failure.h"
#include "server/shmtest/outcome.h"
#include "server/shmtest/processes.h"
#include "server/shmtest/program.h"
#include "server/shmtest/trace.h"

namespace shoal::shmtest {
namespace {

/// This many ends and stops of processes are handled between two looks at the clock.
constexpr int kReapAtOnce = 256;
/// Time for helpers that end by themselves once their parent is gone (such as Python's resource
/// tracker), so that they are not reported as orphans.
constexpr int64_t kGraceMs = 500;

[[noreturn]] void leave(int report, std::string_view key, const std::string& value) {
  send_record(report, key, value);
  ::_exit(1);
}

void restore_signals() {
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

/// Why the condition never came about, and what to try in its place.
std::string ended_too_soon(double seconds) {
  const double half = seconds / 2;
  return cat("the command ended after ", with_decimals(seconds, 2),
             " s, before /dev/shm was filled; try ",
             half < 0.01 ? "" : cat("full-after-", with_decimals(half, 2), "s, or "),
             "a command that runs longer");
}

/// Two ends of a connection between pid 1 and the command's process before it is the command.
struct Link {
  Fd init, command;
};

/// Runs in the command's own process, and replaces it by the command.
[[noreturn]] void become_command(const SandboxArgs& args, const MemoryCgroup& cgroup, Link link) {
  link.init.reset();
  if (args.trace) offer_trace(link.command.get());
  const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (::dup2(null, 0) < 0 || ::dup2(args.output, 1) < 0 || ::dup2(args.output, 2) < 0) {
    leave(args.report, "skip", cat("give the command its descriptors: ", ::strerrordesc_np(errno)));
  }
  ::setenv("SHOAL_SHMTEST_CONDITION", args.condition.name.c_str(), 1);
  std::vector<char*> words;
  for (const std::string& word : args.command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  restore_signals();
  Status status = cgroup.exists() ? cgroup.join() : Status();
  if (status.ok()) status = confine(args.condition);
  if (!status.ok()) leave(args.report, "skip", root_reason(status));
  ::execvp(words[0], words.data());
  leave(args.report, "notstarted", start_failure(args.command[0], errno));
}

/// What is left of the command.
std::vector<Process> others(const SandboxArgs& args) {
  return args.in_place ? living_descendants() : living_processes();
}

/// What pid 1 observes while the command runs.
class Watch {
 public:
  Watch(const SandboxArgs& args, DevShmWatch& shm, Tracer& tracer, pid_t command)
      : args_(args),
        shm_(shm),
        tracer_(tracer),
        command_(command),
        child_ended_(signals_of_children()),
        fill_at_s_(args.condition.full_after_s.value_or(0)) {}

  /// Runs until the command has ended or its time is over.
  void run() {
    const Deadline deadline = Deadline::after_s(args_.timeout_s);
    while (!status_ && !deadline.passed()) turn();
    seconds_ = seconds_since(start_);
    const Deadline grace = Deadline::after_ms(kGraceMs);
    while (status_ && !grace.passed() && !others(args_).empty()) turn();
    shm_.sample(/*at_work=*/!status_);
    if (fill_at_s_ != 0) never_came_ = ended_too_soon(seconds_);
  }

  void report() const {
    const int fd = args_.report;
    send_record(fd, "milliseconds", cat(static_cast<int64_t>(seconds_ * 1e3)));
    if (const std::optional<uint64_t> peak = shm_.peak_bytes()) send_record(fd, "peak", cat(*peak));
    tracer_.report(fd);
    for (const Process& process : others(args_))
      send_record(fd, "orphan", cat(process.pid, " ", process.name));
    for (const LeftFile& file : shm_.left())
      send_record(fd, "left", cat(file.bytes, " ", file.name));
    if (!never_came_.empty()) send_record(fd, "never_came", never_came_);
    if (!status_)
      send_record(fd, "hung", "");
    else if (WIFSIGNALED(*status_))
      send_record(fd, "signal", cat(WTERMSIG(*status_)));
    else
      send_record(fd, "exit", cat(WEXITSTATUS(*status_)));
    send_record(fd, "ended", "");
  }

 private:
  static Fd signals_of_children() {
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    return Fd(::signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK));
  }

  void turn() {
    pollfd waits[] = {{child_ended_.get(), POLLIN, 0}, {tracer_.announcements(), POLLIN, 0}};
    ::poll(waits, 2, more_to_reap_ ? 0 : tracer_.ending() ? 1 : kSampleInterval.count());
    signalfd_siginfo signal{};
    (void)!::read(child_ended_.get(), &signal, sizeof signal);
    tracer_.look(waits[1].revents);
    reap();
    if (const auto now = Clock::now(); now >= sample_at_) {
      // The first look, at the start, mostly comes before the command has done anything.
      shm_.sample(!status_ && now >= start_ + kSampleInterval);
      sample_at_ = now + kSampleInterval;
    }
    if (fill_at_s_ == 0 || seconds_since(start_) < fill_at_s_) return;
    // Fill once only: a process that frees blocks meanwhile can take new ones, as it could beside a
    // real neighbour.
    const Status filled = shm_.fill();
    if (!filled.ok()) never_came_ = root_reason(filled);
    fill_at_s_ = 0;
  }

  void reap() {
    for (int i = 0; i < kReapAtOnce; ++i) {
      int status = 0;
      const pid_t pid = ::waitpid(-1, &status, WNOHANG | __WALL);
      more_to_reap_ = pid > 0;
      if (pid <= 0) return;
      if (WIFSTOPPED(status)) {
        tracer_.stopped(pid, status);
        continue;
      }
      tracer_.ended(pid, status);
      if (pid == command_) status_ = status;
    }
  }

  const SandboxArgs& args_;
  DevShmWatch& shm_;
  Tracer& tracer_;
  const pid_t command_;
  const Fd child_ended_;
  bool more_to_reap_ = false;
  double fill_at_s_;  // seconds after the start; 0: never, or already done
  const Clock::time_point start_ = Clock::now();
  double seconds_ = 0;
  Clock::time_point sample_at_ = start_;
  std::optional<int> status_;
  std::string never_came_;
};

/// Starts the command, traced if that is wanted and possible.
pid_t start_command(const SandboxArgs& args, const MemoryCgroup& cgroup, Tracer& tracer) {
  int ends[2] = {-1, -1};
  if (args.trace && ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return -1;
  Link link = {Fd(ends[0]), Fd(ends[1])};
  const pid_t command = ::fork();
  if (command == 0) become_command(args, cgroup, std::move(link));
  link.command.reset();
  if (command > 0 && args.trace) tracer.begin(link.init.get(), command);
  return command;
}

}  // namespace

Status mount_own_proc() {
  if (::mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) == 0) return {};
  return failed("mount /proc of the process namespace", Code::kPermissionDenied);
}

void run_init(const SandboxArgs& args, const MemoryCgroup& cgroup) {
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &child, nullptr);
  if (args.in_place) {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // as pid 1 of a namespace is
  } else if (const Status mounted = mount_own_proc(); !mounted.ok()) {
    leave(args.report, "forbidden", root_reason(mounted));
  }
  Status status = args.condition.private_network() ? set_up_network(args.condition) : Status();
  DevShmWatch shm(args.condition);
  if (status.ok() && args.condition.full_after_s == 0.0) status = shm.fill();
  if (!status.ok()) leave(args.report, "skip", root_reason(status));
  Tracer tracer;
  const pid_t command = start_command(args, cgroup, tracer);
  if (command < 0) leave(args.report, "skip", cat("start a process: ", ::strerrordesc_np(errno)));
  ::close(args.output);
  Watch watch(args, shm, tracer, command);
  watch.run();
  watch.report();
  ::_exit(0);
}

}  // namespace shoal::shmtest
