#include "runtime/transport/facts/cma_facts.h"

#include <cerrno>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include "runtime/base/fd.h"
#include "runtime/transport/facts/child_probe.h"

namespace shoal {
namespace {

constexpr uint64_t kThere = 0x73686f616c636d61;
constexpr int64_t kDeadlineMs = 200;

/// The owner writes this after the fork, so that a process that finds it has read the owner's
/// memory and not its own copy.
volatile uint64_t read_word;

/// Allows the read as a worker of the cma rung does: under Yama scope 1 the process that is named
/// here and its descendants may read this one's memory.
[[noreturn]] void own(int ready) {
  ::prctl(PR_SET_PTRACER, static_cast<unsigned long>(::getppid()), 0, 0, 0);
  read_word = kThere;
  [[maybe_unused]] const ssize_t wrote = ::write(ready, "", 1);
  for (;;) ::pause();
}

int read_from(pid_t owner, int ready) {
  char byte;
  if (::read(ready, &byte, 1) != 1) return ESRCH;
  uint64_t copy = 0;
  const iovec local{&copy, sizeof copy},
      remote{const_cast<uint64_t*>(&read_word), sizeof read_word};
  const ssize_t got = ::process_vm_readv(owner, &local, 1, &remote, 1, 0);
  if (got < 0) return errno;
  return got == sizeof copy && copy == kThere ? 0 : EIO;
}

/// Returns the errno of one child reading another's memory; 0: it worked. If the read could not be
/// tried, or was not answered in time, returns the errno of that.
int read_a_sibling() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return errno;
  const Fd read_end(ends[0]);
  Fd write_end(ends[1]);
  const pid_t owner = fork_probe([&] { own(write_end.get()); });
  if (owner < 0) return errno;
  write_end.reset();  // so that the owner's death is the end of the pipe
  const ChildAnswer answer =
      ask_child([&] { return read_from(owner, read_end.get()); }, kDeadlineMs);
  end_probe(owner);
  switch (answer.end) {
    case ChildAnswer::End::kAnswered:
    case ChildAnswer::End::kNotStarted:
      return answer.value;
    case ChildAnswer::End::kKilled:
      return EPERM;  // seccomp may kill instead of refusing
    case ChildAnswer::End::kLate:
      return ETIMEDOUT;
  }
  return EIO;
}

/// The errors by which a kernel or a seccomp filter forbids the read.
bool is_prohibition(int error) {
  return error == EPERM || error == EACCES || error == ENOSYS;
}

}  // namespace

CmaFacts cma_facts(const SystemPaths& paths, bool attempt) {
  CmaFacts facts;
  facts.dumpable = ::prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == 1;
  const auto scope = number_in(paths.root + "/proc/sys/kernel/yama/ptrace_scope");
  if (scope && *scope >= 0 && *scope <= 3) facts.yama_scope = static_cast<int>(*scope);
  const auto seccomp = number_after(text_of(paths.root + "/proc/self/status"), "Seccomp:");
  if (seccomp && *seccomp >= 0 && *seccomp <= 2) facts.seccomp = static_cast<int>(*seccomp);
  if (!attempt) return facts;
  const int error = read_a_sibling();
  // A machine that is too busy to answer or to fork has not forbidden anything. Opening the
  // transport and its self-test then show whether it works.
  facts.tried = error == 0 || is_prohibition(error);
  if (facts.tried) facts.error = error;
  return facts;
}

}  // namespace shoal
