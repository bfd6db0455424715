#include <algorithm>
#include <atomic>
#include <csignal>
#include <numeric>
#include <unistd.h>

#include "runtime/base/counted.h"
#include "runtime/base/log.h"
#include "runtime/engine/check_request.h"
#include "server/cli/command_io.h"
#include "server/cli/exit_code.h"
#include "server/commands/batch_report.h"
#include "server/commands/chat_prompt.h"
#include "server/commands/commands.h"
#include "server/commands/completion_sink.h"
#include "server/commands/generate_chat.h"
#include "server/commands/length_text.h"
#include "server/commands/request_lines.h"
#include "server/commands/stdin_prompt.h"
#include "server/host/device_plan.h"
#include "server/host/engine_host.h"

namespace shoal {
namespace {

/// The exit code of --keep-going if a line failed.
constexpr int kLinesFailed = 1;

/// The name of the input in errors about its lines.
std::string source_of(const GenerateFlags& flags) {
  return cat("--jsonl ", flags.jsonl.value_or(""));
}

Result<std::vector<RequestLine>> read_requests(const GenerateFlags& flags) {
  if (flags.jsonl) return read_request_lines(*flags.jsonl, flags.request, LineKind::kRequest);
  std::vector<RequestLine> requests(1);
  requests[0].request = flags.request;
  SHOAL_RETURN_IF_ERROR(take_stdin_prompt("generate",
                                          "--prompt, --prompt-ids, --chat, --messages, --jsonl",
                                          flags.chat.messages.has_value(), &requests[0].request));
  return requests;
}

/// Renders the messages with the chat template and returns the token ids of the prompt. prompts may
/// be the error with which opening the template failed, which is then the result.
Staged<std::vector<int32_t>> chat_ids(const ChatFlags& flags, const Staged<ChatPrompts>& prompts,
                                      OrderedJson messages, const Tokenizer& tokenizer) {
  if (!prompts.ok()) return prompts.error();
  SHOAL_ASSIGN_OR_RETURN(const RenderedPrompt prompt, prompts->render(std::move(messages)));
  return encode_chat_prompt(flags, prompt, tokenizer);
}

/// Makes prompts of the lines that have messages. Those of which none can be made become wrong, and
/// so do all if the model has no template. The error is that of a flag, or of a damaged template.
Ending render_lines(const GenerateFlags& flags, const ModelFiles& files, const Tokenizer& tokenizer,
                    std::vector<RequestLine>* lines) {
  const auto has_messages = [](const RequestLine& line) { return !line.messages.is_null(); };
  const auto is_wrong = [](const RequestLine& line) { return !line.wrong.ok(); };
  if (std::none_of(lines->begin(), lines->end(), has_messages)) {
    // A line that is wrong may have messages.
    if (!flags.jsonl || std::any_of(lines->begin(), lines->end(), is_wrong)) return {};
    return at(Stage::kRequest, check_chat_flags(flags.chat));
  }
  const Staged<ChatPrompts> prompts =
      ChatPrompts::open(flags.chat, flags.engine.model, files.start_by);
  if (!prompts.ok() && prompts.error().why.code() != Code::kFailedPrecondition)
    return prompts.error();
  for (RequestLine& line : *lines) {
    if (!has_messages(line)) continue;
    const Staged<std::vector<int32_t>> ids =
        chat_ids(flags.chat, prompts, line.messages, tokenizer);
    if (ids.ok())
      line.request.prompt_ids.emplace(ids->begin(), ids->end());
    else
      line.wrong = ids.error().why;
  }
  return {};
}

/// Why a request cannot run. A line with messages has no field for its prompt.
void note_wrong(RequestError why, RequestLine* line) {
  const bool of_prompt =
      why.field == RequestField::kPrompt || why.field == RequestField::kPromptIds;
  line->wrong = std::move(why);
  if (of_prompt && !line->messages.is_null()) line->wrong.field = RequestField::kNone;
}

/// Checks every request before any of them runs. Those that cannot run become wrong.
void resolve_requests(const ServedModel& model, const EngineLimits& limits,
                      std::vector<RequestLine>* requests) {
  for (RequestLine& line : *requests) {
    if (!line.wrong.ok()) continue;
    line.has_text = !line.request.prompt_ids;
    Result<ResolvedRequest, RequestError> resolved =
        resolve_request(std::move(line.request), model);
    if (!resolved.ok()) {
      note_wrong(resolved.error(), &line);
      continue;
    }
    line.resolved = std::move(resolved).value();
    // Prompts that are too long for the KV cache: the loop would refuse them after others had run.
    if (RequestError error = check_request(limits, line.resolved.engine); !error.ok())
      note_wrong(std::move(error), &line);
  }
}

/// What keeps all requests from running: each that is wrong, unless the others are to go on.
Status why_none_runs(const GenerateFlags& flags, const std::vector<RequestLine>& requests) {
  if (flags.keep_going) return {};
  return flags.jsonl ? wrong_lines(source_of(flags), requests, LineKind::kRequest)
                     : requests[0].wrong.status;
}

/// Reduces the plan to what the good requests can use.
Status fit_plan(const ServedModel& model, const std::vector<RequestLine>& requests,
                EnginePlan* plan) {
  int64_t blocks = 0;
  int32_t count = 0;
  for (const RequestLine& line : requests) {
    if (!line.wrong.ok()) continue;
    const EngineRequest& engine = line.resolved.engine;
    blocks += blocks_for_tokens(std::min<int64_t>(
        static_cast<int64_t>(engine.prompt.size()) + engine.max_tokens, model.max_model_len));
    ++count;
  }
  plan->limit_kv_blocks(blocks);
  EngineLimits& limits = plan->model.limits;
  limits.max_num_seqs = std::clamp(count, 1, limits.max_num_seqs);
  return plan->estimate_memory(model.config);
}

/// Prints text as it arrives, then a newline.
Status print_text(CompletionSink& sink) {
  for (std::string text; sink.wait_text(&text);) SHOAL_RETURN_IF_ERROR(write_stdout(text));
  return {};
}

/// The signal that ends the batch; 0: none has come.
std::atomic<int> g_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);

void keep_signal(int number) {
  int none = 0;
  if (g_signal.compare_exchange_strong(none, number)) return;
  clear_progress_line();
  ::_exit(128 + number);
}

/// From now on the first SIGINT or SIGTERM is kept in g_signal, so that the batch can write what is
/// done, and a second one ends the process. Those that the caller ignores stay ignored.
void keep_signals() {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    struct sigaction action {};
    ::sigaction(number, nullptr, &action);
    if (action.sa_handler == SIG_IGN) continue;
    action.sa_handler = keep_signal;
    action.sa_flags = SA_RESTART;
    ::sigaction(number, &action, nullptr);
  }
}

