#include "server/commands/batch_report.h"

#include <chrono>

#include "runtime/base/counted.h"
#include "runtime/base/log.h"
#include "runtime/base/number_text.h"
#include "server/cli/command_io.h"

namespace shoal {
namespace {

/// A batch that takes less says little about the speed of a longer one.
constexpr double kLeastSeconds = 1;

std::string rate(int64_t tokens, double seconds) {
  if (tokens == 0 || seconds <= 0) return "";
  const double per_second = static_cast<double>(tokens) / seconds;
  return cat(with_decimals(per_second, per_second < 10 ? 1 : 0), " tokens/s");
}

}  // namespace

std::string summary(const BatchTotals& totals) {
  const std::string speed =
      totals.seconds < kLeastSeconds ? "" : rate(totals.generated_tokens, totals.seconds);
  const int64_t done = totals.requests - totals.failed;
  return cat(counted(totals.requests, "request"),
             totals.failed > 0 ? cat(" (", done, " done, ", totals.failed, " failed)") : "", ", ",
             counted(totals.prompt_tokens, "prompt token"), ", ",
             counted(totals.generated_tokens, "generated token"), " in ",
             with_digits(totals.seconds, 3), " s (without the start)", speed.empty() ? "" : ": ",
             speed);
}

std::string answers_text(int64_t answered, int64_t lines) {
  return cat(answered, " of ", counted(lines, "line"),
             answered == 1 || lines == 1 ? " has an answer" : " have an answer");
}

BatchReport::BatchReport(int64_t requests) {
  totals_.requests = requests;
}

double BatchReport::seconds() const {
  return std::chrono::duration<double>(Clock::now() - begun_).count();
}

void BatchReport::show(int64_t ended, int64_t generated_tokens) {
  const std::string speed = rate(generated_tokens, seconds());
  show_progress_line(
      cat(ended, " of ", counted(totals_.requests, "request"), speed.empty() ? "" : ", ", speed));
}

void BatchReport::hide() {
  show_progress_line("");
}

void BatchReport::count(const Completion& completion) {
  totals_.prompt_tokens += completion.end.prompt_tokens;
  totals_.generated_tokens += completion.end.completion_tokens;
}

void BatchReport::finish() {
  hide();
  totals_.seconds = seconds();
  say_done("generate", summary(totals_));
}

}  // namespace shoal
