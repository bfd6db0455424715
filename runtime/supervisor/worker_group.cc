#include "runtime/supervisor/worker_group.h"

#include <algorithm>
#include <optional>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include "runtime/base/log.h"
#include "runtime/control/channel.h"
#include "runtime/control/wire.h"
#include "runtime/supervisor/spawn.h"
#include "runtime/transport/rung.h"

namespace shoal {
namespace {

constexpr int64_t kSendTimeoutMs = 10'000;
/// After the first sign of trouble, how long others may still tell theirs: a rank whose peer died often speaks before
/// the kernel has told us of the death.
constexpr int64_t kEvidenceMs = 150;
/// How long workers have to leave by themselves after Shutdown.
constexpr int64_t kGoodbyeMs = 2'000;

struct Worker {
  Worker(WorkerProcess p, Channel c) : process(std::move(p)), channel(std::move(c)) {}
  WorkerProcess process;
  Channel channel;
  bool channel_open = true;
  bool reaped = false;
  int exit_code = 0, exit_status = 0;  // waitid's si_code and si_status
  std::optional<Status> failure;       // its own words
  std::optional<WorkerReady> ready;
  LoadProgress progress;
};

/// Did this rank only notice that another was gone or silent?
bool secondary(const Status& status) {
  const Code root = status.causes().back().code;
  return root == Code::kUnavailable || root == Code::kDeadlineExceeded;
}

}  // namespace

struct WorkerGroup::Impl {
  std::vector<Worker> workers;
  std::vector<WorkerReady> ready;
  std::optional<StepResult> result;
  std::string phase = "while starting";
  double step_timeout_s = 0;
  Status failed;  // once the group has ended

  ~Impl() { end_all(); }