std::string name_of(int signal) {
  return cat("SIG", ::sigabbrev_np(signal));
}

using Sinks = std::vector<std::shared_ptr<CompletionSink>>;

/// Hands the good requests to the loop. A wrong one has no sink, and one that the loop refuses,
/// because the ranks are lost, becomes wrong.
Sinks submit_all(std::vector<RequestLine>* requests, InferenceLoop& loop) {
  Sinks sinks(requests->size());
  for (size_t i = 0; i < sinks.size(); ++i) {
    RequestLine& line = (*requests)[i];
    if (!line.wrong.ok()) continue;
    const EngineRequest& engine = line.resolved.engine;
    sinks[i] = std::make_shared<CompletionSink>(engine.prompt, engine.sampling);
    RefusedRequest refused = loop.submit(std::move(line.resolved), sinks[i]).error();
    if (refused.ok()) continue;
    line.wrong = std::move(refused.error);
    sinks[i] = nullptr;
  }
  return sinks;
}

/// Whether the model has answered a text by ending at once, as one for chats may.
bool is_empty_answer(const RequestLine& line, const Completion& completion) {
  return line.has_text && completion.text.empty() && completion.end.finish.stopped_by_eos;
}

/// Says below `empty` answers that ended at once why, and how to ask a model for chats, if this may
/// be one: it has a chat template.
void hint_at_chats(const GenerateFlags& flags, int64_t empty) {
  if (empty == 0 || !ChatTemplate::load(flags.engine.model).ok()) return;
  const std::string who =
      flags.jsonl ? cat(counted(empty, "answer"), empty == 1 ? " is" : " are") : "the answer is";
  const char* instead = flags.jsonl ? "\"messages\" instead of a prompt"
                                    : "--chat, or with --messages FILE (- is stdin)";
  say_done("generate", cat(who,
                           " empty: the model gave its end-of-sequence token before any text. "
                           "It has a chat template; ask it with ",
                           instead, ", a list as [{\"role\": \"user\", \"content\": \"Hello\"}]"));
}

