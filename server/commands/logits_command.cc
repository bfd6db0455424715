#include <algorithm>

#include "server/cli/command_io.h"
#include "server/cli/exit_code.h"
#include "server/commands/commands.h"
#include "server/commands/npy.h"
#include "server/host/engine_host.h"

namespace shoal {
namespace {

/// Limit for the logits of one step, in bytes, because they cross the control channel in one frame.
constexpr int64_t kMaxStepBytes = int64_t{1} << 28;

Result<std::vector<int32_t>> check_ids(const LogitsFlags& flags, const ModelConfig& config) {
  std::vector<int32_t> ids;
  for (const int64_t id : flags.prompt_ids) {
    if (id >= config.vocab_size) {
      return Status::error(Code::kInvalidArgument, cat("--prompt-ids: ids must be in [0, ",
                                                       config.vocab_size - 1, "], not ", id));
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

/// Fits the plan to one sequence of that many tokens that wants the logits of all of them.
Status fit_plan(const LogitsFlags& flags, const ModelConfig& config, int64_t tokens,
                EnginePlan* plan) {
  if (tokens > plan->model.limits.max_model_len) {
    return Status::error(Code::kInvalidArgument,
                         cat("--prompt-ids has ", tokens, " tokens, more than the ",
                             plan->model.limits.max_model_len, " of --max-model-len"));
  }
  const int64_t most = std::max<int64_t>(kMaxStepBytes / (int64_t{4} * config.vocab_size), 1);
  if (flags.chunk && std::min(*flags.chunk, tokens) > most) {
    return Status::error(Code::kInvalidArgument,
                         cat("--chunk must be in [1, ", most, "] with ", config.vocab_size,
                             " logits a token, not ", *flags.chunk));
  }
  const int64_t chunk =
      flags.chunk.value_or(std::min<int64_t>(flags.engine.max_num_batched_tokens, most));
  plan->model.limits.max_num_batched_tokens = static_cast<int32_t>(std::min(chunk, tokens));
  plan->model.limits.max_num_seqs = 1;
  plan->model.all_logits = true;
  plan->limit_kv_blocks(blocks_for_tokens(tokens));
  return plan->estimate_memory(config);
}

/// Steps through the tokens: in chunks up to decode_from, then one at a time.
Ending compute(const LogitsFlags& flags, const std::vector<int32_t>& ids, const EnginePlan& plan,
               int vocab, EngineHost& host, NpyWriter& out) {
  const auto tokens = static_cast<int64_t>(ids.size());
  const int64_t decode_from = std::min(flags.decode_from.value_or(tokens), tokens);
  SHOAL_RETURN_IF_ERROR(at(Stage::kRequest, out.begin(tokens, vocab)));
  StepPlan step;
  for (int64_t begin = 0; begin < tokens;) {
    const int64_t end =
        begin < decode_from
            ? std::min<int64_t>(begin + plan.model.limits.max_num_batched_tokens, decode_from)
            : begin + 1;
    SequenceStep sequence;
    sequence.id = 1;
    sequence.token_ids.assign(ids.begin() + begin, ids.begin() + end);
    sequence.first_position = static_cast<int32_t>(begin);
    for (int64_t block = 0; block < blocks_for_tokens(end); ++block) {
      sequence.block_table.push_back(static_cast<int32_t>(block));
    }
    sequence.all_logits = true;
    ++step.step;
    step.sequences = {std::move(sequence)};
    SHOAL_ASSIGN_OR_RETURN(const StepOutcome outcome, at(Stage::kRun, host.step(step)));
    if (!outcome.result) return at(Stage::kRun, outcome.lost);
    const StepResult& result = *outcome.result;
    if (static_cast<int64_t>(result.logits.size()) != (end - begin) * vocab) {
      return at(Stage::kRun, Status::error(Code::kInternal,
                                           cat("step ", step.step, " gave ", result.logits.size(),
                                               " logits, not ", (end - begin) * vocab)));
    }
    SHOAL_RETURN_IF_ERROR(at(Stage::kRequest, out.append(result.logits)));
    begin = end;
  }
  return at(Stage::kRequest, out.finish());
}

Ending logits(const LogitsFlags& flags) {
  HostFacts facts = facts_for(flags.engine.transport, flags.engine.tensor_parallel_size);
  SHOAL_ASSIGN_OR_RETURN(const ModelFiles files, at(Stage::kModel, open_model(flags.engine.model)));
  SHOAL_ASSIGN_OR_RETURN(EnginePlan plan,
                         at(Stage::kRequest, plan_engine(flags.engine, files, host_resources())));
  SHOAL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                         at(Stage::kRequest, check_ids(flags, files.config)));
  SHOAL_RETURN_IF_ERROR(
      at(Stage::kRequest, fit_plan(flags, files.config, static_cast<int64_t>(ids.size()), &plan)));
  SHOAL_ASSIGN_OR_RETURN(NpyWriter out, at(Stage::kRequest, NpyWriter::open(flags.out)));
  SHOAL_ASSIGN_OR_RETURN(
      std::unique_ptr<EngineHost> host,
      at(Stage::kStart, EngineHost::start(plan, flags.engine, std::move(facts))));
  return compute(flags, ids, plan, files.config.vocab_size, *host, out);
}

}  // namespace

int run_logits(const LogitsFlags& flags) {
  return report_failure(logits(flags));
}

}  // namespace shoal
