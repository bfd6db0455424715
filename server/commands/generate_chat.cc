#include "server/commands/generate_chat.h"

#include <cerrno>
#include <memory>
#include <poll.h>
#include <sys/eventfd.h>
#include <utility>

#include "runtime/base/process_limit.h"
#include "server/cli/command_io.h"
#include "server/commands/chat_prompt.h"
#include "server/commands/completion_sink.h"
#include "server/commands/conversation.h"
#include "server/commands/length_text.h"
#include "server/commands/request_lines.h"
#include "server/host/device_plan.h"
#include "server/host/engine_host.h"

namespace shoal {
namespace {

/// A sink whose reader waits for signals too, and so needs a descriptor.
class PolledSink : public CompletionSink {
 public:
  /// changed: an eventfd, which can be read once there is something new.
  explicit PolledSink(Fd changed) : CompletionSink({}, {}), changed_(std::move(changed)) {}

  void on_delta(OutputDelta delta) override {
    CompletionSink::on_delta(std::move(delta));
    ::eventfd_write(changed_.get(), 1);
  }
  void on_end(OutputEnd end) override {
    CompletionSink::on_end(std::move(end));
    ::eventfd_write(changed_.get(), 1);
  }
  int fd() const { return changed_.get(); }

 private:
  const Fd changed_;
};

/// Answers the turns of a conversation, one request at a time.
class LocalChat {
 public:
  LocalChat(const GenerateFlags& flags, const ChatPrompts& prompts, const ServedModel& model,
            InferenceLoop& loop, EngineHost& host)
      : flags_(flags), prompts_(prompts), model_(model), loop_(loop), host_(host) {}

  int converse(OrderedJson messages) {
    return Conversation(std::move(messages), interrupts_,
                        [this](const OrderedJson& said) { return answer(said); })
        .run();
  }

 private:
  Staged<ResolvedRequest> request_of(const OrderedJson& messages) const {
    SHOAL_ASSIGN_OR_RETURN(const RenderedPrompt prompt, prompts_.render(messages));
    SHOAL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                           encode_chat_prompt(flags_.chat, prompt, model_.tokenizer));
    GenerationRequest wanted = flags_.request;
    wanted.prompt_ids.emplace(ids.begin(), ids.end());
    Result<ResolvedRequest, RequestError> request = resolve_request(std::move(wanted), model_);
    if (!request.ok()) return at(Stage::kRequest, request.error().status);
    return std::move(request).value();
  }

  Turn answer(const OrderedJson& messages) {
    Turn turn;
    const Ending ending = run(messages, &turn);
    if (!ending.ok()) turn.exit_code = report_failure(ending);
    return turn;
  }

  /// The error is why the turn has failed, unless a signal has ended it.
  Ending run(const OrderedJson& messages, Turn* turn) {
    SHOAL_ASSIGN_OR_RETURN(ResolvedRequest request, request_of(messages));
    Fd changed(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!changed.valid()) {
      const int error = errno;
      return at(Stage::kStart, Status::error(descriptor_code(error),
                                             cat("make a descriptor for an answer (eventfd)",
                                                 descriptor_hint(error)),
                                             error));
    }
    const auto sink = std::make_shared<PolledSink>(std::move(changed));
    const Result<uint64_t, RefusedRequest> id = loop_.submit(std::move(request), sink);
    if (!id.ok()) return failed(id.error().error.status, turn);
    const Status printed = print(*sink, *id, turn);
    turn->over = !printed.ok();
    if (printed.ok() && !turn->text.empty()) end_answer_line(turn->signal != 0);
    if (turn->signal != 0 || !printed.ok()) return at(Stage::kRequest, printed);
    const OutputEnd end = sink->wait_end().end;
    if (end.status.ok() && end.finish.reason == FinishReason::kLength)
      say_done("generate", length_text(flags_.request.max_tokens, end.completion_tokens));
    return failed(end.status, turn);
  }

  /// How a request has ended. Once the ranks are lost, no other can follow.
  Ending failed(const Status& status, Turn* turn) {
    turn->over = !loop_.status().ok();
    return turn->over ? host_.ending(status) : at(Stage::kRun, status);
  }

  /// Prints the answer as it comes, until it ends or a signal comes.
  Status print(PolledSink& sink, uint64_t id, Turn* turn) {
    for (bool ended = false; !ended;) {
      pollfd fds[] = {{sink.fd(), POLLIN, 0}, {interrupts_.fd(), POLLIN, 0}};
      if (::poll(fds, 2, -1) < 0) continue;
      if (fds[1].revents != 0 && (turn->signal = interrupts_.take()) != 0) {
        turn->exit_code = 128 + turn->signal;
        loop_.cancel(id);
        break;
      }
      eventfd_t changes = 0;
      ::eventfd_read(sink.fd(), &changes);
      ended = sink.ended_by(Deadline::after_ms(0));  // before the text, so that none is left
      const std::string text = sink.take_text();
      const Status printed = interrupts_.print(text, &turn->text);
      if (printed.code() == Code::kCancelled) {
        ended = false;  // the signal is taken above
      } else if (!printed.ok()) {
        loop_.cancel(id);
        return printed;
      }
    }
    return {};
  }

  const GenerateFlags& flags_;
  const ChatPrompts& prompts_;
  const ServedModel& model_;
  InferenceLoop& loop_;
  EngineHost& host_;
  Interrupts interrupts_;
};

}  // namespace

Staged<int> generate_chat(GenerateFlags flags) {
  flags.engine.max_num_seqs = 1;  // so that the KV cache is planned for one conversation
  SHOAL_ASSIGN_OR_RETURN(
      HostFacts facts,
      at(Stage::kStart, facts_for(&flags.engine.transport, flags.engine.tensor_parallel_size)));
  SHOAL_ASSIGN_OR_RETURN(OrderedJson messages,
                         at(Stage::kRequest, read_messages(flags.chat.messages, true)));
  SHOAL_ASSIGN_OR_RETURN(const ModelFiles files, at(Stage::kModel, open_model(flags.engine)));
  SHOAL_ASSIGN_OR_RETURN(Tokenizer tokenizer, at(Stage::kModel, load_tokenizer(files)));
  SHOAL_ASSIGN_OR_RETURN(const ChatPrompts prompts,
                         ChatPrompts::open(flags.chat, flags.engine.model, files.start_by));
  SHOAL_ASSIGN_OR_RETURN(EnginePlan plan,
                         at(Stage::kRequest, plan_on_device(&flags.engine, files, facts.gpu)));
  SHOAL_ASSIGN_OR_RETURN(
      std::unique_ptr<EngineHost> host,
      at(Stage::kStart, EngineHost::start(plan, flags.engine, std::move(facts))));
  const ServedModel model =
      make_served_model(files, std::move(tokenizer), plan, flags.engine.seed.value_or(0));
  std::vector<RequestLine> turns(1);
  turns[0].request = flags.request;
  const std::string sampling =
      sampling_of_model(model.generation, turns, flags.engine.seed.value_or(0));
  // Whoever compares answers needs it in a pipe too.
  if (!sampling.empty()) say_done("generate", sampling);
  InferenceLoop loop(
      model, plan.model.limits, [&host](const StepPlan& step) { return host->step(step); },
      scheduling_of(flags.scheduling));
  const int exit_code = LocalChat(flags, prompts, model, loop, *host).converse(std::move(messages));
  host->give_up();  // a step that nobody waits for need not come to its end
  host->log_summary();
  return exit_code;
}

}  // namespace shoal
