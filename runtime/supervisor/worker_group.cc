#include "runtime/supervisor/worker_group.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <optional>
#include <poll.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/wait.h>

#include "runtime/base/log.h"
#include "runtime/control/channel.h"
#include "runtime/control/wire.h"
#include "runtime/supervisor/rank_segments.h"
#include "runtime/supervisor/spawn.h"

namespace shoal {
namespace {

constexpr int64_t kSendTimeoutMs = 10'000;
/// After the first sign of trouble, how long others may still tell theirs: a rank whose peer died often speaks before
/// the kernel has told us of the death.
constexpr int64_t kEvidenceMs = 150;
/// How long ranks that wait may take to say for whom. They look up every 100 ms.
constexpr int64_t kExplainMs = 400;
/// How long workers have to leave by themselves after Shutdown.
constexpr int64_t kGoodbyeMs = 2'000;
constexpr double kMostPhaseSeconds = 15;
/// How often a load that says nothing is looked at.
constexpr int64_t kLookMs = 500;

struct Worker {
  Worker(WorkerProcess p, Channel c) : process(std::move(p)), channel(std::move(c)) {}
  WorkerProcess process;
  Channel channel;
  bool channel_open = true;
  bool reaped = false;
  int exit_code = 0, exit_status = 0;    // waitid's si_code and si_status
  std::optional<WorkerFailure> failure;  // its own words
  std::optional<WorkerReady> ready;
  std::optional<TransportVerified> verified;
  std::optional<std::string> part;  // for the exchange
  WorkerPhase phase = WorkerPhase::kSpawn;
  Clock::time_point heard_at = Clock::now();
  LoadProgress progress;
};

/// Did this rank only notice that another was gone or silent?
bool secondary(const Status& status) {
  const Code root = status.causes().back().code;
  return root == Code::kUnavailable || root == Code::kDeadlineExceeded;
}

/// Of a status: where its root was noticed.
bool moves_bytes(const Status& status) {
  const std::string& where = status.causes().back().where;
  return where.starts_with("memory/") || where.starts_with("comm/") || where.starts_with("transport/");
}

/// 'R', 'S', 'D', 'T' ... of /proc; '?' where it cannot be read.
char process_state(pid_t pid) {
  std::ifstream file(cat("/proc/", pid, "/stat"));
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');  // the name may hold anything
  return name_end != std::string::npos && name_end + 2 < text.size() ? text[name_end + 2] : '?';
}

bool stopped(const Worker& worker) {
  const char state = worker.reaped ? '?' : process_state(worker.process.pid);
  return state == 'T' || state == 't';
}

bool in_transport_phase(const Worker& worker) {
  return worker.phase == WorkerPhase::kOpen || worker.phase == WorkerPhase::kSelfTest;
}

/// Signals that a fault of the program's own raises; any other came from outside (the kernel's out-of-memory killer
/// counts as outside: another transport would not cure it).
bool own_fault(int signal) {
  for (const int fault : {SIGSEGV, SIGBUS, SIGABRT, SIGILL, SIGFPE, SIGSYS, SIGTRAP}) {
    if (signal == fault) return true;
  }
  return false;
}

std::string names_of(const std::vector<int32_t>& ranks) {
  std::string names;
  for (const int32_t rank : ranks) names += cat(names.empty() ? (ranks.size() == 1 ? "rank " : "ranks ") : ", ", rank);
  return names;
}

uint64_t new_seed() {
  uint64_t seed = 0;
  if (::getrandom(&seed, sizeof seed, GRND_NONBLOCK) != sizeof seed) {
    seed = static_cast<uint64_t>(Clock::now().time_since_epoch().count());
  }
  return seed;
}

}  // namespace

struct WorkerGroup::Impl {
  std::vector<Worker> workers;
  std::vector<WorkerReady> ready;
  std::optional<StepResult> result;
  std::string phase = "spawn";
  bool starting = true;
  double startup_timeout_s = 0;
  double step_timeout_s = 0;
  Deadline step_deadline = Deadline::infinite();
  GroupFailure failed;              // its status: not ok once the group has ended
  std::vector<SegmentId> segments;  // files in /dev/shm that the ranks' libraries made, as far as seen

