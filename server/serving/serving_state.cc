#include "server/serving/serving_state.h"

#include <algorithm>
#include <cassert>
#include <cstdio>
#include <ctime>
#include <random>
#include <utility>

namespace shoal {

RefusedRequest model_is_loading() {
  return refuse(NotTaken::kLoading, "the model is loading; try again soon");
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

ServingState::ServingState(std::vector<std::string> served_names, std::shared_ptr<RequestBook> book)
    : served_names_(std::move(served_names)), instance_id_(make_uuid()), book_(std::move(book)) {
  view_.started_s = std::time(nullptr);
}

ServingState::View ServingState::view() const {
  const RequestBook::Lock lock(*book_);
  return view_;
}

void ServingState::set_ready(const ServedModel* model, InferenceLoop* loop,
                             DeploymentInfo deployment) {
  assert(loop->book() == book_);
  const RequestBook::Lock lock(*book_);
  view_.model = model;
  view_.loop = loop;
  view_.deployment = std::move(deployment);
  // A server that was asked to stop during loading keeps draining.
  if (view_.phase == ServingPhase::kLoading) view_.phase = ServingPhase::kReady;
}

void ServingState::set_stopping() {
  const RequestBook::Lock lock(*book_);
  view_.stopping = true;
}

void ServingState::set_draining(const RequestBook::Lock& /*held*/) {
  view_.phase = ServingPhase::kDraining;
}

bool ServingState::set_restarting(const Status& why) {
  const RequestBook::Lock lock(*book_);
  return std::exchange(view_.restarting, why).ok() != why.ok();
}

bool ServingState::draining() const {
  return draining(RequestBook::Lock(*book_));
}

bool ServingState::draining(const RequestBook::Lock& /*held*/) const {
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

RefusedRequest ServingState::refusal(const RequestBook::Lock& /*held*/) const {
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
                "the ranks were lost and are being started again; try again soon");
}

Result<ResolvedRequest, RefusedRequest> ServingState::resolve(
    GenerationRequest request, const std::atomic<bool>* given_up) const {
  const ServedModel* model = nullptr;
  {
    const RequestBook::Lock lock(*book_);
    SHOAL_RETURN_IF_ERROR(refusal(lock));
    model = view_.model;
  }
  Result<ResolvedRequest, RequestError> resolved =
      resolve_request(std::move(request), *model, given_up);
  if (!resolved.ok()) return refuse(NotTaken::kInvalid, resolved.error());
  return std::move(resolved).value();
}

Result<const ServedModel*, RefusedRequest> ServingState::submit(
    const RequestBook::Lock& held, ResolvedRequest request,
    const std::shared_ptr<OpenRequest>& open, const std::optional<RequestOrigin>& origin) {
  SHOAL_RETURN_IF_ERROR(view_.loop->submit(held, std::move(request), open, origin).error());
  return view_.model;
}

Result<const ServedModel*, RefusedRequest> ServingState::submit(
    GenerationRequest request, const std::shared_ptr<OpenRequest>& open) {
  SHOAL_ASSIGN_OR_RETURN(ResolvedRequest resolved, resolve(std::move(request)));
  const RequestBook::Lock lock(*book_);
  SHOAL_RETURN_IF_ERROR(refusal(lock));  // again, because the server may have begun to drain
  return submit(lock, std::move(resolved), open, std::nullopt);
}

void ServingState::end_late() {
  if (InferenceLoop* loop = view().loop; loop != nullptr) loop->end_late();
}

}  // namespace shoal
