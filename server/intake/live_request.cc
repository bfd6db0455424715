#include "server/intake/live_request.h"

#include <utility>

namespace shoal {

namespace {

size_t bytes_of(const OutputDelta& delta) {
  size_t bytes = sizeof delta + delta.text.size();
  for (const SampledToken& token : delta.tokens)
    bytes += sizeof token + token.top.size() * sizeof token.top.front();
  return bytes;
}

}  // namespace

LiveRequest::LiveRequest(std::shared_ptr<Intake> intake, std::string id)
    : intake_(std::move(intake)), id_(std::move(id)) {}

std::shared_ptr<LiveRequest> LiveRequest::make(std::shared_ptr<Intake> intake, std::string id,
                                               const std::shared_ptr<FrontCall>& call) {
  const std::shared_ptr<LiveRequest> request(new LiveRequest(std::move(intake), std::move(id)));
  const RequestBook::Lock lock(*request->intake_->book_);
  if (request->intake_->keep(lock, *call, request))
    request->call_ = call;
  else
    request->given_up_ = true;
  return request;
}

Result<LiveRequest::Accepted, RefusedRequest> LiveRequest::submit(GenerationRequest request,
                                                                  const RequestOrigin& origin) {
  if (RequestError error = RequestIds::check(id_); !error.ok())
    return refuse(NotTaken::kInvalid, std::move(error));
  SHOAL_ASSIGN_OR_RETURN(ResolvedRequest resolved,
                         intake_->state_->resolve(std::move(request), &given_up_));
  std::vector<int32_t> prompt_ids = resolved.engine.prompt;
  SHOAL_ASSIGN_OR_RETURN(const ServedModel* model,
                         intake_->accept(*this, std::move(resolved), origin));
  return Accepted{model, std::move(prompt_ids)};
}

void LiveRequest::give_up() {
  given_up_ = true;
  (void)cancel(RequestBook::Lock(*intake_->book_));
}

LiveRequest::Output LiveRequest::take() {
  const RequestBook::Lock lock(*intake_->book_);
  bytes_ = 0;
  return std::exchange(output_, {});
}

size_t LiveRequest::untaken_bytes() const {
  const RequestBook::Lock lock(*intake_->book_);
  return bytes_;
}

void LiveRequest::release_id() {
  const RequestBook::Lock lock(*intake_->book_);
  intake_->ids_.release(*this);
}

/// Its call leaves the intake, which keeps both until the lock is released.
void LiveRequest::leave(const RequestBook::Lock& held) {
  given_up_ = true;
  (void)cancel(held);
  call_ = nullptr;
  intake_->ids_.release(*this);
}

/// Changes the output, unless nobody wants it any more, and tells the front.
template <typename Change>
void LiveRequest::add(const Change& change) {
  std::shared_ptr<FrontCall> call;
  {
    const RequestBook::Lock lock(*intake_->book_);
    if (call_ == nullptr) return;
    change();
    call = call_;
  }
  call->output_ready();
}

void LiveRequest::on_delta(OutputDelta delta) {
  add([&] {
    bytes_ += bytes_of(delta);
    output_.deltas.push_back(std::move(delta));
  });
}

void LiveRequest::on_end(OutputEnd end) {
  add([&] { output_.end = std::move(end); });
}

}  // namespace shoal
