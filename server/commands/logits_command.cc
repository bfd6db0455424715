#include <algorithm>
#include <cerrno>
#include <optional>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "models/tokenizer.h"
#include "runtime/base/counted.h"
#include "runtime/base/log.h"
#include "server/cli/command_io.h"
#include "server/cli/exit_code.h"
#include "server/commands/commands.h"
#include "server/commands/npy.h"
#include "server/commands/request_lines.h"
#include "server/commands/stdin_prompt.h"
#include "server/host/device_plan.h"
#include "server/host/engine_host.h"

namespace shoal {
namespace {

/// Limit for the logits of one step, in bytes, because they cross the control channel in one frame.
constexpr int64_t kMaxStepBytes = int64_t{1} << 28;

Result<std::vector<RequestLine>> read_prompts(const LogitsFlags& flags) {
  if (flags.jsonl) return read_request_lines(*flags.jsonl, {}, LineKind::kPrompt);
  std::vector<RequestLine> prompts(1);
  prompts[0].request = flags.request;
  SHOAL_RETURN_IF_ERROR(
      take_stdin_prompt("logits", "--prompt, --prompt-ids, --jsonl", false, &prompts[0].request));
  return prompts;
}

/// The tokens of a prompt, if they fit the model.
Result<std::vector<int32_t>, RequestError> tokens_of(const GenerationRequest& request,
                                                     const Tokenizer* tokenizer, int vocab,
                                                     int32_t max_model_len) {
  const RequestField field = request.prompt ? RequestField::kPrompt : RequestField::kPromptIds;
  std::vector<int64_t> ids = request.prompt_ids.value_or(std::vector<int64_t>());
  if (request.prompt) {
    const Result<std::vector<int32_t>> read = tokenizer->encode(
        *request.prompt, /*add_special=*/true, {.max_ids = static_cast<size_t>(max_model_len) + 1});
    if (!read.ok())
      return RequestError{field, read.status().because_of(Code::kInvalidArgument,
                                                          "the prompt cannot be tokenized")};
    ids.assign(read->begin(), read->end());
  }
  if (ids.empty()) return invalid_field(field, "the prompt has no tokens");
  if (static_cast<int64_t>(ids.size()) > max_model_len) {
    return prompt_too_long(field, cat("the prompt has ", request.prompt ? "at least " : "",
                                      counted(ids.size(), "token"), ", more than the ",
                                      max_model_len, " of --max-model-len"));
  }
  for (const int64_t id : ids) {
    if (id >= vocab)
      return invalid_field(field, cat("prompt ids must be in [0, ", vocab - 1, "], not ", id));
  }
  return std::vector<int32_t>(ids.begin(), ids.end());
}

/// Turns all prompts into tokens. The error names every line that does not fit the model. The
/// model's tokenizer is read only if a prompt is text.
Ending resolve_prompts(const LogitsFlags& flags, const ModelFiles& files, int32_t max_model_len,
                       std::vector<RequestLine>* prompts) {
  std::optional<Tokenizer> tokenizer;
  for (RequestLine& line : *prompts) {
    if (!line.wrong.ok()) continue;
    if (line.request.prompt && !tokenizer) {
      SHOAL_ASSIGN_OR_RETURN(tokenizer, at(Stage::kModel, load_tokenizer(files)));
    }
    Result<std::vector<int32_t>, RequestError> ids = tokens_of(
        line.request, tokenizer ? &*tokenizer : nullptr, files.config.vocab_size, max_model_len);
    if (ids.ok())
      line.resolved.engine.prompt = std::move(ids).value();
    else
      line.wrong = ids.error();
  }
  return at(Stage::kRequest,
            flags.jsonl ? wrong_lines("--jsonl " + *flags.jsonl, *prompts, LineKind::kPrompt)
                        : (*prompts)[0].wrong.status);
}

/// Fits the plan to one sequence at a time, the longest of which has that many tokens, and which
/// wants the logits of all of them. INVALID_ARGUMENT: a flag that no prompt fits.
Status fit_plan(const LogitsFlags& flags, const ModelConfig& config, int64_t tokens,
                EnginePlan* plan) {
  const int64_t most = std::max<int64_t>(kMaxStepBytes / (int64_t{4} * config.vocab_size), 1);
  if (flags.chunk && std::min(*flags.chunk, tokens) > most) {
    return Status::error(Code::kInvalidArgument,
                         cat("--chunk must be in [1, ", most, "] with ", config.vocab_size,
                             " logits a token, not ", *flags.chunk));
  }
  if (flags.decode_from && *flags.decode_from >= tokens) {
    return Status::error(
        Code::kInvalidArgument,
        cat("--decode-from must be in [0, ", tokens - 1, "] for ",
            flags.jsonl ? "prompts" : "a prompt", " of ", flags.jsonl ? "at most " : "",
            counted(tokens, "token"), ", not ", *flags.decode_from));
  }
  const int64_t chunk =
      flags.chunk.value_or(std::min<int64_t>(flags.engine.max_num_batched_tokens, most));
  plan->model.limits.max_num_batched_tokens = static_cast<int32_t>(std::min(chunk, tokens));
  plan->model.limits.max_num_seqs = 1;
  plan->model.all_logits = true;
  plan->limit_kv_blocks(blocks_for_tokens(tokens));
  return plan->estimate_memory(config);
}

/// Computes the logits of one prompt after the other on the same ranks. Each is a sequence of its
/// own, which overwrites the KV blocks of the one before.
class LogitsRun {
 public:
  LogitsRun(const LogitsFlags& flags, const EnginePlan& plan, int vocab, EngineHost& host)
      : flags_(flags),
        chunk_(plan.model.limits.max_num_batched_tokens),
        vocab_(vocab),
        host_(host) {}