  Status spawn(const WorkerGroupOptions& options);
  Status introduce(const WorkerGroupOptions& options, const TransportSetup& setup);
  Status load(const WorkerGroupOptions& options);
  bool poll_once(Deadline deadline);
  bool read_messages(Worker& worker);
  bool reap(Worker& worker, int options);
  Status fail();
  std::string late_ranks() const;
  Status time_out(double seconds);
  Status culprit() const;
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
    Result<WorkerMessage> message = decode_worker_message(*frame);
    if (!message.ok()) {
      worker.failure = message.status();
      return true;
    }
    if (auto* progress = std::get_if<LoadProgress>(&*message)) {
      worker.progress = *progress;
    } else if (auto* is_ready = std::get_if<WorkerReady>(&*message)) {
      worker.ready = std::move(*is_ready);
    } else if (auto* step = std::get_if<StepResult>(&*message)) {
      result = std::move(*step);
    } else if (auto* failure = std::get_if<WorkerFailure>(&*message)) {
      worker.failure = std::move(failure->status);
      return true;
    }
  }
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

/// The status of the rank that failed first, as far as can be told.
Status WorkerGroup::Impl::culprit() const {
  const auto died_unsaid = [](const Worker& w) { return w.reaped && !w.failure; };
  for (size_t rank = 0; rank < workers.size(); ++rank) {
    const Worker& worker = workers[rank];
    if (!died_unsaid(worker)) continue;
    std::string what = cat("rank ", rank, " (pid ", worker.process.pid, ") ",
                           describe_exit(worker.exit_code, worker.exit_status), " ", phase);
    if (worker.exit_code != CLD_EXITED && worker.exit_status == SIGKILL) {
      what += "; the kernel does that too when memory runs out: see dmesg and the container's memory limit";
    }
    return Status::error(Code::kAborted, std::move(what));
  }
  const Worker* first = nullptr;
  for (const Worker& worker : workers) {
    if (worker.failure && (first == nullptr || (secondary(*first->failure) && !secondary(*worker.failure))))
      first = &worker;
  }
  if (first == nullptr) return Status::error(Code::kInternal, cat("the group ended ", phase, " without a reason"));
  return first->failure->while_doing(cat("rank ", first - workers.data(), " failed ", phase));
}

/// Ends the group because somebody failed; the status is kept for every later call.
Status WorkerGroup::Impl::fail() {
  const Deadline evidence = Deadline::after_ms(kEvidenceMs);
  const auto died = [](const Worker& w) { return w.reaped && !w.failure; };
  while (!evidence.passed() && std::none_of(workers.begin(), workers.end(), died) &&
         std::any_of(workers.begin(), workers.end(), [](const Worker& w) { return !w.reaped; })) {
    poll_once(evidence);
  }
  failed = culprit();
  end_all();
  return failed;
}

std::string WorkerGroup::Impl::late_ranks() const {
  std::string ranks;
  for (size_t rank = 0; rank < workers.size(); ++rank) {
    if (!workers[rank].ready) ranks += cat(ranks.empty() ? "" : ", ", rank);
  }
  return ranks;
}

Status WorkerGroup::Impl::time_out(double seconds) {
  std::string who = late_ranks();
  failed = Status::error(Code::kDeadlineExceeded, cat("no answer after ", seconds, " s ", phase,
                                                      who.empty() ? std::string() : cat("; waiting for rank ", who)));
  end_all();
  return failed;
}

void WorkerGroup::Impl::end_all() {
  for (Worker& worker : workers) {
    if (!worker.reaped) ::kill(worker.process.pid, SIGKILL);  // ends stopped processes too
  }
  for (Worker& worker : workers) reap(worker, 0);
}

void WorkerGroup::Impl::say_goodbye() {
  for (Worker& worker : workers) {
    if (!worker.reaped) (void)worker.channel.send(encode(FrontMessage(Shutdown{})), Deadline::after_ms(100));
  }
  const Deadline deadline = Deadline::after_ms(kGoodbyeMs);
  while (!deadline.passed() && std::any_of(workers.begin(), workers.end(), [](const Worker& w) { return !w.reaped; })) {
    poll_once(deadline);
  }
}

Status WorkerGroup::Impl::introduce(const WorkerGroupOptions& options, const TransportSetup& setup) {
  for (size_t rank = 0; rank < workers.size(); ++rank) {
    WorkerInit init = options.init;
    init.rank = static_cast<int32_t>(rank);
    init.world_size = options.world_size;
    init.transport = setup.rung;
    init.shm_bytes = static_cast<int64_t>(setup.shm.size());
    init.tcp_ports = setup.tcp_ports;
    init.group_key = setup.group_key;
    const auto threads = static_cast<size_t>(init.threads);
    init.cpus.clear();
    if (options.init.cpus.size() >= threads * workers.size()) {
      const auto begin = options.init.cpus.begin() + static_cast<std::ptrdiff_t>(rank * threads);
      init.cpus.assign(begin, begin + static_cast<std::ptrdiff_t>(threads));
    }
    init.log_level = static_cast<int32_t>(log_options().level);
    init.log_json = log_options().format == LogFormat::kJson;
    // A send that fails means that the worker has died: load() will find out how.
    (void)workers[rank].channel.send(encode(FrontMessage(std::move(init))), Deadline::after_ms(kSendTimeoutMs));
  }
  return {};
}

Status WorkerGroup::Impl::spawn(const WorkerGroupOptions& options) {
  TransportSetup setup;
  setup.rung = kNoTransport;
  if (options.world_size > 1) {
    const Rung* rung = find_rung(options.transport);
    if (rung == nullptr) return Status::error(Code::kInternal, cat("no transport ", options.transport));
    SHOAL_ASSIGN_OR_RETURN(setup, rung->prepare(options.world_size, HostFacts()));
  }
  for (int rank = 0; rank < options.world_size; ++rank) {
    SHOAL_ASSIGN_OR_RETURN(auto ends, Channel::make_pair());
    WorkerDescriptors descriptors{ends.second.get(), setup.shm.fd(), -1};
    if (!setup.listeners.empty()) descriptors.listener = setup.listeners[static_cast<size_t>(rank)].get();
    SHOAL_ASSIGN_OR_RETURN(WorkerProcess process, spawn_worker(rank, descriptors));
    workers.emplace_back(std::move(process), Channel(std::move(ends.first)));
  }
  return introduce(options, setup);
}

Status WorkerGroup::Impl::load(const WorkerGroupOptions& options) {
  phase = "while loading";
  const Deadline deadline = Deadline::after_s(options.startup_timeout_s);
  const auto is_ready = [](const Worker& w) { return w.ready.has_value(); };
  while (!std::all_of(workers.begin(), workers.end(), is_ready)) {
    if (poll_once(deadline)) return fail();
    if (deadline.passed()) return time_out(options.startup_timeout_s);
    if (!options.on_progress) continue;
    LoadProgress sum;
    const auto has_begun = [](const Worker& w) { return w.progress.bytes_total > 0; };
    if (!std::all_of(workers.begin(), workers.end(), has_begun))
      continue;  // a sum that grows later would run backwards
    for (const Worker& worker : workers) {
      sum.bytes_done += worker.progress.bytes_done;
      sum.bytes_total += worker.progress.bytes_total;
    }
    options.on_progress(sum);
  }
  for (const Worker& worker : workers) ready.push_back(*worker.ready);
  phase = "while idle";
  return {};
}

WorkerGroup::WorkerGroup(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

WorkerGroup::~WorkerGroup() {
  if (impl_->failed.ok()) impl_->say_goodbye();
}

Result<std::unique_ptr<WorkerGroup>> WorkerGroup::start(const WorkerGroupOptions& options) {
  auto impl = std::make_unique<Impl>();
  impl->step_timeout_s = options.step_timeout_s;
  SHOAL_RETURN_IF_ERROR(impl->spawn(options));
  SHOAL_RETURN_IF_ERROR(impl->load(options));
  return std::unique_ptr<WorkerGroup>(new WorkerGroup(std::move(impl)));
}

Result<StepResult> WorkerGroup::step(const StepPlan& plan) {
  Impl& group = *impl_;
  if (!group.failed.ok()) return group.failed;
  group.phase = cat("in step ", plan.step);
  group.result.reset();
  const std::string frame = encode(FrontMessage(plan));
  for (Worker& worker : group.workers) {
    if (!worker.channel.send(frame, Deadline::after_ms(kSendTimeoutMs)).ok()) return group.fail();
  }
  const Deadline deadline = Deadline::after_s(group.step_timeout_s);
  while (!group.result) {
    if (group.poll_once(deadline)) return group.fail();
    if (deadline.passed()) return group.time_out(group.step_timeout_s);
  }
  group.phase = "while idle";
  if (group.result->step != plan.step) {
    return Status::error(Code::kInternal, cat("asked for step ", plan.step, ", got step ", group.result->step));
  }
  return std::move(*group.result);
}

Status WorkerGroup::watch(Deadline deadline) {
  Impl& group = *impl_;
  if (!group.failed.ok()) return group.failed;
  do {
    if (group.poll_once(deadline)) return group.fail();
  } while (!deadline.passed());
  return {};
}

const std::vector<WorkerReady>& WorkerGroup::ready() const {
  return impl_->ready;
}

std::vector<int> WorkerGroup::pids() const {
  std::vector<int> pids;
  for (const Worker& worker : impl_->workers) pids.push_back(worker.process.pid);
  return pids;
}

}  // namespace shoal
