#include "runtime/supervisor/gpu_probe.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>

#include "runtime/base/deadline.h"
#include "runtime/base/fd.h"
#include "runtime/base/log.h"
#include "runtime/supervisor/process_end.h"

extern char** environ;

namespace shoal {
namespace {

/// Beyond all that a machine of many devices has to say.
constexpr size_t kMostText = size_t{4} << 20;

struct Prober {
  pid_t pid = -1;
  Fd pidfd;
  Fd words;
};

Result<Prober> start(const GpuProbeRequest& request) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return Status::error(Code::kResourceExhausted, "make a pipe", errno);
  Prober prober{-1, Fd(), Fd(ends[0])};
  const Fd write_end(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, write_end.get(), STDOUT_FILENO);
  std::string module = request.cuda_module, nccl = request.nccl_library;
  std::string ranks = cat(request.ranks), per_gpu = cat(request.ranks_per_gpu);
  char program[] = "shoal", command[] = "gpu-facts";
  char* const argv[] = {program,      command,        module.data(), nccl.data(),
                        ranks.data(), per_gpu.data(), nullptr};
  const int error = ::posix_spawn(&prober.pid, "/proc/self/exe", &actions, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return Status::error(Code::kResourceExhausted, "start a process", error);
  prober.pidfd.reset(static_cast<int>(::syscall(SYS_pidfd_open, prober.pid, 0)));
  return prober;
}

/// Takes over every whole line of what has come; what is left of the last one stays. False: no line
/// of ours.
bool take_lines(std::string* text, GpuFindings* findings) {
  size_t begin = 0;
  for (size_t end; (end = text->find('\n', begin)) != std::string::npos; begin = end + 1) {
    if (const Status taken = findings->take(std::string_view(*text).substr(begin, end - begin));
        !taken.ok()) {
      findings->facts->error_at = "probe";
      findings->facts->error = taken.to_string();
      return false;
    }
  }
  text->erase(0, begin);
  return true;
}

/// Until it closes its end, or the deadline. True: in time.
bool read_findings(const Prober& prober, Deadline deadline, GpuFindings* findings) {
  std::string text;
  char chunk[4096];
  while (!findings->done && text.size() < kMostText) {
    pollfd ready{prober.words.get(), POLLIN, 0};
    const int got = ::poll(&ready, 1, deadline.remaining_ms());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    const ssize_t bytes = ::read(prober.words.get(), chunk, sizeof chunk);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return true;
    text.append(chunk, static_cast<size_t>(bytes));
    if (!take_lines(&text, findings)) return true;
  }
  return true;
}

/// Kills it and takes its end from the kernel; says how it ended by itself, or nothing where it was
/// killed here.
std::string end(const Prober& prober, bool in_time) {
  // Its last line is out, or its pipe closed: it is about to leave, and how it leaves may be the
  // answer.
  if (in_time) {
    const auto left = await_end(prober.pid, prober.pidfd, Deadline::after_ms(kDeathMs));
    if (left) return describe_exit(left->code, left->status);
  }
  ::kill(prober.pid, SIGKILL);
  if (!await_end(prober.pid, prober.pidfd, Deadline::after_ms(kDeathMs))) {
    log_warning(cat("the process ", prober.pid,
                    " that looked at the GPUs hangs in the kernel and cannot be ended"));
  }
  return "";
}

/// It did not come to its end: what it was at gets the blame.
void blame(const GpuFindings& findings, const std::string& why) {
  GpuFacts* facts = findings.facts;
  if (!facts->error.empty()) return;
  const auto trying =
      std::find_if(facts->verdicts.begin(), facts->verdicts.end(),
                   [](const GpuPeerVerdict& verdict) { return verdict.verdict == "hung"; });
  if (trying != facts->verdicts.end()) {
    if (!why.empty()) trying->verdict = cat("failed: the process that tried it ", why);
    return;
  }
  if (!facts->devices.empty()) {
    if (facts->nccl_version == 0) facts->nccl_error = cat("a try to ", findings.doing, " ", why);
    return;
  }
  facts->error_at = "probe";
  facts->error = cat("a try to ", findings.doing, " ", why);
}

/// Every pair has a verdict.
void complete_verdicts(GpuFacts* facts) {
  for (const auto& [from, to] : gpu_pairs_to_try(*facts)) {
    const auto same = [from = from, to = to](const GpuPeerVerdict& v) {
      return v.from == from && v.to == to;
    };
    if (std::none_of(facts->verdicts.begin(), facts->verdicts.end(), same)) {
      facts->verdicts.push_back({from, to, "not tried"});
    }
  }
}

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", seconds);
  return text;
}

}  // namespace

void probe_gpus(const GpuProbeRequest& request, GpuFacts* facts) {
  facts->asked = true;
  facts->ranks = request.ranks;
  facts->ranks_per_gpu = request.ranks_per_gpu;
  const Result<Prober> prober = start(request);
  if (!prober.ok()) {
    facts->error_at = "probe";
    facts->error = cat("no process to look at the GPUs: ", prober.status().to_string());
    return;
  }
  GpuFindings findings{facts, "look at the GPUs"};
  const bool in_time = read_findings(*prober, Deadline::after_s(request.deadline_s), &findings);
  const std::string ended = end(*prober, in_time);
  if (!in_time) {
    const bool pair_hung =
        std::any_of(facts->verdicts.begin(), facts->verdicts.end(),
                    [](const GpuPeerVerdict& verdict) { return verdict.verdict == "hung"; });
    blame(findings, pair_hung ? "" : cat("did not end within ", seconds_text(request.deadline_s)));
  } else if (!findings.done) {
    blame(findings, ended.empty() ? "did not end" : ended);
  }
  complete_verdicts(facts);
}

}  // namespace shoal