  int vocab() const { return vocab_; }

  /// Steps through the tokens: in chunks up to --decode-from, then one at a time.
  Ending compute(const std::vector<int32_t>& ids, NpyWriter& out) {
    const auto tokens = static_cast<int64_t>(ids.size());
    const int64_t decode_from = std::min(flags_.decode_from.value_or(tokens), tokens);
    ++sequence_;
    SHOAL_RETURN_IF_ERROR(at(Stage::kRequest, out.begin(tokens, vocab_)));
    for (int64_t begin = 0; begin < tokens;) {
      const int64_t end =
          begin < decode_from ? std::min<int64_t>(begin + chunk_, decode_from) : begin + 1;
      SHOAL_RETURN_IF_ERROR(step(ids, begin, end, out));
      begin = end;
    }
    return at(Stage::kRequest, out.finish());
  }

 private:
  Ending step(const std::vector<int32_t>& ids, int64_t begin, int64_t end, NpyWriter& out) {
    SequenceStep sequence;
    sequence.id = sequence_;
    sequence.token_ids.assign(ids.begin() + begin, ids.begin() + end);
    sequence.first_position = static_cast<int32_t>(begin);
    for (int64_t block = 0; block < blocks_for_tokens(end); ++block)
      sequence.block_table.push_back(static_cast<int32_t>(block));
    sequence.all_logits = true;
    ++step_.step;
    step_.sequences = {std::move(sequence)};
    SHOAL_ASSIGN_OR_RETURN(const StepOutcome outcome, at(Stage::kRun, host_.step(step_)));
    if (!outcome.result) return at(Stage::kRun, outcome.lost);
    const StepResult& result = *outcome.result;
    if (static_cast<int64_t>(result.logits.size()) != (end - begin) * vocab_) {
      return at(Stage::kRun, Status::error(Code::kInternal,
                                           cat("step ", step_.step, " gave ", result.logits.size(),
                                               " logits, not ", (end - begin) * vocab_)));
    }
    return at(Stage::kRequest, out.append(result.logits));
  }