/// Says below an answer that its length has ended it. The object of --json has the reason, and who
/// gives token ids has counted them.
void say_length(const GenerateFlags& flags, const OutputEnd& end) {
  if (flags.json || flags.request.prompt_ids || end.finish.reason != FinishReason::kLength) return;
  say_done("generate", length_text(flags.request.max_tokens, end.completion_tokens));
}

/// Runs the only request, and prints its text as it arrives, or its object at the end.
Ending run_one(const GenerateFlags& flags, InferenceLoop& loop, std::vector<RequestLine> requests,
               EngineHost& host) {
  const Sinks sinks = submit_all(&requests, loop);
  SHOAL_RETURN_IF_ERROR(at(Stage::kRun, requests[0].wrong.status));
  if (!flags.json) SHOAL_RETURN_IF_ERROR(at(Stage::kRequest, print_text(*sinks[0])));
  const Completion completion = sinks[0]->wait_end();
  host.log_summary();
  if (!completion.end.status.ok()) return host.ending(completion.end.status);
  const std::string answer = flags.json ? completion_json(completion, host.transport()) : "";
  SHOAL_RETURN_IF_ERROR(at(Stage::kRequest, write_stdout(answer + "\n")));
  say_length(flags, completion.end);
  hint_at_chats(flags, is_empty_answer(requests[0], completion) ? 1 : 0);
  return {};
}

/// All lines of a file, run as one batch.
class Batch {
 public:
  Batch(const GenerateFlags& flags, InferenceLoop& loop, EngineHost& host,
        std::vector<RequestLine> lines)
      : flags_(flags),
        loop_(loop),
        host_(host),
        lines_(std::move(lines)),
        report_(static_cast<int64_t>(lines_.size())) {}

  /// Prints an answer or an error for each line, in the order of the lines. It does so even if the
  /// batch ends early because the ranks are lost or a signal comes. The value is the exit code. If
  /// a line failed, the result is the error of the first such line, unless the flags say that such
  /// a batch counts as one that worked.
  Staged<int> run() {
    sinks_ = submit_all(&lines_, loop_);
    Status first_failure;
    for (size_t i = 0; i < lines_.size(); ++i) {
      const RequestLine& line = lines_[i];
      const Completion completion = wait_for(i);
      const bool failed = !line.wrong.ok();
      report_.hide();
      const std::string answer =
          failed ? error_json(line, line.wrong)
                 : completion_json(completion, host_.transport(), line.id, line.number);
      SHOAL_RETURN_IF_ERROR(at(Stage::kRequest, write_stdout(answer + "\n")));
      if (failed)
        report_.count_failed();
      else
        report_.count(completion);
      empty_ += is_empty_answer(line, completion) ? 1 : 0;
      if (failed && first_failure.ok()) first_failure = in_source(source_of(flags_), line.named());
    }
    report_.finish();
    hint_at_chats(flags_, empty_);
    host_.log_summary();
    if (cut_off_ != 0) return report_signal();
    SHOAL_RETURN_IF_ERROR(host_.ending(loop_.status()));
    if (!first_failure.ok() && !flags_.keep_going) return at(Stage::kRun, first_failure);
    return first_failure.ok() ? 0 : kLinesFailed;
  }

 private:
  /// The output of a line, or nothing if it is or becomes wrong.
  Completion wait_for(size_t i) {
    if (!sinks_[i]) return {};
    for (;;) {
      const int signal = g_signal;
      if (sinks_[i]->ended_by(Deadline::after_ms(signal == 0 ? BatchReport::kShowEveryMs : 0)))
        break;
      if (signal != 0) {
        cut_off(i, signal);
        return {};
      }
      show();
    }
    Completion completion = sinks_[i]->wait_end();
    if (!completion.end.status.ok()) lines_[i].wrong = completion.end.status;
    return completion;
  }

  /// The line gets no answer any more.
  void cut_off(size_t i, int signal) {
    cut_off_ = signal;
    host_.give_up();
    lines_[i].wrong =
        Status::error(Code::kCancelled, cat(name_of(signal), " ended the batch before the answer"));
  }

  int report_signal() const {
    const auto answered = std::count_if(lines_.begin(), lines_.end(),
                                        [](const RequestLine& line) { return line.wrong.ok(); });
    const int code = 128 + cut_off_;
    say_error(cat(name_of(cut_off_), " ended the batch: ",
                  answers_text(answered, static_cast<int64_t>(lines_.size()))),
              code);
    return code;
  }

