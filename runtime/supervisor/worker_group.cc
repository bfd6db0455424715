#include "runtime/supervisor/worker_group.h"

#include <algorithm>
#include <optional>
#include <poll.h>

#include "runtime/base/counted.h"
#include "runtime/base/log.h"
#include "runtime/base/quantity.h"
#include "runtime/supervisor/group_birth.h"
#include "runtime/supervisor/phase_news.h"
#include "runtime/supervisor/rank_segments.h"
#include "runtime/supervisor/start_watch.h"
#include "runtime/supervisor/step_watch.h"
#include "runtime/transport/facts/oom_kills.h"

namespace shoal {
namespace {

constexpr int64_t kSendTimeoutMs = 10'000;
constexpr int64_t kSoonMs = 150;  ///< in which a death shows that has already happened
constexpr int64_t kLookForDumpsMs = 500;
constexpr int64_t kGivenUpMs = 1'000;  ///< for a step to end by itself although nobody waits for it
constexpr int64_t kGoodbyeMs = 2'000;  ///< for workers to exit by themselves after Shutdown

}  // namespace

struct WorkerGroup::Impl {
  std::vector<RankProcess> workers;
  std::vector<std::string> ready;
  std::optional<StepDone> result;
  GroupPhase phase;
  WorkerGroupOptions options;
  StartWatch start_watch{0, 0, DeviceKind::kCpu};
  StepWatch step_watch{0};
  Deadline look_for_dumps = Deadline::after_ms(kLookForDumpsMs);
  OomKills kills;                   // the counts before the group was started, or when it had
  std::optional<Failure> failed;    // once the group has ended
  std::vector<SegmentId> segments;  // files in /dev/shm that the ranks' libraries were seen to make
  std::function<void(int rank, pid_t process)> on_left_behind;
  ~Impl() { end_all(); }

