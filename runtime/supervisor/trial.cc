#include "runtime/supervisor/trial.h"

#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <signal.h>
#include <string>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "runtime/base/deadline.h"
#include "runtime/base/fd.h"
#include "runtime/base/quantity.h"
#include "runtime/memory/shm_segment.h"
#include "runtime/supervisor/helper_process.h"
#include "runtime/supervisor/process_end.h"
#include "runtime/transport/needs/reservation.h"

namespace shoal {
namespace {

constexpr int64_t kTrialMs = 10'000;

/// Touches private pages, which the cgroup charges as it charges a memfd's.
Status touch(int64_t bytes) {
  void* data = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (data == MAP_FAILED)
    return Status::error(Code::kResourceExhausted, cat("touch ", bytes_text(bytes)), errno);
  return {};
}

std::string read_all(int fd) {
  std::string text;
  char chunk[512];
  for (ssize_t n; (n = ::read(fd, chunk, sizeof chunk)) > 0;)
    text.append(chunk, static_cast<size_t>(n));
  return text;
}

}  // namespace

bool near_memory_limit(const ShmNeed& need, const HostFacts& facts, const BudgetOptions& options) {
  const int64_t available = facts.cgroup.available_bytes();
  if (available < 0 || need.memory_bytes() == 0) return false;
  // If the kernel ends a whole group at once, no process of it is disposable, so that the
  // arithmetic alone has to do.
  for (const CgroupLevel& level : facts.cgroup.levels) {
    if (level.oom_group) return false;
  }
  return available - options.reserved_bytes < 2 * need.memory_bytes() + kSafeDistanceBytes;
}

Status try_in_disposable_process(const ShmNeed& need) {
  SHOAL_ASSIGN_OR_RETURN(const HelperProcess trial,
                         start_helper({"reserve-trial", cat(need.dev_shm_bytes()),
                                       cat(need.memory_bytes() - need.dev_shm_bytes())}));
  const std::string what = cat("a trial of reserving ", bytes_text(need.memory_bytes()), " ");
  const std::optional<ProcessEnd> end =
      await_end(trial.pid, trial.pidfd, Deadline::after_ms(kTrialMs));
  if (!end) {
    const bool dead = kill_helper(trial);
    return Status::error(Code::kDeadlineExceeded,
                         cat(what, "did not end within ", kTrialMs, " ms",
                             dead ? "" : ", and hangs in the kernel: it is left behind"));
  }
  // The exit status was lost (SIGCHLD ignored), so we cannot tell whether it was killed.
  if (end->code == 0)
    return Status::error(Code::kUnavailable, cat(what, describe_exit(end->code, end->status)));
  if (end->code != CLD_EXITED) {
    return Status::error(Code::kResourceExhausted, cat(what, "was killed by signal ", end->status,
                                                       ": the memory cgroup's limit"));
  }
  if (end->status == 0) return {};
  return Status::error(Code::kResourceExhausted,
                       cat(what, "failed: ", read_all(trial.output.get())));
}

int reserve_trial_main(const char* dev_shm_bytes, const char* memfd_bytes) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The kernel should kill this process before any other in this cgroup. If the score cannot be
  // written, the trial is made all the same.
  if (const Fd score(::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC)); score.valid()) {
    [[maybe_unused]] const ssize_t written = ::write(score.get(), "1000", 4);
  }
  const int64_t in_shm = std::atoll(dev_shm_bytes), in_memory = std::atoll(memfd_bytes);
  // Kept until this process ends, because the rung takes both at once.
  const Result<std::vector<ShmSegment>> kept = reserve_for_library(in_shm, "/dev/shm");
  Status status = kept.status();
  if (status.ok() && in_memory > 0) status = touch(in_memory);
  if (status.ok()) return 0;
  const std::string text = status.plain_text(900);  // it becomes a part of the caller's status
  [[maybe_unused]] const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
  return 1;
}

}  // namespace shoal