  ~Impl() { end_all(); }

  Status spawn(const WorkerGroupOptions& options, const TransportSetup& setup);
  void introduce(const WorkerGroupOptions& options, const TransportSetup& setup);
  Status wait_until_started(const WorkerGroupOptions& options);
  void report_progress(const WorkerGroupOptions& options) const;
  bool poll_once(Deadline deadline);
  bool read_messages(Worker& worker);
  bool take(Worker& worker, WorkerMessage message);
  void exchange();
  bool reap(Worker& worker, int options);
  bool started(const Worker& worker, bool transport_only) const;
  Deadline phase_deadline(const Worker& worker) const;
  Status fail();
  Status time_out(double seconds);
  std::string standing(int rank) const;
  int culprit() const;
  int awaited() const;
  std::string phase_of(const Worker& worker) const { return starting ? phase_name(worker.phase) : phase; }
  void record_segments();
  void end_all();
  void say_goodbye();
};

/// One wait for anything from anyone; true when a worker has ended or failed.
bool WorkerGroup::Impl::poll_once(Deadline deadline) {
  std::vector<pollfd> fds;
  for (const Worker& worker : workers) {
    fds.push_back({worker.channel_open ? worker.channel.fd() : -1, POLLIN, 0});
    fds.push_back({worker.reaped ? -1 : worker.process.pidfd.get(), POLLIN, 0});
  }
  if (::poll(fds.data(), fds.size(), deadline.remaining_ms()) <= 0) return false;
  bool trouble = false;
  for (size_t i = 0; i < workers.size(); ++i) {
    // Messages before the exit: a worker that fails says why, then leaves.
    if (fds[2 * i].revents != 0) trouble |= read_messages(workers[i]);
    if (fds[2 * i + 1].revents != 0 && reap(workers[i], WNOHANG)) {
      trouble = true;
      if (workers[i].channel_open) read_messages(workers[i]);  // what it said between the two looks
    }
  }
  return trouble;
}

bool WorkerGroup::Impl::read_messages(Worker& worker) {
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
bool WorkerGroup::Impl::take(Worker& worker, WorkerMessage message) {
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
  if (!std::all_of(workers.begin(), workers.end(), [](const Worker& w) { return w.part.has_value(); })) return;
  ExchangeAll all;
  for (Worker& worker : workers) {
    all.parts.push_back(std::move(*worker.part));
    worker.part.reset();
  }
  const std::string frame = encode(FrontMessage(std::move(all)));
  // A send that fails means that the worker has died: the next poll finds out how.
  for (Worker& worker : workers) (void)worker.channel.send(frame, Deadline::after_ms(kSendTimeoutMs));
}

bool WorkerGroup::Impl::reap(Worker& worker, int options) {
  siginfo_t info{};
  if (worker.reaped || ::waitid(P_PID, static_cast<id_t>(worker.process.pid), &info, WEXITED | options) != 0 ||
      info.si_pid == 0) {
    return false;
  }
  worker.reaped = true;
  worker.exit_code = info.si_code;
  worker.exit_status = info.si_status;
  return true;
}

/// The rank that failed first, as far as can be told: one that died without a word, else one that has a reason of its
/// own, else one that only noticed; -1: none.
int WorkerGroup::Impl::culprit() const {
  int first = -1;
  for (size_t rank = 0; rank < workers.size(); ++rank) {
    const Worker& worker = workers[rank];
    if (worker.reaped && !worker.failure) return static_cast<int>(rank);
    if (!worker.failure) continue;
    if (first < 0 ||
        (secondary(workers[static_cast<size_t>(first)].failure->status) && !secondary(worker.failure->status)))
      first = static_cast<int>(rank);
  }
  return first;
}

/// Ends the group because somebody failed; the failure is kept for every later call.
Status WorkerGroup::Impl::fail() {
  const Deadline evidence = Deadline::after_ms(kEvidenceMs);
  const auto died = [](const Worker& w) { return w.reaped && !w.failure; };
  while (!evidence.passed() && std::none_of(workers.begin(), workers.end(), died) &&
         std::any_of(workers.begin(), workers.end(), [](const Worker& w) { return !w.reaped; })) {
    poll_once(evidence);
  }
  failed.rank = culprit();
  failed.phase = phase;
  if (failed.rank < 0) {
    failed.status = Status::error(Code::kInternal, cat("the group ended in phase ", phase, " without a reason"));
  } else {
    const Worker& worker = workers[static_cast<size_t>(failed.rank)];
    failed.phase = phase_of(worker);
    if (worker.failure) {
      failed.status = worker.failure->status.while_doing(cat("rank ", failed.rank, " failed in phase ", failed.phase));
      failed.moving = moves_bytes(worker.failure->status) || in_transport_phase(worker);
    } else {
      std::string what = cat("rank ", failed.rank, " (pid ", worker.process.pid, ") ",
                             describe_exit(worker.exit_code, worker.exit_status), " in phase ", failed.phase);
      const bool signalled = worker.exit_code != CLD_EXITED;
      if (signalled && worker.exit_status == SIGKILL) {
        what += "; the kernel does that too when memory runs out: see dmesg and the container's memory limit";
      }
      failed.outside = signalled && !own_fault(worker.exit_status);
      failed.moving = !failed.outside && in_transport_phase(worker);
      failed.status = Status::error(Code::kAborted, std::move(what));
    }
  }
  end_all();
  return failed.status;
}

/// Where a rank stands, in words, after Explain has been answered or not.
std::string WorkerGroup::Impl::standing(int rank) const {
  const Worker& worker = workers[static_cast<size_t>(rank)];
  const std::string who = cat("rank ", rank, " (", phase_of(worker));
  if (worker.failure && worker.failure->wait.collective > 0) {
    const RankWait& wait = worker.failure->wait;
    return cat(who, ", collective ", wait.collective, ", ", wait.what,
               wait.waits_for.empty() ? ") waits for nobody" : ") waits for ", names_of(wait.waits_for));
  }
  if (worker.failure) return cat(who, ") waits in no collective");
  if (worker.reaped) return cat(who, ") ", describe_exit(worker.exit_code, worker.exit_status));
  const char* state = stopped(worker) ? ") is stopped by a signal" : ") does not answer";
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.1f", seconds_since(worker.heard_at));
  return cat(who, state, ", last heard of ", seconds, " s ago, state ", process_state(worker.process.pid));
}

/// The root of the waiting: a rank that waits for nobody; a stopped one before all.
int WorkerGroup::Impl::awaited() const {
  int root = -1;
  for (size_t rank = 0; rank < workers.size(); ++rank) {
    const Worker& worker = workers[rank];
    if (stopped(worker)) return static_cast<int>(rank);
    const bool waits = worker.failure && !worker.failure->wait.waits_for.empty();
    const bool done = starting && worker.phase == WorkerPhase::kServe;
    if (!waits && !done && root < 0) root = static_cast<int>(rank);
  }
  return root;
}

Status WorkerGroup::Impl::time_out(double seconds) {
  const std::string explain = encode(FrontMessage(Explain{}));
  for (Worker& worker : workers) (void)worker.channel.send(explain, Deadline::after_ms(0));
  const Deadline deadline = Deadline::after_ms(kExplainMs);
  const auto quiet = [](const Worker& w) { return !w.failure && !w.reaped; };
  while (!deadline.passed() && std::any_of(workers.begin(), workers.end(), quiet)) poll_once(deadline);

  failed.rank = awaited();
  if (failed.rank >= 0) {
    const Worker& root = workers[static_cast<size_t>(failed.rank)];
    failed.outside = stopped(root);
    failed.phase = phase_of(root);
    failed.moving = !failed.outside && root.phase != WorkerPhase::kSpawn && root.phase != WorkerPhase::kLoad;
  } else {
    failed.phase = phase;
  }
  char limit[32];
  std::snprintf(limit, sizeof limit, "%g", seconds);
  std::string what = cat("no answer for ", limit, " s in phase ", failed.phase);
  if (failed.rank >= 0) what += cat("; ", standing(failed.rank));
  for (int rank = 0; rank < static_cast<int>(workers.size()); ++rank) {
    if (rank != failed.rank) what += cat("; ", standing(rank));
  }
  failed.status = Status::error(Code::kDeadlineExceeded, std::move(what));
  end_all();
  return failed.status;
}

/// While a rank lives it can be seen which files are its own; a dead one shows none.
void WorkerGroup::Impl::record_segments() {
  for (const Worker& worker : workers) {
    if (worker.reaped) continue;
    const std::vector<SegmentId> held = segments_held_by(worker.process.pid);
    segments.insert(segments.end(), held.begin(), held.end());
  }
}

/// Kills and reaps what is left, and removes what a killed rank's libraries leave in /dev/shm: those files alone, and
/// only where nobody else has them open.
void WorkerGroup::Impl::end_all() {
  if (std::all_of(workers.begin(), workers.end(), [](const Worker& w) { return w.reaped; }) && segments.empty()) return;
  record_segments();
  for (Worker& worker : workers) {
    if (!worker.reaped) ::kill(worker.process.pid, SIGKILL);  // ends stopped processes too
  }
  for (Worker& worker : workers) reap(worker, 0);
  if (segments.empty()) return;
  if (const auto swept = remove_recorded("/dev/shm", segments); swept.ok() && swept->removed > 0) {
    log_info(
        cat("removed ", swept->removed, " files (", swept->bytes, " bytes) that ended ranks had left in /dev/shm"));
  }
  segments.clear();
}

void WorkerGroup::Impl::say_goodbye() {
  for (Worker& worker : workers) {
    if (!worker.reaped) (void)worker.channel.send(encode(FrontMessage(Shutdown{})), Deadline::after_ms(100));
  }
  const Deadline deadline = Deadline::after_ms(kGoodbyeMs);
  // A stopped worker will not leave; nobody waits for it.
  const auto may_leave = [](const Worker& w) { return !w.reaped && !stopped(w); };
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
    init.step_heartbeat_ms = std::max<int64_t>(static_cast<int64_t>(options.step_timeout_s * 100), 1);
    const auto threads = static_cast<size_t>(init.threads);
    init.cpus.clear();
    if (options.init.cpus.size() >= threads * workers.size()) {
      const auto begin = options.init.cpus.begin() + static_cast<std::ptrdiff_t>(rank * threads);
      init.cpus.assign(begin, begin + static_cast<std::ptrdiff_t>(threads));
    }
    init.log_level = static_cast<int32_t>(log_options().level);
    init.log_json = log_options().format == LogFormat::kJson;
    // A send that fails means that the worker has died: the next poll finds out how.
    (void)workers[rank].channel.send(encode(FrontMessage(std::move(init))), Deadline::after_ms(kSendTimeoutMs));
  }
}

Status WorkerGroup::Impl::spawn(const WorkerGroupOptions& options, const TransportSetup& setup) {
  for (int rank = 0; rank < options.world_size; ++rank) {
    SHOAL_ASSIGN_OR_RETURN(auto ends, Channel::make_pair());
    WorkerDescriptors descriptors{ends.second.get(), setup.shm.fd(), -1};
    if (!setup.listeners.empty()) descriptors.listener = setup.listeners[static_cast<size_t>(rank)].get();
    SHOAL_ASSIGN_OR_RETURN(WorkerProcess process, spawn_worker(rank, descriptors));
    workers.emplace_back(std::move(process), Channel(std::move(ends.first)));
  }
  introduce(options, setup);
  return {};
}

bool WorkerGroup::Impl::started(const Worker& worker, bool transport_only) const {
  return transport_only ? worker.verified.has_value() : worker.ready.has_value();
}

/// By when a worker must have left the phase it is in. A load has the whole start's time: disks are slow.
Deadline WorkerGroup::Impl::phase_deadline(const Worker& worker) const {
  if (worker.phase == WorkerPhase::kLoad) return Deadline::infinite();
  const double seconds = std::min(startup_timeout_s / 4, kMostPhaseSeconds) - seconds_since(worker.heard_at);
  return Deadline::after_s(std::max(seconds, 0.0));
}

void WorkerGroup::Impl::report_progress(const WorkerGroupOptions& options) const {
  if (!options.on_progress) return;
  const auto has_begun = [](const Worker& w) { return w.progress.bytes_total > 0; };
  // A sum that grows later would run backwards.
  if (!std::all_of(workers.begin(), workers.end(), has_begun)) return;
  LoadProgress sum;
  for (const Worker& worker : workers) {
    sum.bytes_done += worker.progress.bytes_done;
    sum.bytes_total += worker.progress.bytes_total;
  }
  options.on_progress(sum);
}

Status WorkerGroup::Impl::wait_until_started(const WorkerGroupOptions& options) {
  const Deadline all = Deadline::after_s(options.startup_timeout_s);
  const bool transport_only = options.init.transport_only;
  for (;;) {
    Deadline next = all;
    bool done = true;
    for (const Worker& worker : workers) {
      if (started(worker, transport_only)) continue;
      done = false;
      phase = phase_name(worker.phase);
      const Deadline mine = phase_deadline(worker);
      if (mine.passed()) return time_out(seconds_since(worker.heard_at));
      if (mine.at() < next.at()) next = mine;
      // A load has no deadline of its own: disks are slow. A stopped process is not slow, it is stopped.
      if (worker.phase == WorkerPhase::kLoad && seconds_since(worker.heard_at) > options.step_timeout_s &&
          stopped(worker))
        return time_out(options.step_timeout_s);
    }
    if (done) break;
    if (all.passed()) return time_out(options.startup_timeout_s);
    if (poll_once(Deadline::after_ms(std::min<int64_t>(next.remaining_ms(), kLookMs)))) return fail();
    report_progress(options);
  }
  for (const Worker& worker : workers) {
    if (worker.ready) ready.push_back(*worker.ready);
  }
  starting = false;
  phase = "idle";
  record_segments();
  return {};
}

WorkerGroup::WorkerGroup(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

WorkerGroup::~WorkerGroup() {
  if (impl_->failed.status.ok()) impl_->say_goodbye();
}

Result<std::unique_ptr<WorkerGroup>> WorkerGroup::start(const WorkerGroupOptions& options, const TransportSetup& setup,
                                                        GroupFailure* failure) {
  auto impl = std::make_unique<Impl>();
  impl->startup_timeout_s = options.startup_timeout_s;
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
  group.phase = cat("step ", plan.step);
  group.result.reset();
  const std::string frame = encode(FrontMessage(plan));
  for (Worker& worker : group.workers) {
    const Status sent = worker.channel.send(frame, Deadline::after_s(group.step_timeout_s));
    if (sent.code() == Code::kDeadlineExceeded) return group.time_out(group.step_timeout_s);
    if (!sent.ok()) return group.fail();
  }
  group.step_deadline = Deadline::after_s(group.step_timeout_s);
  while (!group.result) {
    if (group.poll_once(group.step_deadline)) return group.fail();
    if (!group.result && group.step_deadline.passed()) return group.time_out(group.step_timeout_s);
  }
  group.phase = "idle";
  if (group.result->step != plan.step) {
    return Status::error(Code::kInternal, cat("asked for step ", plan.step, ", got step ", group.result->step));
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
  for (const Worker& worker : impl_->workers) pids.push_back(worker.process.pid);
  return pids;
}

}  // namespace shoal