  void show() {
    const RequestCounts counts = loop_.counts();
    const auto wrong = std::count(sinks_.begin(), sinks_.end(), nullptr);
    report_.show(std::accumulate(counts.ended.begin(), counts.ended.end(), int64_t{wrong}),
                 counts.generation_tokens);
  }

  const GenerateFlags& flags_;
  InferenceLoop& loop_;
  EngineHost& host_;
  std::vector<RequestLine> lines_;
  Sinks sinks_;
  BatchReport report_;
  int64_t empty_ = 0;  // answers that ended at once
  int cut_off_ = 0;    // the signal that left lines without an answer
};

/// Prints the error of every line of a batch in which no line can run. The value is the exit code.
/// A file without lines is no error, but hardly what its owner meant.
Staged<int> print_errors(const std::vector<RequestLine>& lines) {
  if (lines.empty()) say_done("generate", "0 requests");
  for (const RequestLine& line : lines)
    SHOAL_RETURN_IF_ERROR(at(Stage::kRequest, write_stdout(error_json(line, line.wrong) + "\n")));
  return lines.empty() ? 0 : kLinesFailed;
}

/// Runs the requests. The value is the exit code.
Staged<int> run_requests(const GenerateFlags& flags, const ServedModel& model,
                         const EngineLimits& limits, std::vector<RequestLine> requests,
                         EngineHost& host) {
  InferenceLoop loop(
      model, limits, [&host](const StepPlan& plan) { return host.step(plan); },
      scheduling_of(flags.scheduling));
  if (flags.jsonl) {
    keep_signals();
    return Batch(flags, loop, host, std::move(requests)).run();
  }
  SHOAL_RETURN_IF_ERROR(run_one(flags, loop, std::move(requests), host));
  return 0;
}

/// The value is the exit code.
Staged<int> generate(GenerateFlags flags) {
  SHOAL_ASSIGN_OR_RETURN(
      HostFacts facts,
      at(Stage::kStart, facts_for(&flags.engine.transport, flags.engine.tensor_parallel_size)));
  SHOAL_ASSIGN_OR_RETURN(std::vector<RequestLine> requests,
                         at(Stage::kRequest, read_requests(flags)));
  SHOAL_ASSIGN_OR_RETURN(const ModelFiles files, at(Stage::kModel, open_model(flags.engine)));
  SHOAL_ASSIGN_OR_RETURN(Tokenizer tokenizer, at(Stage::kModel, load_tokenizer(files)));
  if (flags.chat.messages) {
    SHOAL_ASSIGN_OR_RETURN(const RenderedPrompt prompt,
                           render_chat_prompt(flags.chat, flags.engine.model, files.start_by));
    SHOAL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                           encode_chat_prompt(flags.chat, prompt, tokenizer));
    requests[0].request.prompt_ids.emplace(ids.begin(), ids.end());
  }
  SHOAL_RETURN_IF_ERROR(render_lines(flags, files, tokenizer, &requests));
  SHOAL_ASSIGN_OR_RETURN(EnginePlan plan,
                         at(Stage::kRequest, plan_on_device(&flags.engine, files, facts.gpu)));
  const ServedModel model =
      make_served_model(files, std::move(tokenizer), plan, flags.engine.seed.value_or(0));
  const std::string sampling =
      sampling_of_model(model.generation, requests, flags.engine.seed.value_or(0));
  resolve_requests(model, plan.model.limits, &requests);
  SHOAL_RETURN_IF_ERROR(at(Stage::kRequest, why_none_runs(flags, requests)));
  const bool all_wrong = std::all_of(requests.begin(), requests.end(),
                                     [](const RequestLine& line) { return !line.wrong.ok(); });
  if (all_wrong) return print_errors(requests);
  SHOAL_RETURN_IF_ERROR(at(Stage::kRequest, fit_plan(model, requests, &plan)));
  SHOAL_ASSIGN_OR_RETURN(
      std::unique_ptr<EngineHost> host,
      at(Stage::kStart, EngineHost::start(plan, flags.engine, std::move(facts))));
  // Whoever compares answers needs it in a pipe too.
  if (!sampling.empty()) say_done("generate", sampling);
  return run_requests(flags, model, plan.model.limits, std::move(requests), *host);
}

}  // namespace

int run_generate(const GenerateFlags& flags) {
  const Staged<int> code = flags.converses ? generate_chat(flags) : generate(flags);
  return code.ok() ? *code : report_failure(code.error());
}

}  // namespace shoal
