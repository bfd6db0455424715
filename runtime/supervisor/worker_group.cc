#include "runtime/supervisor/worker_group.h"

#include <algorithm>
#include <optional>
#include <poll.h>
#include <sys/random.h>

#include "runtime/base/log.h"
#include "runtime/control/wire.h"
#include "runtime/supervisor/rank_segments.h"
#include "runtime/supervisor/spawn.h"

namespace shoal {
namespace {

constexpr int64_t kSendTimeoutMs = 10'000;
/// After the first sign of trouble, how long others may still tell theirs: a rank whose peer died
/// often speaks before the kernel has told us of the death.
constexpr int64_t kEvidenceMs = 150;
/// How long ranks that wait may take to say for whom. They look up every 100 ms.
constexpr int64_t kExplainMs = 400;
/// How long workers have to leave by themselves after Shutdown.
constexpr int64_t kGoodbyeMs = 2'000;
constexpr double kMostPhaseSeconds = 15;
/// Contexts and NCCL's kernels are loaded when first used: on a cold machine with eight GPUs that
/// takes most of a minute.
constexpr double kMostDevicePhaseSeconds = 60;
/// How often a load that says nothing is looked at.
constexpr int64_t kLookMs = 500;

uint64_t new_seed() {
  uint64_t seed = 0;
  if (::getrandom(&seed, sizeof seed, GRND_NONBLOCK) != sizeof seed) {
    seed = static_cast<uint64_t>(Clock::now().time_since_epoch().count());
  }
  return seed;
}

}  // namespace

struct WorkerGroup::Impl {
  std::vector<RankProcess> workers;
  std::vector<WorkerReady> ready;
  std::optional<StepResult> result;
  GroupPhase phase;
  double startup_timeout_s = 0;
  double most_phase_s = kMostPhaseSeconds;
  double step_timeout_s = 0;
  Deadline step_deadline = Deadline::infinite();
  GroupFailure failed;  // its status: not ok once the group has ended
  std::vector<SegmentId>
      segments;  // files in /dev/shm that the ranks' libraries made, as far as seen

  ~Impl() { end_all(); }

