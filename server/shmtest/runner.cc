#include "server/shmtest/runner.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <list>
#include <memory>
#include <numeric>
#include <optional>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/deadline.h"
#include "runtime/base/fd.h"
#include "runtime/base/process_limit.h"
#include "runtime/base/signals.h"
#include "server/shmtest/forbidden.h"
#include "server/shmtest/sandbox.h"

namespace shoal::shmtest {
namespace {

/// After the timeout, pid 1 needs at most this long to notice, inspect and report; after its report
/// it needs less than this to end, together with what is left of the command.
constexpr double kReportSeconds = 10;
/// Once it was told to stop, the keeper gets this long to kill everything and to clean up. If it
/// has not ended by then, it waits for a process that hangs in the kernel, where no signal reaches
/// it. The keeper is then killed, because the other conditions must not wait for that process.
constexpr double kCleanUpSeconds = 10;
/// A keeper that is still there this long after it was killed hangs in the kernel itself.
constexpr double kGiveUpSeconds = 5;

struct Pipe {
  Fd read, write;
};

Result<Pipe> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) == 0) return Pipe{Fd(ends[0]), Fd(ends[1])};
  const int error = errno;
  return Status::error(descriptor_code(error), cat("make a pipe", descriptor_hint(error)), error);
}

Status no_process(int error) {
  return Status::error(Code::kResourceExhausted,
                       cat("start a process", error == EAGAIN ? process_limit() : ""), error);
}

/// One condition while it runs.
class Run {
 public:
  static Result<std::unique_ptr<Run>> start(const Condition& condition, size_t index,
                                            const RunOptions& options,
                                            const std::list<std::unique_ptr<Run>>& others,
                                            const Fd& signals);
  ~Run();

  size_t index() const { return index_; }
  int report_fd() const { return report_.read.get(); }
  int output_fd() const { return output_.read.get(); }  ///< -1 once its end has been read

  void read_report();
  void read_output();
  bool done() const { return !report_.read.valid(); }
  /// Enforces the runner's own deadlines, in case pid 1 or the keeper does not keep theirs.
  void check_time();
  /// Tells the keeper to end everything, and limits how long that may take.
  void stop();
  /// Collects the keeper's exit and the rest of the output. Precondition: done().
  Outcome finish();

 private:
  Run() = default;
  void close_for_child();
  void reap_keeper();

  size_t index_ = 0;
  bool pass_output_ = false;
  pid_t keeper_ = -1;
  Pipe report_, output_, lifeline_;
  const Clock::time_point start_ = Clock::now();
  Deadline stop_at_ = Deadline::infinite(), kill_at_ = Deadline::infinite(),
           give_up_at_ = Deadline::infinite();
  std::string records_;
  Outcome outcome_;
};

Result<std::unique_ptr<Run>> Run::start(const Condition& condition, size_t index,
                                        const RunOptions& options,
                                        const std::list<std::unique_ptr<Run>>& others,
                                        const Fd& signals) {
  std::unique_ptr<Run> run(new Run);
  run->index_ = index;
  run->pass_output_ = options.pass_output;
  run->outcome_.condition = condition.name;
  run->outcome_.accept = options.accept;
  SHOAL_ASSIGN_OR_RETURN(run->report_, make_pipe());
  SHOAL_ASSIGN_OR_RETURN(run->output_, make_pipe());
  SHOAL_ASSIGN_OR_RETURN(run->lifeline_, make_pipe());
  const SandboxArgs args = {condition,
                            options.command,
                            options.timeout_s,
                            options.in_place && condition.control(),
                            options.trace,
                            run->report_.write.get(),
                            run->output_.write.get(),
                            run->lifeline_.read.get()};
  run->keeper_ = ::fork();
  if (run->keeper_ < 0) return no_process(errno);
  if (run->keeper_ == 0) {
    // Close the pipes of other runs, because a copy of their lifeline here would keep those runs
    // alive.
    for (const auto& other : others) other->close_for_child();
    ::close(signals.get());
    run->lifeline_.write.reset();
    run->report_.read.reset();
    run->output_.read.reset();
    ::_exit(run_keeper(args));
  }
  run->report_.write.reset();
  run->output_.write.reset();
  run->lifeline_.read.reset();
  run->stop_at_ = Deadline::after_s(options.timeout_s + kReportSeconds);
  for (const int fd : {run->report_.read.get(), run->output_.read.get()})
    ::fcntl(fd, F_SETFL, O_NONBLOCK);
  return run;
}

