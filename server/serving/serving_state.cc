#include "server/serving/serving_state.h"

#include <cstdio>
#include <random>
#include <utility>

namespace shoal {

namespace {
// Enough for Abort to tell "just finished" from "never heard of"; bounded, as ids come from
// clients.
constexpr size_t kRememberedIds = 4096;
}  // namespace

std::string make_uuid() {
  thread_local std::mt19937_64 generator = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  const uint64_t high = (generator() & ~uint64_t{0xF000}) | 0x4000;                 // version 4
  const uint64_t low = (generator() & ~(uint64_t{3} << 62)) | (uint64_t{2} << 62);  // variant 1
  char text[37];
  std::snprintf(text, sizeof text, "%08x-%04x-%04x-%04x-%012llx", static_cast<unsigned>(high >> 32),
                static_cast<unsigned>(high >> 16 & 0xFFFF), static_cast<unsigned>(high & 0xFFFF),
                static_cast<unsigned>(low >> 48),
                static_cast<unsigned long long>(low & 0xFFFFFFFFFFFF));
  return text;
}

ServingState::ServingState(std::string served_name)
    : served_name_(std::move(served_name)), instance_id_(make_uuid()) {}

ServingState::View ServingState::view() const {
  const std::lock_guard lock(mutex_);
  return view_;
}

void ServingState::set_ready(const ServedModel* model, InferenceLoop* loop,
                             DeploymentInfo deployment) {
  const std::lock_guard lock(mutex_);
  view_.model = model;
  view_.loop = loop;
  view_.deployment = std::move(deployment);
  // A server told to stop while it was loading stays draining.
  if (view_.phase == ServingPhase::kLoading) view_.phase = ServingPhase::kReady;
}

void ServingState::set_draining() {
  const std::lock_guard lock(mutex_);
  view_.phase = ServingPhase::kDraining;
}

Status ServingState::check_model(const std::string& model) const {
  if (model.empty() || model == served_name_) return {};
  return Status::error(Code::kNotFound,
                       cat("model \"", model, "\" is not served here: this server has \"",
                           served_name_, "\" (an empty name means that one)"));
}

Status ServingState::enter(const std::string& request_id, std::shared_ptr<LiveCall> call) {
  const std::lock_guard lock(mutex_);
  if (view_.phase == ServingPhase::kDraining)
    return Status::error(Code::kUnavailable,
                         "the server is shutting down and takes no new requests");
  const LiveCall* key = call.get();
  if (!by_id_.emplace(request_id, key).second)
    return Status::error(Code::kAlreadyExists,
                         cat("request_id \"", request_id,
                             "\" is running: choose another, or leave it empty to get one"));
  live_.emplace(key, std::move(call));
  return {};
}

void ServingState::release_id(const std::string& request_id, const LiveCall* call) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(request_id);
  if (found == by_id_.end() || found->second != call) return;
  by_id_.erase(found);
  if (!finished_set_.insert(request_id).second) return;
  finished_.push_back(request_id);
  if (finished_.size() > kRememberedIds) {
    finished_set_.erase(finished_.front());
    finished_.pop_front();
  }
}

void ServingState::leave(const std::string& request_id, const LiveCall* call) {
  release_id(request_id, call);
  std::shared_ptr<LiveCall> last;  // destroyed after the lock is gone: its destructor is the call's
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(call);
  if (found == live_.end()) return;
  last = std::move(found->second);
  live_.erase(found);
  if (live_.empty()) idle_.notify_all();
}

ServingState::AbortOutcome ServingState::abort(const std::string& request_id) {
  std::shared_ptr<LiveCall> call;
  {
    const std::lock_guard lock(mutex_);
    const auto found = by_id_.find(request_id);
    if (found == by_id_.end())
      return finished_set_.contains(request_id) ? AbortOutcome::kFinished : AbortOutcome::kUnknown;
    call = live_.at(found->second);
  }
  call->abort();
  return AbortOutcome::kAborted;
}

int ServingState::abort_all() {
  std::vector<std::shared_ptr<LiveCall>> calls;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, call] : by_id_) calls.push_back(live_.at(call));
  }
  for (const auto& call : calls) call->abort();
  return static_cast<int>(calls.size());
}

void ServingState::drop_slow_readers(std::chrono::milliseconds limit) {
  std::vector<std::shared_ptr<LiveCall>> calls;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, call] : live_) calls.push_back(call);
  }
  const Clock::time_point now = Clock::now();
  for (const auto& call : calls) call->drop_slow_reader(now, limit);
}

bool ServingState::wait_until_idle(Deadline deadline) {
  std::unique_lock lock(mutex_);
  return idle_.wait_until(lock, deadline.at(), [this] { return live_.empty(); });
}

}  // namespace shoal
