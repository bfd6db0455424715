#include "server/serving/serving_state.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <random>
#include <utility>

#include "runtime/base/text_values.h"
#include "runtime/base/wait.h"

namespace shoal {

namespace {
// Enough for Abort to distinguish "just finished" from "unknown". Bounded, because ids come from
// clients.
constexpr size_t kRememberedIds = 4096;
constexpr size_t kMaxRequestIdBytes = 256;  // it is echoed in every message

/// Refuses what is not text to a terminal, because the id is logged and a client could forge log
/// lines with it.
RequestError check_request_id(const std::string& id) {
  if (id.size() > kMaxRequestIdBytes)
    return invalid_field(
        RequestField::kRequestId,
        cat("request_id must have at most ", kMaxRequestIdBytes, " bytes, not ", id.size()));
  if (printable(id) != id)
    return invalid_field(RequestField::kRequestId,
                         "request_id must not have control characters, separators of lines, or "
                         "marks of bidirectional text");
  return {};
}

}  // namespace

RefusedRequest model_is_loading() {
  return refuse(NotTaken::kLoading,
                Status::error(Code::kUnavailable, "the model is loading; try again soon"));
}

Readiness readiness(const ServingState::View& view) {
  if (view.phase == ServingPhase::kLoading) return Readiness::kLoading;
  if (view.phase == ServingPhase::kDraining || view.stopping) return Readiness::kDraining;
  if (view.loop != nullptr && !view.loop->status().ok()) return Readiness::kRanksLost;
  return view.restarting.ok() ? Readiness::kReady : Readiness::kWaitingForRanks;
}

const char* readiness_name(Readiness readiness) {
  switch (readiness) {
    case Readiness::kReady:
      return "ready";
    case Readiness::kLoading:
      return "loading";
    case Readiness::kDraining:
      return "draining";
    case Readiness::kRanksLost:
      return "ranks lost";
    case Readiness::kWaitingForRanks:
      return "waiting for ranks";
  }
  return "";
}

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

ServingState::ServingState(std::vector<std::string> served_names)
    : served_names_(std::move(served_names)), instance_id_(make_uuid()) {
  view_.started_s = std::time(nullptr);
}

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
  // A server that was asked to stop during loading keeps draining.
  if (view_.phase == ServingPhase::kLoading) view_.phase = ServingPhase::kReady;
}

void ServingState::set_stopping() {
  const std::lock_guard lock(mutex_);
  view_.stopping = true;
}

void ServingState::set_draining() {
  const std::lock_guard lock(mutex_);
  view_.phase = ServingPhase::kDraining;
}

bool ServingState::set_restarting(const Status& why) {
  const std::lock_guard lock(mutex_);
  return std::exchange(view_.restarting, why).ok() != why.ok();
}

bool ServingState::draining() const {
  const std::lock_guard lock(mutex_);
  return view_.phase == ServingPhase::kDraining;
}

Status ServingState::check_model(const std::string& model) const {
  if (model.empty() ||
      std::find(served_names_.begin(), served_names_.end(), model) != served_names_.end())
    return {};
  return Status::error(Code::kNotFound,
                       cat("model \"", model, "\" is not served here: this server has \"",
                           served_name(), "\" (an empty name means that one)"));
}

/// Why no request at all is accepted now; ok if requests are accepted. The caller holds the lock.
RefusedRequest ServingState::refusal() const {
  switch (view_.phase) {
    case ServingPhase::kLoading:
      return model_is_loading();
    case ServingPhase::kDraining:
      return server_is_draining();
    case ServingPhase::kReady:
      break;
  }
  if (view_.restarting.ok()) return {};
  return refuse(NotTaken::kRestarting,
                Status::error(Code::kUnavailable,
                              "the ranks were lost and are being started again; try again soon"));
}

/// Releases the lock before tokenizing, because that takes long. It checks refusal() first, so that
/// the work is not wasted.
Result<ResolvedRequest, RefusedRequest> ServingState::resolve(
    GenerationRequest request, const std::atomic<bool>* given_up) const {
  const ServedModel* model = nullptr;
  {
    const std::lock_guard lock(mutex_);
    SHOAL_RETURN_IF_ERROR(refusal());
    model = view_.model;
  }
  Result<ResolvedRequest, RequestError> resolved =
      resolve_request(std::move(request), *model, given_up);
  if (!resolved.ok()) return refuse(NotTaken::kInvalid, resolved.error());
  return std::move(resolved).value();
}

