#include <algorithm>

#include "runtime/base/json.h"
#include "server/cli/command_io.h"
#include "server/cli/exit_code.h"
#include "server/commands/commands.h"
#include "server/commands/completion_sink.h"
#include "server/commands/request_json.h"
#include "server/host/engine_host.h"

namespace shoal {
namespace {

struct Request {
  std::string where;  ///< "--jsonl FILE line 3: ", or empty
  GenerationRequest request;
  ResolvedRequest resolved;
};

/// Adds the place in the input to the status.
Status with_place(const Status& status, const std::string& where) {
  std::vector<Cause> causes = status.causes();
  causes.front().what = where + causes.front().what;
  return Status(std::move(causes));
}

/// The line that is printed instead of an answer.
std::string error_json(const Status& status) {
  return json_text(
      Json{{"error", {{"code", code_name(status.code())}, {"message", status.to_string()}}}});
}

Result<std::vector<Request>> read_requests(const GenerateFlags& flags) {
  std::vector<Request> requests;
  if (!flags.jsonl) {
    requests.push_back({"", flags.request, {}});
    return requests;
  }
  SHOAL_ASSIGN_OR_RETURN(const std::string text,
                         read_input("--jsonl", *flags.jsonl, kMaxInputBytes));
  SHOAL_RETURN_IF_ERROR(
      for_each_line(text, "--jsonl " + *flags.jsonl,
                    [&](std::string_view line, const std::string& where) -> Status {
                      Result<GenerationRequest, RequestError> request =
                          parse_request_json(line, flags.request, where);
                      if (!request.ok()) return request.error().status;
                      requests.push_back({where + ": ", std::move(request).value(), {}});
                      return {};
                    }));
  return requests;
}

/// Checks every request before any of them runs, and reduces the plan to what they can use.
Status resolve_requests(const ServedModel& model, std::vector<Request>* requests,
                        EnginePlan* plan) {
  int64_t blocks = 0;
  for (Request& request : *requests) {
    Result<ResolvedRequest, RequestError> resolved =
        resolve_request(std::move(request.request), model);
    if (!resolved.ok()) return with_place(resolved.error().status, request.where);
    request.resolved = std::move(resolved).value();
    const EngineRequest& engine = request.resolved.engine;
    blocks += blocks_for_tokens(std::min<int64_t>(
        static_cast<int64_t>(engine.prompt.size()) + engine.max_tokens, model.max_model_len));
  }
  plan->limit_kv_blocks(blocks);
  const auto count = static_cast<int32_t>(requests->size());
  EngineLimits& limits = plan->model.limits;
  limits.max_num_seqs = std::clamp(count, 1, limits.max_num_seqs);
  return plan->estimate_memory(model.config);
}

/// Prints text as it arrives, then a newline.
Status print_text(CompletionSink& sink) {
  for (std::string text; sink.wait_text(&text);) SHOAL_RETURN_IF_ERROR(write_stdout(text));
  return {};
}

/// Runs all requests as one batch.
Ending run_requests(const GenerateFlags& flags, const ServedModel& model,
                    const EngineLimits& limits, std::vector<Request> requests, EngineHost& host) {
  InferenceLoop loop(
      model, limits, [&host](const StepPlan& plan) { return host.step(plan); },
      scheduling_of(flags.scheduling));
  std::vector<std::shared_ptr<CompletionSink>> sinks;
  for (Request& request : requests) {
    const EngineRequest& engine = request.resolved.engine;
    sinks.push_back(std::make_shared<CompletionSink>(engine.prompt, engine.sampling.logprobs >= 0));
    const RefusedRequest refused = loop.submit(std::move(request.resolved), sinks.back()).error();
    if (!refused.ok()) return at(Stage::kRun, with_place(refused.error.status, request.where));
  }
  const bool json = flags.json || flags.jsonl;
  Status first_failure;
  for (size_t i = 0; i < sinks.size(); ++i) {
    if (!json) SHOAL_RETURN_IF_ERROR(at(Stage::kRequest, print_text(*sinks[i])));
    const Completion completion = sinks[i]->wait_end();
    if (const Status& status = completion.end.status; !status.ok()) {
      // Stop if there are no other requests, or if the ranks that could answer them are lost.
      if (!flags.jsonl || !loop.status().ok()) return host.ending(status);
      // Only this request failed: print its error on its line, and go on with the others.
      SHOAL_RETURN_IF_ERROR(at(Stage::kRequest, write_stdout(error_json(status) + "\n")));
      if (first_failure.ok()) first_failure = with_place(status, requests[i].where);
      continue;
    }
    const std::string answer = json ? completion_json(completion, host.transport()) : "";
    SHOAL_RETURN_IF_ERROR(at(Stage::kRequest, write_stdout(answer + "\n")));
  }
  return at(Stage::kRun, first_failure);
}

Ending generate(const GenerateFlags& flags) {
  HostFacts facts = facts_for(flags.engine.transport, flags.engine.tensor_parallel_size);
  SHOAL_ASSIGN_OR_RETURN(std::vector<Request> requests, at(Stage::kRequest, read_requests(flags)));
  SHOAL_ASSIGN_OR_RETURN(const ModelFiles files, at(Stage::kModel, open_model(flags.engine.model)));
  SHOAL_ASSIGN_OR_RETURN(Tokenizer tokenizer,
                         at(Stage::kModel, Tokenizer::load(flags.engine.model)));
  SHOAL_ASSIGN_OR_RETURN(EnginePlan plan,
                         at(Stage::kRequest, plan_engine(flags.engine, files, host_resources())));
  const ServedModel model =
      make_served_model(files, std::move(tokenizer), plan, flags.engine.seed.value_or(0));
  SHOAL_RETURN_IF_ERROR(at(Stage::kRequest, resolve_requests(model, &requests, &plan)));
  if (requests.empty()) return {};
  SHOAL_ASSIGN_OR_RETURN(
      std::unique_ptr<EngineHost> host,
      at(Stage::kStart, EngineHost::start(plan, flags.engine, std::move(facts))));
  return run_requests(flags, model, plan.model.limits, std::move(requests), *host);
}

}  // namespace

int run_generate(const GenerateFlags& flags) {
  return report_failure(generate(flags));
}

}  // namespace shoal
