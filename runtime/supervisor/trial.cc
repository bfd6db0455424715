#include "runtime/supervisor/trial.h"

#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "runtime/base/deadline.h"
#include "runtime/base/fd.h"
#include "runtime/memory/shm_segment.h"
#include "runtime/supervisor/process_end.h"
#include "runtime/transport/needs/reservation.h"

extern char** environ;

namespace shoal {
namespace {

constexpr int64_t kTrialMs = 10'000;

/// Touches private pages: the cgroup charges them as it does a memfd's.
Status touch(int64_t bytes) {
  void* data = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (data == MAP_FAILED)
    return Status::error(Code::kResourceExhausted, cat("touch ", bytes, " bytes"), errno);
  return {};
}

std::string read_all(int fd) {
  std::string text;
  char chunk[512];
  for (ssize_t n; (n = ::read(fd, chunk, sizeof chunk)) > 0;)
    text.append(chunk, static_cast<size_t>(n));
  return text;
}

struct Trial {
  pid_t pid = -1;
  Fd pidfd;
  Fd words;  ///< what it says before it leaves
};

Result<Trial> start(const ShmNeed& need) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return Status::error(Code::kResourceExhausted, "make a pipe for a trial", errno);
  Trial trial{-1, Fd(), Fd(ends[0])};
  const Fd write_end(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, write_end.get(), STDOUT_FILENO);
  std::string dev_shm = cat(need.dev_shm_bytes()),
              memory = cat(need.memory_bytes() - need.dev_shm_bytes());
  char program[] = "shoal", command[] = "reserve-trial";
  char* const argv[] = {program, command, dev_shm.data(), memory.data(), nullptr};
  const int error = ::posix_spawn(&trial.pid, "/proc/self/exe", &actions, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0)
    return Status::error(Code::kResourceExhausted, "start a trial of the reservation", error);
  trial.pidfd.reset(static_cast<int>(::syscall(SYS_pidfd_open, trial.pid, 0)));
  return trial;
}

}  // namespace

bool near_memory_limit(const ShmNeed& need, const HostFacts& facts, const BudgetOptions& options) {
  const int64_t available = facts.cgroup.available_bytes();
  if (available < 0 || need.memory_bytes() == 0) return false;
  // Where the kernel ends a whole group at once, no process of it is disposable: arithmetic alone
  // has to do.
  for (const CgroupLevel& level : facts.cgroup.levels) {
    if (level.oom_group) return false;
  }
  return available - options.reserved_bytes < 2 * need.memory_bytes() + kSafeDistanceBytes;
}

Status try_in_disposable_process(const ShmNeed& need) {
  SHOAL_ASSIGN_OR_RETURN(Trial trial, start(need));
  const std::string what = cat("a trial of reserving ", need.memory_bytes(), " bytes ");
  const std::optional<ProcessEnd> end =
      await_end(trial.pid, trial.pidfd, Deadline::after_ms(kTrialMs));
  if (!end) {
    ::kill(trial.pid, SIGKILL);
    const bool dead = await_end(trial.pid, trial.pidfd, Deadline::after_ms(kDeathMs)).has_value();
    return Status::error(Code::kDeadlineExceeded,
                         cat(what, "did not end within ", kTrialMs, " ms",
                             dead ? "" : ", and hangs in the kernel: it is left behind"));
  }
  // An end that nobody kept may have been a kill: it proves nothing.
  if (end->code == 0)
    return Status::error(Code::kUnavailable, cat(what, describe_exit(end->code, end->status)));
  if (end->code != CLD_EXITED) {
    return Status::error(Code::kResourceExhausted, cat(what, "was killed by signal ", end->status,
                                                       ": the memory cgroup's limit"));
  }
  if (end->status == 0) return {};
  return Status::error(Code::kResourceExhausted,
                       cat(what, "failed: ", read_all(trial.words.get())));
}

int reserve_trial_main(const char* dev_shm_bytes, const char* memfd_bytes) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // Before anybody else in this cgroup: that is what it is for. Where it may not be written, the
  // trial is still one.
  if (const Fd score(::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC)); score.valid()) {
    [[maybe_unused]] const ssize_t written = ::write(score.get(), "1000", 4);
  }
  const int64_t in_shm = std::atoll(dev_shm_bytes), in_memory = std::atoll(memfd_bytes);
  // Kept until this process ends: both at once is what the rung takes.
  const Result<std::vector<ShmSegment>> kept = reserve_for_library(in_shm, "/dev/shm");
  Status status = kept.status();
  if (status.ok() && in_memory > 0) status = touch(in_memory);
  if (status.ok()) return 0;
  const std::string text = status.to_string(900);
  [[maybe_unused]] const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
  return 1;
}

}  // namespace shoal