/// The caller holds the lock, and has held it since it checked refusal().
Result<ServingState::Accepted, RefusedRequest> ServingState::queue(
    ResolvedRequest request, std::shared_ptr<OutputSink> sink,
    const std::optional<RequestOrigin>& origin) {
  const size_t bytes = kept_bytes(request);
  std::vector<int32_t> prompt_ids = request.engine.prompt;
  SHOAL_ASSIGN_OR_RETURN(const uint64_t id,
                         view_.loop->submit(std::move(request), std::move(sink), origin));
  return Accepted{view_.model, view_.loop, id, bytes, std::move(prompt_ids)};
}

Result<ServingState::Accepted, RefusedRequest> ServingState::submit(
    const std::string& request_id, GenerationRequest request, std::shared_ptr<LiveCall> call,
    const RequestOrigin& origin, const std::atomic<bool>* given_up) {
  if (RequestError error = check_request_id(request_id); !error.ok())
    return refuse(NotTaken::kInvalid, std::move(error));
  SHOAL_ASSIGN_OR_RETURN(ResolvedRequest resolved, resolve(std::move(request), given_up));
  const std::lock_guard lock(mutex_);
  SHOAL_RETURN_IF_ERROR(refusal());  // again, because the server may have begun to drain
  if (by_id_.contains(request_id))
    return refuse(
        NotTaken::kIdInUse,
        Status::error(Code::kAlreadyExists,
                      cat("request_id \"", request_id,
                          "\" is running: choose another, or leave it empty to get one")));
  SHOAL_ASSIGN_OR_RETURN(const Accepted accepted, queue(std::move(resolved), call, origin));
  const LiveCall* key = call.get();
  by_id_.emplace(request_id, key);
  live_.emplace(key, Live{std::move(call), accepted.id});
  return accepted;
}

Result<ServingState::Accepted, RefusedRequest> ServingState::submit(
    GenerationRequest request, std::shared_ptr<OutputSink> sink) {
  SHOAL_ASSIGN_OR_RETURN(ResolvedRequest resolved, resolve(std::move(request), nullptr));
  const std::lock_guard lock(mutex_);
  SHOAL_RETURN_IF_ERROR(refusal());
  return queue(std::move(resolved), std::move(sink), std::nullopt);
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
  std::shared_ptr<LiveCall> last;  // destroyed after the lock is released, because its destructor
                                   // is the call's code
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(call);
  if (found == live_.end()) return;
  last = std::move(found->second.call);
  live_.erase(found);
  if (live_.empty()) idle_.notify_all();
}

ServingState::AbortOutcome ServingState::abort(const std::string& request_id) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(request_id);
  if (found == by_id_.end())
    return finished_set_.contains(request_id) ? AbortOutcome::kFinished : AbortOutcome::kUnknown;
  // The id is in use until the client learns of the end, which may have come by itself.
  return view_.loop->cancel(live_.at(found->second).loop_id) ? AbortOutcome::kAborted
                                                             : AbortOutcome::kFinished;
}

int ServingState::abort_all() {
  const std::lock_guard lock(mutex_);
  int aborted = 0;
  for (const auto& [id, call] : by_id_) aborted += view_.loop->cancel(live_.at(call).loop_id);
  return aborted;
}

void ServingState::drop_slow_readers(std::chrono::milliseconds limit) {
  std::vector<std::shared_ptr<LiveCall>> calls;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, live] : live_) calls.push_back(live.call);
  }
  for (const auto& call : calls) call->drop_slow_reader(limit);
}

void ServingState::end_late() {
  if (InferenceLoop* loop = view().loop; loop != nullptr) loop->end_late();
}

bool ServingState::wait_until_idle(Deadline deadline) {
  std::unique_lock lock(mutex_);
  return wait_until_ready(idle_, lock, deadline, [this] { return live_.empty(); });
}

}  // namespace shoal