  std::optional<Failure> wait_until_started(const StartControl& control);
  void report_progress(const StartControl& control) const;
  bool poll_once(Deadline deadline);
  bool catch_up() { return poll_once(Deadline::after_ms(0)); }
  bool read_messages(RankProcess& worker);
  bool take(RankProcess& worker, RankMessage message);
  void exchange();
  bool started(const RankProcess& worker, bool transport_only) const;
  Failure fail();
  Failure time_out(const StepVerdict& verdict);
  Failure silent_for(double seconds) { return time_out({StepVerdict::Why::kSilent, seconds}); }
  std::optional<Failure> judge_step();
  Failure give_up();
  void record_segments(Look look);
  void close_descriptors();
  void end_all();
  void say_goodbye();
};

/// Waits once for a message or the end of any worker. True: a worker has ended or failed.
bool WorkerGroup::Impl::poll_once(Deadline deadline) {
  std::vector<pollfd> fds;
  for (const RankProcess& worker : workers) {
    fds.push_back({worker.channel_open ? worker.channel.fd() : -1, POLLIN, 0});
    fds.push_back({worker.reaped ? -1 : worker.process.pidfd.get(), POLLIN, 0});
  }
  if (::poll(fds.data(), fds.size(), poll_ms(workers, deadline)) < 0) return false;
  bool trouble = false;
  for (size_t i = 0; i < workers.size(); ++i) {
    // Messages come before the exit, because a worker that fails reports why and then exits.
    if (fds[2 * i].revents != 0) trouble |= read_messages(workers[i]);
    if ((fds[2 * i + 1].revents != 0 || workers[i].unwatched()) && workers[i].reap()) {
      trouble = true;
      if (workers[i].channel_open) read_messages(workers[i]);  // what it sent between the two looks
    }
  }
  if (!look_for_dumps.passed()) return trouble;
  trouble |= end_dumps(workers);
  look_for_dumps = Deadline::after_ms(kLookForDumpsMs);
  return trouble;
}

bool WorkerGroup::Impl::read_messages(RankProcess& worker) {
  for (;;) {
    Result<std::string> frame = worker.channel.receive(Deadline::after_ms(0));
    const Code code = frame.status().code();
    worker.channel_open = code == Code::kOk || code == Code::kDeadlineExceeded;
    // After kUnavailable its exit follows, and says more.
    if (code == Code::kDeadlineExceeded || code == Code::kUnavailable) return false;
    worker.heard_at = RunningClock::now();
    Result<RankMessage> message = frame.ok() ? decode_rank_message(*frame) : frame.status();
    if (!message.ok()) {
      worker.failure = RankFailure{message.status(), {}, Fault::kOwn};
      return true;
    }
    if (take(worker, std::move(*message))) return true;
  }
}

/// True: the worker has failed.
bool WorkerGroup::Impl::take(RankProcess& worker, RankMessage message) {
  if (auto* progress = std::get_if<LoadProgress>(&message)) {
    worker.progress = *progress;
  } else if (auto* is_ready = std::get_if<Ready>(&message)) {
    worker.ready = std::move(*is_ready);
    worker.enter(Phase::kIdle);
  } else if (auto* step = std::get_if<StepDone>(&message)) {
    result = std::move(*step);
  } else if (auto* begun = std::get_if<PhaseBegun>(&message)) {
    worker.enter(begun->phase);
    worker.compiles = begun->compiles;
  } else if (auto* part = std::get_if<ExchangePart>(&message)) {
    worker.part = std::move(part->part);
    exchange();
  } else if (auto* verified = std::get_if<TransportVerified>(&message)) {
    worker.verified = *verified;
  } else if (auto* progress_of_step = std::get_if<StepProgress>(&message)) {
    if (worker.take(*progress_of_step)) step_watch.moved();
  } else if (auto* times = std::get_if<StepTimes>(&message)) {
    worker.add(*times);
  } else if (auto* own = std::get_if<RankFailure>(&message)) {
    worker.failure = std::move(*own);
    return true;
  }
  return false;
}

/// Once every rank has sent its part, all ranks get all parts.
void WorkerGroup::Impl::exchange() {
  if (!std::all_of(workers.begin(), workers.end(),
                   [](const RankProcess& w) { return w.part.has_value(); }))
    return;
  ExchangeAll all;
  for (RankProcess& worker : workers) {
    all.parts.push_back(std::move(*worker.part));
    worker.part.reset();
  }
  const std::string frame = encode_front_message(all);
  // A send that fails means that the worker has died: the next poll finds out how.
  for (RankProcess& worker : workers)
    (void)worker.channel.send(frame, Deadline::after_ms(kSendTimeoutMs));
}

/// Ends the group because a rank failed. The failure is kept for every later call.
Failure WorkerGroup::Impl::fail() {
  const Deadline evidence = Deadline::after_ms(options.evidence_ms);
  const Deadline died_soon = Deadline::after_ms(std::min(options.evidence_ms, kSoonMs));
  while (!evidence.passed() && more_evidence_may_come(workers, died_soon.passed()))
    poll_once(evidence);
  failed = explain_failure(workers, phase, oom_kills(options.system).may_have_grown_since(kills));
  end_all();
  return *failed;
}

/// Asks the ranks where they are, then ends the group because nothing has moved for too long.
Failure WorkerGroup::Impl::time_out(const StepVerdict& verdict) {
  const std::string explain = encode_front_message(Explain{});
  for (RankProcess& worker : workers) (void)worker.channel.send(explain, Deadline::after_ms(0));
  const Deadline deadline = Deadline::after_ms(options.explain_ms);
  // A rank that is stopped or frozen cannot answer.
  const auto quiet = [](const RankProcess& w) {
    return !w.failure && !w.reaped && w.held_up().empty();
  };
  while (!deadline.passed() && std::any_of(workers.begin(), workers.end(), quiet))
    poll_once(deadline);
  failed = verdict.rank < 0 ? explain_silence(workers, phase, verdict.seconds)
                            : explain_overrun(workers, phase, verdict);
  end_all();
  return *failed;
}

Failure WorkerGroup::Impl::give_up() {
  const std::string what = cat("the ranks were given up in phase ", phase.text_of(phase.phase));
  failed = Failure{Status::error(Code::kCancelled, what), phase.phase, kFrontRank, Fault::kGivenUp};
  end_all();
  return *failed;
}

/// Records the files that the living ranks hold open, because a dead rank shows none.
void WorkerGroup::Impl::record_segments(Look look) {
  const auto held = segments_held_by(pids_of_living(workers), look);
  segments.insert(segments.end(), held.begin(), held.end());
}

/// The next group needs the descriptors of ranks that have ended.
void WorkerGroup::Impl::close_descriptors() {
  for (RankProcess& worker : workers) {
    worker.channel = Channel(Fd());
    worker.channel_open = false;
    if (worker.reaped) worker.process.pidfd.reset();
  }
}

/// Kills and reaps what is left, and removes what a killed rank's libraries leave in /dev/shm: only
/// those files, and only if nobody else has them open.
void WorkerGroup::Impl::end_all() {
  const auto over = [](const RankProcess& w) { return w.reaped || w.left_behind; };
  if (!std::all_of(workers.begin(), workers.end(), over)) {
    record_segments(Look::kStopped);
    end_ranks(workers, on_left_behind);
  }
  close_descriptors();
  if (segments.empty()) return;
  if (const auto swept = remove_recorded("/dev/shm", segments);
      swept.ok() && !swept->removed.empty()) {
    log_info(cat("removed ", counted(swept->removed.size(), "file"), ", ", bytes_text(swept->bytes),
                 ", that ended ranks had left in /dev/shm"),
             {{"event", "files_removed"},
              {"files", static_cast<int64_t>(swept->removed.size())},
              {"removed_bytes", swept->bytes}});
  }
  segments.clear();
}

void WorkerGroup::Impl::say_goodbye() {
  for (RankProcess& worker : workers)
    if (!worker.reaped)
      (void)worker.channel.send(encode_front_message(Shutdown{}), Deadline::after_ms(100));
  const Deadline deadline = Deadline::after_ms(kGoodbyeMs);
  // A stopped worker will not exit. A traced one may: LeakSanitizer stops its process like that.
  const auto may_leave = [](const RankProcess& w) { return !w.reaped && w.state() != 'T'; };
  while (!deadline.passed() && std::any_of(workers.begin(), workers.end(), may_leave))
    poll_once(Deadline::after_ms(std::min(deadline.remaining_ms(), 100)));
}

bool WorkerGroup::Impl::started(const RankProcess& worker, bool transport_only) const {
  return transport_only ? worker.verified.has_value() : worker.ready.has_value();
}

void WorkerGroup::Impl::report_progress(const StartControl& control) const {
  if (!control.on_progress) return;
  const auto has_begun = [](const RankProcess& w) { return w.progress.bytes_total > 0; };
  // If the total grew later, the progress would run backwards.
  if (!std::all_of(workers.begin(), workers.end(), has_begun)) return;
  LoadProgress sum;
  for (const RankProcess& worker : workers) {
    sum.bytes_done += worker.progress.bytes_done;
    sum.bytes_total += worker.progress.bytes_total;
  }
  control.on_progress(sum);
}

std::optional<Failure> WorkerGroup::Impl::wait_until_started(const StartControl& control) {
  PhaseNews news(options.start.transport_only);
  for (;;) {
    const bool given_up = control.given_up && control.given_up();
    // A rank is not silent if its message lies unread in the socket, so read before judging.
    if (catch_up()) return fail();
    report_progress(control);  // after reading, so that a load that is over at once shows 100 % too
    news.tell(workers, control);
    start_watch.look(workers);
    double silence = 0;  // of the rank that has been silent for longest
    bool done = true;
    for (const RankProcess& worker : workers) {
      if (started(worker, options.start.transport_only)) continue;
      done = false;
      phase.phase = worker.phase;
      if (const auto seconds = start_watch.too_silent(worker)) return silent_for(*seconds);
      silence = std::max(silence, seconds_since(worker.heard_at));
    }
    if (done) break;
    if (given_up) return give_up();
    if (control.deadline.passed()) return silent_for(silence);
    if (poll_once(Deadline::after_ms(RunningClock::kLookMs))) return fail();
  }
  // What was killed while they loaded has nothing to do with a later death, unless it is one of
  // them: the kernel counts first.
  const OomKills so_far = oom_kills(options.system);
  if (catch_up()) return fail();
  kills = so_far;
  for (const RankProcess& worker : workers)
    if (worker.ready) ready.push_back(worker.ready->about);
  phase = {false, Phase::kIdle};
  record_segments(Look::kRunning);
  return std::nullopt;
}

WorkerGroup::WorkerGroup(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

WorkerGroup::~WorkerGroup() {
  if (!impl_->failed) impl_->say_goodbye();
}

Attempt<std::unique_ptr<WorkerGroup>> WorkerGroup::start(const WorkerGroupOptions& options,
                                                         const TransportSetup& setup,
                                                         const StartControl& control) {
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->kills = oom_kills(options.system);
  impl->start_watch =
      StartWatch(options.startup_timeout_s, options.step_timeout_s, options.start.device);
  impl->step_watch = StepWatch(options.step_timeout_s);
  impl->on_left_behind = control.on_left_behind;
  if (const Status born = spawn_ranks(options, setup, control.channels, &impl->workers);
      !born.ok()) {
    return Failure{born, Phase::kSpawn, kFrontRank, Fault::kOwn};
  }
  if (std::optional<Failure> failure = impl->wait_until_started(control)) return *failure;
  return std::unique_ptr<WorkerGroup>(new WorkerGroup(std::move(impl)));
}

std::optional<Failure> WorkerGroup::Impl::judge_step() {
  // A sign of life may have come since the last look. It counts, so read before judging.
  if (catch_up()) return fail();
  if (result || !step_watch.next().passed()) return std::nullopt;
  const std::optional<StepVerdict> verdict = step_watch.judge(workers);
  if (!verdict) return std::nullopt;
  return time_out(*verdict);
}

Attempt<std::string> WorkerGroup::step(uint64_t number, std::string plan,
                                       const std::function<bool()>& given_up) {
  Impl& group = *impl_;
  if (group.failed) return *group.failed;
  group.phase = {false, Phase::kStep, number};
  group.result.reset();
  const std::string frame = encode_front_message(Step{number, std::move(plan)});
  for (RankProcess& worker : group.workers) {
    worker.waits = false;
    const Status sent = worker.channel.send(frame, Deadline::after_s(group.options.step_timeout_s));
    if (sent.code() == Code::kDeadlineExceeded && !group.catch_up())
      return group.silent_for(group.options.step_timeout_s);
    if (!sent.ok()) return group.fail();
  }
  group.step_watch.moved();
  std::optional<Deadline> end;  // nobody waits for the step any more
  while (!group.result) {
    if (group.poll_once(group.step_watch.next())) return group.fail();
    if (!end && given_up && given_up()) end = Deadline::after_ms(kGivenUpMs);
    if (end && end->passed() && !group.result) return group.give_up();
    if (!group.step_watch.next().passed()) continue;
    if (std::optional<Failure> failure = group.judge_step()) return *failure;
  }
  group.phase = {false, Phase::kIdle};
  if (group.result->number != number) {
    return Failure{Status::error(
        Code::kInternal, cat("asked for step ", number, ", got step ", group.result->number))};
  }
  return std::move(group.result->result);
}

std::optional<Failure> WorkerGroup::watch(Deadline deadline) {
  Impl& group = *impl_;
  if (group.failed) return group.failed;
  do {
    if (group.poll_once(deadline)) return group.fail();
  } while (!deadline.passed());
  return std::nullopt;
}

bool WorkerGroup::ended() const {
  return impl_->failed.has_value();
}

const std::vector<std::string>& WorkerGroup::ready() const {
  return impl_->ready;
}

PhaseSeconds WorkerGroup::start_phases() const {
  return slowest_phases(impl_->workers);
}

std::vector<double> WorkerGroup::collective_seconds() const {
  return shoal::collective_seconds(impl_->workers);
}

std::optional<GroupWaits> WorkerGroup::waits() const {
  return group_waits(impl_->workers);
}

const TransportVerified& WorkerGroup::verified() const {
  return *impl_->workers.front().verified;
}

std::vector<int> WorkerGroup::pids() const {
  std::vector<int> pids;
  for (const RankProcess& worker : impl_->workers) pids.push_back(worker.process.pid);
  return pids;
}

}  // namespace shoal