  const LogitsFlags& flags_;
  const int64_t chunk_;
  const int vocab_;
  EngineHost& host_;
  StepPlan step_;
  uint64_t sequence_ = 0;
};

/// Makes the folder, or checks that files can be made in it, before anything is computed.
Status open_folder(const std::string& folder) {
  if (::mkdir(folder.c_str(), 0777) == 0) return {};
  struct stat info {};
  if (errno == EEXIST && ::stat(folder.c_str(), &info) == 0 && !S_ISDIR(info.st_mode))
    errno = ENOTDIR;
  if (errno == EEXIST && ::access(folder.c_str(), W_OK | X_OK) == 0) return {};
  return Status::error(Code::kInvalidArgument,
                       cat("--out-dir ", folder, " cannot be made or written"), errno);
}

/// Writes a file for each line, and says on stdout which one it is.
Ending compute_lines(const LogitsFlags& flags, const std::vector<RequestLine>& prompts,
                     LogitsRun& run) {
  for (const RequestLine& line : prompts) {
    const std::string path = cat(flags.out_dir, "/", line.number, ".npy");
    SHOAL_ASSIGN_OR_RETURN(NpyWriter out, at(Stage::kRequest, NpyWriter::open(path)));
    const std::vector<int32_t>& ids = line.resolved.engine.prompt;
    SHOAL_RETURN_IF_ERROR(run.compute(ids, out));
    SHOAL_RETURN_IF_ERROR(
        at(Stage::kRequest,
           write_stdout(cat('{', line_json(line.id, line.number), prompt_token_ids_json(ids),
                            ",\"tokens\":", ids.size(), ",\"file\":\"", json_escape(path),
                            "\",\"dtype\":\"float32\",\"shape\":[", ids.size(), ",", run.vocab(),
                            "]}\n"))));
  }
  return {};
}

/// Writes the file of the only prompt, and says on stderr what is in it.
Ending compute_one(const LogitsFlags& flags, const std::vector<int32_t>& ids, NpyWriter& out,
                   LogitsRun& run) {
  SHOAL_RETURN_IF_ERROR(run.compute(ids, out));
  say_done("logits",
           cat("wrote float32 [", ids.size(), ", ", run.vocab(),
               "]: raw logits; row i predicts the token after token i; Python reads it with "
               "numpy.load(\"",
               json_escape(flags.out), "\")"));
  return {};
}

Ending logits(LogitsFlags flags) {
  SHOAL_ASSIGN_OR_RETURN(
      HostFacts facts,
      at(Stage::kStart, facts_for(&flags.engine.transport, flags.engine.tensor_parallel_size)));
  SHOAL_ASSIGN_OR_RETURN(std::vector<RequestLine> prompts,
                         at(Stage::kRequest, read_prompts(flags)));
  SHOAL_ASSIGN_OR_RETURN(const ModelFiles files, at(Stage::kModel, open_model(flags.engine)));
  SHOAL_ASSIGN_OR_RETURN(EnginePlan plan,
                         at(Stage::kRequest, plan_on_device(&flags.engine, files, facts.gpu)));
  SHOAL_RETURN_IF_ERROR(resolve_prompts(flags, files, plan.model.limits.max_model_len, &prompts));
  if (prompts.empty()) {
    say_done("logits", "0 prompts");
    return {};
  }
  int64_t longest = 0;
  for (const RequestLine& line : prompts)
    longest = std::max(longest, static_cast<int64_t>(line.resolved.engine.prompt.size()));
  SHOAL_RETURN_IF_ERROR(at(Stage::kRequest, fit_plan(flags, files.config, longest, &plan)));
  std::optional<NpyWriter> out;
  if (flags.jsonl) {
    SHOAL_RETURN_IF_ERROR(at(Stage::kRequest, open_folder(flags.out_dir)));
  } else {
    SHOAL_ASSIGN_OR_RETURN(NpyWriter opened, at(Stage::kRequest, NpyWriter::open(flags.out)));
    out.emplace(std::move(opened));
  }
  SHOAL_ASSIGN_OR_RETURN(
      std::unique_ptr<EngineHost> host,
      at(Stage::kStart, EngineHost::start(plan, flags.engine, std::move(facts))));
  LogitsRun run(flags, plan, files.config.vocab_size, *host);
  return out ? compute_one(flags, prompts[0].resolved.engine.prompt, *out, run)
             : compute_lines(flags, prompts, run);
}

}  // namespace

int run_logits(const LogitsFlags& flags) {
  return report_failure(logits(flags));
}

}  // namespace shoal
