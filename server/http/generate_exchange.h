#pragma once
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/http/api_answer.h"
#include "server/http/api_request.h"
#include "server/http/body_exchange.h"
#include "server/intake/live_request.h"

namespace shoal {

/// /v1/completions and /v1/chat/completions. Each choice is a LiveRequest. Whatever goes wrong
/// before the head of the answer is written becomes a status, which clients retry; afterwards it is
/// an event with an error.
class GenerateExchange final : public BodyExchange {
 public:
  /// A request_id in the body names the request; the header x-request-id is only returned and
  /// logged.
  GenerateExchange(std::shared_ptr<const HttpParts> parts, const HttpRequestHead& head,
                   size_t length, ApiRoute route);
  ~GenerateExchange() override;

  std::optional<HttpPart> keep_alive() override;
  size_t unread_bytes() const override;
  CallSummary summary() const override;

 protected:
  void process(std::string body) override;
  std::optional<HttpPart> more() override;
  HttpPart late() override;
  void stop() override;

 private:
  struct Running;  // what exists once the requests are submitted
  HttpError submit(ApiRequest request);
  HttpError prepare(ApiRequest& request, const ServedModel& model) const;
  HttpError render_chat(ApiRequest& request, const ServedModel& model) const;
  std::unique_ptr<Running> make_running(const ApiRequest& request, const ServedModel& model);
  static void collect(Running& running);
  std::optional<HttpPart> stream_part(Running& running);
  static HttpPart fail(Running& running, const HttpError& error);
  void add_headers(const Running& running, HttpResponse* head) const;
  HttpPart stream_head(const Running& running) const;

  const ApiRoute route_;
  const std::string header_id_;
  std::atomic<bool> given_up_ = false;
  std::unique_ptr<Running> owned_;  // only process() sets it, once
  // The same, for the event thread. Once all requests are submitted, it alone uses what this points
  // to, except for the requests.
  std::atomic<Running*> running_ = nullptr;
};

}  // namespace shoal