void Run::stop() {
  if (!lifeline_.write.valid()) return;
  lifeline_.write.reset();
  kill_at_ = Deadline::after_s(kCleanUpSeconds);
  give_up_at_ = Deadline::after_s(kCleanUpSeconds + kGiveUpSeconds);
}

void Run::close_for_child() {
  report_.read.reset();
  output_.read.reset();
  lifeline_.write.reset();
  keeper_ = -1;
}

Run::~Run() {
  if (keeper_ <= 0) return;
  lifeline_.write.reset();
  reap_keeper();
}

/// Appends the bytes that are available. Returns false at the end.
bool read_some(const Fd& fd, std::string& text) {
  char block[16384];
  const ssize_t got = ::read(fd.get(), block, sizeof block);
  if (got > 0) text.append(block, static_cast<size_t>(got));
  return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

void Run::read_report() {
  if (!read_some(report_.read, records_)) report_.read.reset();
  if (pid1_has_reported(records_)) stop_at_ = sooner(stop_at_, Deadline::after_s(kReportSeconds));
}

void Run::read_output() {
  std::string more;
  if (!read_some(output_.read, more)) output_.read.reset();
  if (pass_output_) write_fully(STDERR_FILENO, more);
  outcome_.output_tail += more;
  if (outcome_.output_tail.size() > kTailBytes) {
    outcome_.output_tail.erase(0, outcome_.output_tail.size() - kTailBytes);
  }
}

void Run::check_time() {
  if (stop_at_.passed() && lifeline_.write.valid()) {
    if (!pid1_has_reported(records_)) {
      outcome_.end = End::kHung;
      outcome_.seconds = seconds_since(start_);
    }
    stop();
  }
  if (!kill_at_.passed() || keeper_ <= 0) return;
  outcome_.left_behind = true;
  ::kill(keeper_, SIGKILL);
  if (give_up_at_.passed()) report_.read.reset();
}

/// Waits for the keeper, which is dead or dies soon, unless the run was given up.
void Run::reap_keeper() {
  const int options = give_up_at_.passed() ? WNOHANG : 0;
  while (::waitpid(keeper_, nullptr, options) < 0 && errno == EINTR) {
  }
  keeper_ = -1;
}

Outcome Run::finish() {
  lifeline_.write.reset();
  // Every process of the namespace is dead, so the pipe already holds all the remaining output.
  for (int blocks = 0; output_.read.valid() && blocks < 64; ++blocks) {
    const int fd = output_.read.get();
    pollfd ready = {fd, POLLIN, 0};
    if (::poll(&ready, 1, 0) <= 0) break;
    read_output();
  }
  reap_keeper();
  apply_records(records_, outcome_);
  return std::move(outcome_);
}

/// Receives SIGINT, SIGTERM and SIGHUP through a descriptor while it lives.
class Signals {
 public:
  Signals() {
    const sigset_t set = not_ignored({SIGINT, SIGTERM, SIGHUP});
    ::sigprocmask(SIG_BLOCK, &set, &before_);
    fd_.reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  ~Signals() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }

  const Fd& fd() const { return fd_; }
  /// The signal that has arrived, or 0.
  int take() const {
    signalfd_siginfo info{};
    return ::read(fd_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo)
                                                                : 0;
  }

 private:
  sigset_t before_{};
  Fd fd_;
};

/// The order in which conditions start: the control, then the others as they stand.
std::vector<size_t> control_first(const std::vector<Condition>& conditions) {
  std::vector<size_t> order(conditions.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_partition(order.begin(), order.end(),
                        [&](size_t index) { return conditions[index].control(); });
  return order;
}

class Matrix {
 public:
  Matrix(const std::vector<Condition>& conditions, const RunOptions& options,
         const std::function<void(const Outcome&)>& ended)
      : conditions_(conditions),
        options_(options),
        ended_(ended),
        outcomes_(conditions.size()),
        order_(control_first(conditions)) {}

  Result<RunResult> run() {
    while (true) {
      SHOAL_RETURN_IF_ERROR(start_more());
      if (runs_.empty()) break;
      wait();
      collect();
    }
    SHOAL_RETURN_IF_ERROR(forbidden_);
    RunResult result;
    result.stopped_by = stopped_by_;
    result.control_failed = control_failed_;
    for (std::optional<Outcome>& outcome : outcomes_) {
      if (outcome) result.outcomes.push_back(std::move(*outcome));
    }
    return result;
  }

 private:
  Status start_more() {
    if (!runs_.empty() && conditions_[runs_.front()->index()].control()) return {};
    while (!no_more_ && next_ < conditions_.size() &&
           runs_.size() < static_cast<size_t>(options_.jobs)) {
      const size_t index = order_[next_];
      SHOAL_ASSIGN_OR_RETURN(std::unique_ptr<Run> run,
                             Run::start(conditions_[index], index, options_, runs_, signals_.fd()));
      runs_.push_back(std::move(run));
      ++next_;
      if (conditions_[index].control()) break;  // nothing runs beside it
    }
    return {};
  }

  void wait() {
    std::vector<pollfd> waits = {{signals_.fd().get(), POLLIN, 0}};
    for (const auto& run : runs_) {
      waits.push_back({run->report_fd(), POLLIN, 0});
      waits.push_back({run->output_fd(), POLLIN, 0});  // poll skips an fd of -1
    }
    ::poll(waits.data(), waits.size(), RunningClock::kLookMs);
    if (waits[0].revents != 0) stop(signals_.take());
    size_t i = 1;
    for (const auto& run : runs_) {
      if (waits[i++].revents != 0) run->read_report();
      if (waits[i++].revents != 0) run->read_output();
      run->check_time();
    }
  }

  void stop(int signal) {
    if (signal == 0) return;
    stopped_by_ = signal;
    no_more_ = true;
    for (const auto& run : runs_) run->stop();
  }

  void collect() {
    for (auto run = runs_.begin(); run != runs_.end();) {
      if (!(*run)->done()) {
        ++run;
        continue;
      }
      const size_t index = (*run)->index();
      Outcome outcome = (*run)->finish();
      run = runs_.erase(run);
      if (stopped_by_ != 0 && outcome.end == End::kBroken) continue;  // we ended it ourselves
      if (outcome.end == End::kForbidden) {
        no_more_ = true;
        forbidden_ = why_forbidden(outcome);
        continue;
      }
      if (options_.fail_fast && outcome.failed()) no_more_ = true;
      if (conditions_[index].control() && outcome.failed()) no_more_ = control_failed_ = true;
      ended_(outcome);
      outcomes_[index] = std::move(outcome);
    }
  }

  const std::vector<Condition>& conditions_;
  const RunOptions& options_;
  const std::function<void(const Outcome&)>& ended_;
  const Signals signals_;
  std::list<std::unique_ptr<Run>> runs_;
  std::vector<std::optional<Outcome>> outcomes_;
  const std::vector<size_t> order_;  // in which the conditions start, as indices
  size_t next_ = 0;                  // in order_
  bool control_failed_ = false;
  bool no_more_ = false;
  int stopped_by_ = 0;
  Status forbidden_;
};

}  // namespace

Result<RunResult> run_matrix(const std::vector<Condition>& matrix, const RunOptions& options,
                             const std::function<void(const Outcome&)>& ended) {
  return Matrix(matrix, options, ended).run();
}

}  // namespace shoal::shmtest