  Status spawn(const WorkerGroupOptions& options, const TransportSetup& setup);
  void introduce(const WorkerGroupOptions& options, const TransportSetup& setup);
  Status wait_until_started(const WorkerGroupOptions& options);
  void report_progress(const WorkerGroupOptions& options) const;
  bool poll_once(Deadline deadline);
  bool read_messages(RankProcess& worker);
  bool take(RankProcess& worker, WorkerMessage message);
  void exchange();
  bool started(const RankProcess& worker, bool transport_only) const;
  Deadline phase_deadline(const RankProcess& worker) const;
  Status fail();
  Status time_out(double seconds);
  Status give_up();
  void record_segments();
  void end_all();
  void say_goodbye();
};

/// One wait for anything from anyone; true when a worker has ended or failed.
bool WorkerGroup::Impl::poll_once(Deadline deadline) {
  std::vector<pollfd> fds;
  for (const RankProcess& worker : workers) {
    fds.push_back({worker.channel_open ? worker.channel.fd() : -1, POLLIN, 0});
    fds.push_back({worker.reaped ? -1 : worker.process.pidfd.get(), POLLIN, 0});
  }
  if (::poll(fds.data(), fds.size(), deadline.remaining_ms()) <= 0) return false;
  bool trouble = false;
  for (size_t i = 0; i < workers.size(); ++i) {
    // Messages before the exit: a worker that fails says why, then leaves.
    if (fds[2 * i].revents != 0) trouble |= read_messages(workers[i]);
    if (fds[2 * i + 1].revents != 0 && workers[i].reap()) {
      trouble = true;
      if (workers[i].channel_open) read_messages(workers[i]);  // what it said between the two looks
    }
  }
  return trouble;
}

bool WorkerGroup::Impl::read_messages(RankProcess& worker) {
  for (;;) {
    Result<std::string> frame = worker.channel.receive(Deadline::after_ms(0));
    if (!frame.ok()) {
      if (frame.status().code() == Code::kDeadlineExceeded) return false;
      worker.channel_open = false;  // its exit says more, and follows
      return false;
    }
    worker.heard_at = Clock::now();
    Result<WorkerMessage> message = decode_worker_message(*frame);
    if (!message.ok()) {
      worker.failure = WorkerFailure{message.status(), {}};
      return true;
    }
    if (take(worker, std::move(*message))) return true;
  }
}

/// True: the worker has failed.
bool WorkerGroup::Impl::take(RankProcess& worker, WorkerMessage message) {
  if (auto* progress = std::get_if<LoadProgress>(&message)) {
    worker.progress = *progress;
  } else if (auto* is_ready = std::get_if<WorkerReady>(&message)) {
    worker.ready = std::move(*is_ready);
    worker.phase = WorkerPhase::kServe;
  } else if (auto* step = std::get_if<StepResult>(&message)) {
    result = std::move(*step);
  } else if (auto* begun = std::get_if<PhaseBegun>(&message)) {
    worker.phase = begun->phase;
  } else if (auto* part = std::get_if<ExchangePart>(&message)) {
    worker.part = std::move(part->part);
    exchange();
  } else if (auto* verified = std::get_if<TransportVerified>(&message)) {
    worker.verified = *verified;
  } else if (std::holds_alternative<StepProgress>(message)) {
    step_deadline = Deadline::after_s(step_timeout_s);
  } else if (auto* own = std::get_if<WorkerFailure>(&message)) {
    worker.failure = std::move(*own);
    return true;
  }
  return false;
}

/// Once every rank has brought its part, all get all.
void WorkerGroup::Impl::exchange() {
  if (!std::all_of(workers.begin(), workers.end(),
                   [](const RankProcess& w) { return w.part.has_value(); }))
    return;
  ExchangeAll all;
  for (RankProcess& worker : workers) {
    all.parts.push_back(std::move(*worker.part));
    worker.part.reset();
  }
  const std::string frame = encode(FrontMessage(std::move(all)));
  // A send that fails means that the worker has died: the next poll finds out how.
  for (RankProcess& worker : workers)
    (void)worker.channel.send(frame, Deadline::after_ms(kSendTimeoutMs));
}

/// Ends the group because somebody failed; the failure is kept for every later call.
Status WorkerGroup::Impl::fail() {
  const Deadline evidence = Deadline::after_ms(kEvidenceMs);
  const auto died = [](const RankProcess& w) { return w.reaped && !w.failure; };
  while (
      !evidence.passed() && std::none_of(workers.begin(), workers.end(), died) &&
      std::any_of(workers.begin(), workers.end(), [](const RankProcess& w) { return !w.reaped; })) {
    poll_once(evidence);
  }
  failed = explain_failure(workers, phase);
  end_all();
  return failed.status;
}

/// Ends it because nothing has moved for so long. Whoever still can says first where it stands.
Status WorkerGroup::Impl::time_out(double seconds) {
  const std::string explain = encode(FrontMessage(Explain{}));
  for (RankProcess& worker : workers) (void)worker.channel.send(explain, Deadline::after_ms(0));
  const Deadline deadline = Deadline::after_ms(kExplainMs);
  const auto quiet = [](const RankProcess& w) { return !w.failure && !w.reaped; };
  while (!deadline.passed() && std::any_of(workers.begin(), workers.end(), quiet))
    poll_once(deadline);
  failed = explain_silence(workers, phase, seconds);
  end_all();
  return failed.status;
}

Status WorkerGroup::Impl::give_up() {
  failed = {Status::error(Code::kCancelled, cat("the start was given up in phase ", phase.name)),
            -1, phase.name};
  end_all();
  return failed.status;
}

/// While a rank lives it can be seen which files are its own; a dead one shows none.
void WorkerGroup::Impl::record_segments() {
  for (const RankProcess& worker : workers) {
    if (worker.reaped) continue;
    const std::vector<SegmentId> held = segments_held_by(worker.process.pid);
    segments.insert(segments.end(), held.begin(), held.end());
  }
}

/// Kills and reaps what is left, and removes what a killed rank's libraries leave in /dev/shm:
/// those files alone, and only where nobody else has them open.
void WorkerGroup::Impl::end_all() {
  const auto over = [](const RankProcess& w) { return w.reaped || w.left_behind; };
  if (std::all_of(workers.begin(), workers.end(), over) && segments.empty()) return;
  record_segments();
  end_ranks(workers);
  if (segments.empty()) return;
  if (const auto swept = remove_recorded("/dev/shm", segments); swept.ok() && swept->removed > 0) {
    log_info(cat("removed ", swept->removed, " files (", swept->bytes,
                 " bytes) that ended ranks had left in /dev/shm"));
  }
  segments.clear();
}

void WorkerGroup::Impl::say_goodbye() {
  for (RankProcess& worker : workers) {
    if (!worker.reaped)
      (void)worker.channel.send(encode(FrontMessage(Shutdown{})), Deadline::after_ms(100));
  }
  const Deadline deadline = Deadline::after_ms(kGoodbyeMs);
  // A stopped worker will not leave; nobody waits for it. A traced one may: LeakSanitizer stops its
  // own process like that.
  const auto may_leave = [](const RankProcess& w) { return !w.reaped && w.state() != 'T'; };
  while (!deadline.passed() && std::any_of(workers.begin(), workers.end(), may_leave)) {
    poll_once(Deadline::after_ms(std::min(deadline.remaining_ms(), 100)));
  }
}

void WorkerGroup::Impl::introduce(const WorkerGroupOptions& options, const TransportSetup& setup) {
  const uint64_t seed = new_seed();
  for (size_t rank = 0; rank < workers.size(); ++rank) {
    WorkerInit init = options.init;
    init.rank = static_cast<int32_t>(rank);
    init.world_size = options.world_size;
    init.transport = setup.rung;
    init.shm_bytes = static_cast<int64_t>(setup.shm.size());
    init.tcp_ports = setup.tcp_ports;
    init.group_key = setup.group_key;
    init.self_test_seed = seed;
    init.step_heartbeat_ms =
        std::max<int64_t>(static_cast<int64_t>(options.step_timeout_s * 100), 1);
    const auto threads = static_cast<size_t>(init.threads);
    init.cpus.clear();
    if (options.init.cpus.size() >= threads * workers.size()) {
      const auto begin = options.init.cpus.begin() + static_cast<std::ptrdiff_t>(rank * threads);
      init.cpus.assign(begin, begin + static_cast<std::ptrdiff_t>(threads));
    }
    init.log_level = static_cast<int32_t>(log_options().level);
    init.log_json = log_options().format == LogFormat::kJson;
    // A send that fails means that the worker has died: the next poll finds out how.
    (void)workers[rank].channel.send(encode(FrontMessage(std::move(init))),
                                     Deadline::after_ms(kSendTimeoutMs));
  }
}

Status WorkerGroup::Impl::spawn(const WorkerGroupOptions& options, const TransportSetup& setup) {
  for (int rank = 0; rank < options.world_size; ++rank) {
    SHOAL_ASSIGN_OR_RETURN(auto ends, Channel::make_pair());
    const auto index = static_cast<size_t>(rank);
    WorkerDescriptors descriptors{ends.second.get(), setup.shm.fd(), -1, -1};
    if (!setup.listeners.empty()) descriptors.listener = setup.listeners[index].get();
    if (!setup.logs.empty()) descriptors.log = setup.logs[index].get();
    const std::vector<std::string> none;
    SHOAL_ASSIGN_OR_RETURN(
        WorkerProcess process,
        spawn_worker(rank, descriptors,
                     setup.environment.empty() ? none : setup.environment[index]));
    workers.emplace_back(std::move(process), Channel(std::move(ends.first)));
  }
  introduce(options, setup);
  return {};
}

bool WorkerGroup::Impl::started(const RankProcess& worker, bool transport_only) const {
  return transport_only ? worker.verified.has_value() : worker.ready.has_value();
}

/// By when a worker must have left the phase it is in. A load has the whole start's time: disks are
/// slow.
Deadline WorkerGroup::Impl::phase_deadline(const RankProcess& worker) const {
  if (worker.phase == WorkerPhase::kLoad) return Deadline::infinite();
  const double seconds =
      std::min(startup_timeout_s / 4, most_phase_s) - seconds_since(worker.heard_at);
  return Deadline::after_s(std::max(seconds, 0.0));
}

void WorkerGroup::Impl::report_progress(const WorkerGroupOptions& options) const {
  if (!options.on_progress) return;
  const auto has_begun = [](const RankProcess& w) { return w.progress.bytes_total > 0; };
  // A sum that grows later would run backwards.
  if (!std::all_of(workers.begin(), workers.end(), has_begun)) return;
  LoadProgress sum;
  for (const RankProcess& worker : workers) {
    sum.bytes_done += worker.progress.bytes_done;
    sum.bytes_total += worker.progress.bytes_total;
  }
  options.on_progress(sum);
}

Status WorkerGroup::Impl::wait_until_started(const WorkerGroupOptions& options) {
  const Clock::time_point began = Clock::now();
  const Deadline all = sooner(options.start_deadline, Deadline::after_s(options.startup_timeout_s));
  const bool transport_only = options.init.transport_only;
  for (;;) {
    Deadline next = all;
    bool done = true;
    for (const RankProcess& worker : workers) {
      if (started(worker, transport_only)) continue;
      done = false;
      phase.name = phase_name(worker.phase);
      const Deadline mine = phase_deadline(worker);
      if (mine.passed()) return time_out(seconds_since(worker.heard_at));
      next = sooner(next, mine);
      // A load has no deadline of its own: disks are slow. A stopped process is not slow, it is
      // stopped.
      if (worker.phase == WorkerPhase::kLoad &&
          seconds_since(worker.heard_at) > options.step_timeout_s && worker.stopped())
        return time_out(options.step_timeout_s);
    }
    if (done) break;
    if (options.given_up && options.given_up()) return give_up();
    if (all.passed()) return time_out(seconds_since(began));
    if (poll_once(Deadline::after_ms(std::min<int64_t>(next.remaining_ms(), kLookMs))))
      return fail();
    report_progress(options);
  }
  for (const RankProcess& worker : workers) {
    if (worker.ready) ready.push_back(*worker.ready);
  }
  phase = {false, "idle"};
  record_segments();
  return {};
}

WorkerGroup::WorkerGroup(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

WorkerGroup::~WorkerGroup() {
  if (impl_->failed.status.ok()) impl_->say_goodbye();
}

Result<std::unique_ptr<WorkerGroup>> WorkerGroup::start(const WorkerGroupOptions& options,
                                                        const TransportSetup& setup,
                                                        GroupFailure* failure) {
  auto impl = std::make_unique<Impl>();
  impl->startup_timeout_s = options.startup_timeout_s;
  if (options.init.device == DeviceKind::kCuda) impl->most_phase_s = kMostDevicePhaseSeconds;
  impl->step_timeout_s = options.step_timeout_s;
  Status status = impl->spawn(options, setup);
  if (!status.ok()) {
    *failure = {status, -1, "spawn", false, false};
    return status;
  }
  status = impl->wait_until_started(options);
  if (!status.ok()) {
    *failure = impl->failed;
    return status;
  }
  return std::unique_ptr<WorkerGroup>(new WorkerGroup(std::move(impl)));
}

Result<StepResult> WorkerGroup::step(const StepPlan& plan) {
  Impl& group = *impl_;
  if (!group.failed.status.ok()) return group.failed.status;
  group.phase.name = cat("step ", plan.step);
  group.result.reset();
  const std::string frame = encode(FrontMessage(plan));
  for (RankProcess& worker : group.workers) {
    const Status sent = worker.channel.send(frame, Deadline::after_s(group.step_timeout_s));
    if (sent.code() == Code::kDeadlineExceeded) return group.time_out(group.step_timeout_s);
    if (!sent.ok()) return group.fail();
  }
  group.step_deadline = Deadline::after_s(group.step_timeout_s);
  while (!group.result) {
    if (group.poll_once(group.step_deadline)) return group.fail();
    if (!group.result && group.step_deadline.passed()) return group.time_out(group.step_timeout_s);
  }
  group.phase.name = "idle";
  if (group.result->step != plan.step) {
    return Status::error(Code::kInternal,
                         cat("asked for step ", plan.step, ", got step ", group.result->step));
  }
  return std::move(*group.result);
}

Status WorkerGroup::watch(Deadline deadline) {
  Impl& group = *impl_;
  if (!group.failed.status.ok()) return group.failed.status;
  do {
    if (group.poll_once(deadline)) return group.fail();
  } while (!deadline.passed());
  return {};
}

const GroupFailure& WorkerGroup::failure() const {
  return impl_->failed;
}

const std::vector<WorkerReady>& WorkerGroup::ready() const {
  return impl_->ready;
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
