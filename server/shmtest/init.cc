#include "server/shmtest/init.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <fstream>
#include <optional>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/deadline.h"
#include "runtime/base/fd.h"
#include "server/shmtest/confine.h"
#include "server/shmtest/dev_shm.h"
#include "server/shmtest/network.h"
#include "server/shmtest/outcome.h"

namespace shoal::shmtest {
namespace {

constexpr int64_t kSampleNs = 10'000'000;
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

/// Runs in the command's own process, and replaces it by the command.
[[noreturn]] void become_command(const SandboxArgs& args, const MemoryCgroup& cgroup) {
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
  leave(args.report, "notstarted", cat(args.command[0], ": ", ::strerrordesc_np(errno)));
}

/// The other living processes of the namespace, as "PID name".
std::vector<std::string> others() {
  std::vector<std::string> found;
  DIR* proc = ::opendir("/proc");
  if (proc == nullptr) return found;
  while (const dirent* entry = ::readdir(proc)) {
    const int pid = std::atoi(entry->d_name);
    if (pid <= 1) continue;
    std::ifstream in(cat("/proc/", pid, "/stat"));
    std::string text;
    std::getline(in, text, '\0');
    // The name may contain any character, even parentheses.
    const size_t open = text.find('('), close = text.rfind(')');
    if (open == std::string::npos || close == std::string::npos || close + 2 >= text.size())
      continue;
    const char state = text[close + 2];
    if (state != 'Z' && state != 'X')
      found.push_back(cat(pid, " ", text.substr(open + 1, close - open - 1)));
  }
  ::closedir(proc);
  return found;
}

/// What pid 1 observes while the command runs.
class Watch {
 public:
  Watch(const SandboxArgs& args, DevShmWatch& shm, pid_t command)
      : args_(args),
        shm_(shm),
        command_(command),
        fill_at_s_(args.condition.full_after_s.value_or(0)) {}

  /// Runs until the command has ended or its time is over.
  void run() {
    const Deadline deadline = Deadline::after_s(args_.timeout_s);
    while (!status_ && !deadline.passed()) turn();
    seconds_ = seconds_since(start_);
    const Deadline grace = Deadline::after_ms(kGraceMs);
    while (status_ && !grace.passed() && !others().empty()) turn();
    shm_.sample();
  }

  void report() const {
    const int fd = args_.report;
    send_record(fd, "milliseconds", cat(static_cast<int64_t>(seconds_ * 1e3)));
    send_record(fd, "peak", cat(shm_.peak_bytes()));
    if (orphan_sigbus_) send_record(fd, "orphan_sigbus", "1");
    for (const std::string& process : others()) send_record(fd, "orphan", process);
    for (const LeftFile& file : shm_.left())
      send_record(fd, "left", cat(file.bytes, " ", file.name));
    if (!status_) return send_record(fd, "hung", "");
    if (WIFSIGNALED(*status_)) return send_record(fd, "signal", cat(WTERMSIG(*status_)));
    send_record(fd, "exit", cat(WEXITSTATUS(*status_)));
  }

 private:
  void turn() {
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    const timespec pause = {0, kSampleNs};
    ::sigtimedwait(&child, nullptr, &pause);
    reap();
    shm_.sample();
    if (fill_at_s_ == 0 || seconds_since(start_) < fill_at_s_) return;
    // Fill once only: a process that frees blocks meanwhile can take new ones, as it could beside a
    // real neighbour.
    (void)shm_.fill();
    fill_at_s_ = 0;
  }

  void reap() {
    int status = 0;
    for (pid_t pid = ::waitpid(-1, &status, WNOHANG); pid > 0;
         pid = ::waitpid(-1, &status, WNOHANG)) {
      if (pid == command_) {
        status_ = status;
      } else if (WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS) {
        orphan_sigbus_ = true;
      }
    }
  }

  const SandboxArgs& args_;
  DevShmWatch& shm_;
  const pid_t command_;
  double fill_at_s_;  // seconds after the start; 0: never, or already done
  const Clock::time_point start_ = Clock::now();
  double seconds_ = 0;
  std::optional<int> status_;
  bool orphan_sigbus_ = false;
};

}  // namespace

void run_init(const SandboxArgs& args, const MemoryCgroup& cgroup) {
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &child, nullptr);
  if (::mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0) {
    leave(args.report, "forbidden",
          cat("mount /proc of the process namespace: ", ::strerrordesc_np(errno)));
  }
  Status status = args.condition.private_network() ? set_up_network(args.condition) : Status();
  DevShmWatch shm(args.condition);
  if (status.ok() && args.condition.full_after_s == 0.0) status = shm.fill();
  if (!status.ok()) leave(args.report, "skip", root_reason(status));
  const pid_t command = ::fork();
  if (command < 0) leave(args.report, "skip", cat("start a process: ", ::strerrordesc_np(errno)));
  if (command == 0) become_command(args, cgroup);
  ::close(args.output);
  Watch watch(args, shm, command);
  watch.run();
  watch.report();
  ::_exit(0);
}

}  // namespace shoal::shmtest
