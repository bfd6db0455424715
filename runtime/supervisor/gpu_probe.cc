#include "runtime/supervisor/gpu_probe.h"

#include <algorithm>
#include <cerrno>
#include <poll.h>
#include <unistd.h>

#include "runtime/base/deadline.h"
#include "runtime/base/fd.h"
#include "runtime/base/log.h"
#include "runtime/base/number_text.h"
#include "runtime/supervisor/gpu_findings.h"
#include "runtime/supervisor/helper_process.h"
#include "runtime/supervisor/process_end.h"

namespace shoal {
namespace {

using Outcome = GpuPeerVerdict::Outcome;

/// More than a machine with many devices ever reports.
constexpr size_t kMostText = size_t{4} << 20;

/// Takes every complete line out of the text and leaves an incomplete last one in it. False: a line
/// is not one of gpu_findings.h.
bool take_lines(std::string* text, GpuFindings* findings) {
  size_t begin = 0;
  for (size_t end; (end = text->find('\n', begin)) != std::string::npos; begin = end + 1) {
    if (const Status taken = findings->take(std::string_view(*text).substr(begin, end - begin));
        !taken.ok()) {
      findings->facts->error_at = GpuErrorAt::kProbe;
      findings->facts->error = taken.plain_text();
      return false;
    }
  }
  text->erase(0, begin);
  return true;
}

/// Reads until all is reported, or the process closes its end or writes something that is not a
/// finding. False: the deadline came first.
bool read_findings(const HelperProcess& prober, Deadline deadline, GpuFindings* findings) {
  std::string text;
  char chunk[4096];
  while (!findings->done && text.size() < kMostText) {
    pollfd ready{prober.output.get(), POLLIN, 0};
    const int got = ::poll(&ready, 1, deadline.remaining_ms());
    if (got < 0 && errno != EINTR) return false;
    if (got <= 0 && deadline.passed()) return false;
    if (got <= 0) continue;
    const ssize_t bytes = ::read(prober.output.get(), chunk, sizeof chunk);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return true;
    text.append(chunk, static_cast<size_t>(bytes));
    if (!take_lines(&text, findings)) return true;
  }
  return true;
}

/// Ends and reaps the process. Returns how it ended by itself, or nothing if it was killed here.
std::string end(const HelperProcess& prober, bool in_time) {
  // Its last line has come or its pipe is closed, so it is about to exit, and how it exits may
  // explain what went wrong.
  if (in_time) {
    const auto left = await_end(prober.pid, prober.pidfd, Deadline::after_ms(kDeathMs));
    if (left) return describe_exit(left->code, left->status);
  }
  if (!kill_helper(prober)) {
    log_warning(cat("the process ", prober.pid,
                    " that looked at the GPUs hangs in the kernel and cannot be ended"));
  }
  return "";
}

/// The probe did not finish; blame the step it was executing.
void blame(const GpuFindings& findings, const std::string& why) {
  GpuFacts* facts = findings.facts;
  if (!facts->error.empty()) return;
  const auto trying =
      std::find_if(facts->verdicts.begin(), facts->verdicts.end(),
                   [](const GpuPeerVerdict& verdict) { return verdict.outcome == Outcome::kHung; });
  if (trying != facts->verdicts.end()) {
    if (!why.empty()) {
      trying->outcome = Outcome::kFailed;
      trying->detail = cat("the process that tried it ", why);
    }
    return;
  }
  if (!facts->devices.empty()) {
    // Memory that could not be asked for stays unknown.
    if (facts->nccl_version == 0 && facts->nccl_error.empty())
      facts->nccl_error = cat("a try to ", findings.doing, " ", why);
    return;
  }
  facts->error_at = GpuErrorAt::kProbe;
  facts->error = cat("a try to ", findings.doing, " ", why);
}

/// Gives every pair that has no verdict yet the verdict kNotTried.
void complete_verdicts(GpuFacts* facts) {
  for (const auto& [from, to] : gpu_pairs_to_try(*facts)) {
    const auto same = [from = from, to = to](const GpuPeerVerdict& v) {
      return v.from == from && v.to == to;
    };
    if (std::none_of(facts->verdicts.begin(), facts->verdicts.end(), same)) {
      facts->verdicts.push_back({from, to, Outcome::kNotTried});
    }
  }
}

}  // namespace

void probe_gpus(const GpuProbeRequest& request, GpuFacts* facts) {
  facts->asked = true;
  facts->ranks = request.ranks;
  facts->ranks_per_gpu = request.ranks_per_gpu;
  std::vector<std::string> words = {"gpu-facts", request.cuda_module, request.nccl_library,
                                    cat(request.ranks), cat(request.ranks_per_gpu)};
  words.insert(words.end(), request.cublas_libraries.begin(), request.cublas_libraries.end());
  const Result<HelperProcess> prober = start_helper(std::move(words));
  if (!prober.ok()) {
    facts->error_at = GpuErrorAt::kProbe;
    facts->error = cat("no process to look at the GPUs: ", prober.status().plain_text());
    return;
  }
  GpuFindings findings{facts, "look at the GPUs"};
  const bool in_time = read_findings(*prober, Deadline::after_s(request.deadline_s), &findings);
  const std::string ended = end(*prober, in_time);
  if (!in_time) {
    const bool pair_hung = std::any_of(
        facts->verdicts.begin(), facts->verdicts.end(),
        [](const GpuPeerVerdict& verdict) { return verdict.outcome == Outcome::kHung; });
    blame(findings,
          pair_hung ? "" : cat("did not end within ", with_digits(request.deadline_s, 3), " s"));
  } else if (!findings.done) {
    blame(findings, ended.empty() ? "did not end" : ended);
  }
  complete_verdicts(facts);
}

}  // namespace shoal
