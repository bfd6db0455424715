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

/// The status, said of a line of the input.
Status with_place(const Status& status, const std::string& where) {
  std::vector<Cause> causes = status.causes();
  causes.front().what = where + causes.front().what;
  return Status(std::move(causes));
}

/// What stands in the place of an answer.
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
                      SHOAL_ASSIGN_OR_RETURN(GenerationRequest request,
                                             parse_request_json(line, flags.request, where));
                      requests.push_back({where + ": ", std::move(request), {}});
                      return {};
                    }));
  return requests;
}

/// Checks every request before any is run, and cuts the plan down to what they can use.
Status resolve_requests(const ServedModel& model, std::vector<Request>* requests,
                        EnginePlan* plan) {
  int64_t blocks = 0;
  for (Request& request : *requests) {
    Result<ResolvedRequest> resolved = resolve_request(request.request, model);
    if (!resolved.ok()) {
      return with_place(resolved.status(), request.where);
    }
    request.resolved = std::move(resolved).value();
    const EngineRequest& engine = request.resolved.engine;
    blocks += blocks_for_tokens(std::min<int64_t>(
        static_cast<int64_t>(engine.prompt.size()) + engine.max_tokens, model.max_model_len));
  }
  plan->limit_kv_blocks(blocks);
  const auto count = static_cast<int32_t>(requests->size());
  plan->limits.max_num_seqs = plan->init.max_num_seqs =
      std::clamp(count, 1, plan->limits.max_num_seqs);
  plan->limits.max_waiting = count;
  return {};
}

/// Text as it comes, a newline at the end.
Status print_text(CompletionSink& sink) {
  for (std::string text; sink.wait_text(&text);) SHOAL_RETURN_IF_ERROR(write_stdout(text));
  return {};
}

/// Runs them as one batch. *stage tells failures of the output from those of the ranks.
Status run_requests(const GenerateFlags& flags, const ServedModel& model,
                    const SchedulerLimits& limits, std::vector<Request> requests, EngineHost& host,
                    Stage* stage) {
  InferenceLoop loop(model, limits, [&host](const StepPlan& plan) { return host.step(plan); });
  std::vector<std::shared_ptr<CompletionSink>> sinks;
  for (Request& request : requests) {
    const EngineRequest& engine = request.resolved.engine;
    sinks.push_back(std::make_shared<CompletionSink>(engine.prompt, engine.sampling.logprobs >= 0));
    SHOAL_ASSIGN_OR_RETURN([[maybe_unused]] const uint64_t id,
                           loop.submit(std::move(request.resolved), sinks.back()));
  }
  const bool json = flags.json || flags.jsonl;
  const auto print = [&](const Status& written) {
    if (!written.ok()) *stage = Stage::kRequest;
    return written;
  };
  Status first_failure;
  for (size_t i = 0; i < sinks.size(); ++i) {
    if (!json) SHOAL_RETURN_IF_ERROR(print(print_text(*sinks[i])));
    const Completion completion = sinks[i]->wait_end();
    if (const Status& status = completion.end.status; !status.ok()) {
      // Nothing is left that could answer the others, or there are none.
      if (!flags.jsonl || !loop.status().ok()) return status;
      // One request failed alone: its line says so, and the others have theirs.
      SHOAL_RETURN_IF_ERROR(print(write_stdout(error_json(status) + "\n")));
      if (first_failure.ok()) first_failure = with_place(status, requests[i].where);
      continue;
    }
    SHOAL_RETURN_IF_ERROR(print(write_stdout(
        json ? completion_json(completion, host.transport()) + "\n" : std::string("\n"))));
  }
  return first_failure;
}

Status generate(const GenerateFlags& flags, Stage* stage) {
  HostFacts facts = facts_for(flags.engine.transport, flags.engine.tensor_parallel_size);
  *stage = Stage::kRequest;
  SHOAL_ASSIGN_OR_RETURN(std::vector<Request> requests, read_requests(flags));
  *stage = Stage::kModel;
  SHOAL_ASSIGN_OR_RETURN(const ModelFiles files, open_model(flags.engine.model));
  SHOAL_ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::load(flags.engine.model));
  *stage = Stage::kRequest;
  SHOAL_ASSIGN_OR_RETURN(EnginePlan plan, plan_engine(flags.engine, files, host_resources()));
  const ServedModel model =
      make_served_model(files, std::move(tokenizer), plan, flags.engine.seed.value_or(0));
  SHOAL_RETURN_IF_ERROR(resolve_requests(model, &requests, &plan));
  if (requests.empty()) return {};
  *stage = Stage::kStart;
  SHOAL_ASSIGN_OR_RETURN(std::unique_ptr<EngineHost> host,
                         EngineHost::start(plan, flags.engine.transport,
                                           {std::move(facts), ProgressStyle::kTerminalOnly,
                                            flags.engine.max_restarts}));
  *stage = Stage::kRun;
  return run_requests(flags, model, plan.limits, std::move(requests), *host, stage);
}

}  // namespace

int run_generate(const GenerateFlags& flags) {
  Stage stage;
  const Status status = generate(flags, &stage);
  return report_failure(status, stage);
}

}  // namespace shoal
