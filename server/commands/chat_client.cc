#include "server/commands/chat_client.h"

#include <csignal>
#include <optional>
#include <poll.h>
#include <unistd.h>

#include "runtime/base/counted.h"
#include "runtime/base/deadline.h"
#include "runtime/base/log.h"
#include "runtime/base/ordered_json.h"
#include "server/cli/command_io.h"
#include "server/commands/chat_answer.h"
#include "server/commands/client_report.h"
#include "server/commands/conversation.h"
#include "server/commands/http_call.h"
#include "server/commands/length_text.h"

namespace shoal {

namespace {

constexpr int kHttpUnavailable = 503;
constexpr char kPath[] = "/v1/chat/completions";

/// An answer of the server, and how it has ended.
struct Reply {
  ChatAnswer answer = {};
  int exit_code = kExitOk;
  int signal = 0;
  bool unprinted = false;  ///< nobody reads stdout
};

class Chat {
 public:
  Chat(const ClientFlags& flags, ChatServer server, std::string api_key)
      : flags_(flags), server_(std::move(server)), api_key_(std::move(api_key)) {}

  /// Reads --messages and --chat-template-kwargs.
  Status prepare();
  int one_answer();
  int converse();

 private:
  std::string body(const OrderedJson& messages) const;
  Status call(const OrderedJson& messages, Reply* reply);
  Reply ask(const OrderedJson& messages);
  Status receive(int status, std::string_view bytes, Reply* reply) const;
  void report(const Status& called, Reply* reply);
  bool waits_for_server(const ChatAnswer& answer, Status* called);

  const ClientFlags& flags_;
  const ChatServer server_;
  const std::string api_key_;
  std::optional<Interrupts> interrupts_;  // once nothing is read any more that may not come
  OrderedJson messages_;                  // of --messages
  OrderedJson kwargs_;
  /// Until then a server that is not ready is waited for.
  const Deadline deadline_ = Deadline::after_s(flags_.wait_s);
  bool is_there_ = false;  // the server has said something
};

Status Chat::prepare() {
  SHOAL_ASSIGN_OR_RETURN(messages_, read_messages(flags_.messages, flags_.chat));
  if (flags_.kwargs) {
    SHOAL_ASSIGN_OR_RETURN(kwargs_, parse_ordered_json(*flags_.kwargs, "--chat-template-kwargs"));
  }
  interrupts_.emplace();
  return {};
}

template <typename T>
void set_if(const std::optional<T>& value, const char* name, OrderedJson* body) {
  if (value) (*body)[name] = *value;
}

std::string Chat::body(const OrderedJson& messages) const {
  const GenerationRequest& request = flags_.request;
  OrderedJson body = {
      {"messages", messages}, {"stream", true}, {"stream_options", {{"include_usage", true}}}};
  if (!flags_.model.empty()) body["model"] = flags_.model;
  if (!kwargs_.is_null()) body["chat_template_kwargs"] = kwargs_;
  if (flags_.json) body["return_token_ids"] = true;
  set_if(request.max_tokens, "max_tokens", &body);
  set_if(request.temperature, "temperature", &body);
  set_if(request.top_p, "top_p", &body);
  set_if(request.top_k, "top_k", &body);
  set_if(request.min_p, "min_p", &body);
  set_if(request.repetition_penalty, "repetition_penalty", &body);
  set_if(request.presence_penalty, "presence_penalty", &body);
  set_if(request.frequency_penalty, "frequency_penalty", &body);
  set_if(request.seed, "seed", &body);
  if (!request.stop.empty()) body["stop"] = request.stop;
  if (!request.stop_token_ids.empty()) body["stop_token_ids"] = request.stop_token_ids;
  if (request.ignore_eos) body["ignore_eos"] = true;
  if (request.logprobs) body["logprobs"] = true;
  set_if(request.logprobs, "top_logprobs", &body);
  return body.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

Status Chat::receive(int status, std::string_view bytes, Reply* reply) const {
  std::string text;
  SHOAL_RETURN_IF_ERROR(reply->answer.take(status, bytes, &text));
  std::string printed;  // the answer counts also if nobody reads it
  return flags_.json ? Status() : interrupts_->print(text, &printed);
}

/// What the server's refusal means for the exit code.
int exit_code_of(int http_status) {
  if (http_status == 429 || http_status >= 503) return kExitUnavailable;
  return http_status < 500 ? kExitUsage : kExitInternal;
}

void Chat::report(const Status& called, Reply* reply) {
  const ChatAnswer& answer = reply->answer;
  if (called.code() == Code::kCancelled) {
    reply->signal = interrupts_->take();
    reply->exit_code = 128 + (reply->signal == 0 ? SIGINT : reply->signal);
  } else if (called.code() == Code::kDeadlineExceeded) {
    reply->exit_code = fail_late(flags_, counted(answer.text().size(), "byte"));
  } else if (called.code() == Code::kDataLoss) {
    reply->unprinted = true;
    reply->exit_code = fail_to_write(called);
  } else if (called.code() == Code::kAborted) {
    reply->exit_code =
        fail(kExitUnavailable,
             cat("the server at ", flags_.server, " is gone after ",
                 counted(answer.text().size(), "byte"), " of the answer: ", called.message()));
  } else if (!called.ok()) {
    const bool no_server =
        called.code() == Code::kUnavailable || called.code() == Code::kFailedPrecondition;
    reply->exit_code = fail(no_server ? kExitUnavailable : kExitInternal, explained(called));
  } else if (answer.http_status() != 200) {
    const int code = exit_code_of(answer.http_status());
    // Which server it is does not matter for a request that every server would refuse.
    reply->exit_code = fail(code, cat(code == kExitUsage ? "" : flags_.server + ": ",
                                      answer.error(), wait_hint(flags_, answer.not_taken())));
  } else if (!answer.error().empty()) {
    reply->exit_code = fail(answer.may_ask_again() ? kExitUnavailable : kExitInternal,
                            cat("the request failed after ", counted(answer.text().size(), "byte"),
                                " of the answer: ", answer.error()));
  } else if (!answer.whole()) {
    reply->exit_code = fail(kExitUnavailable, cat("the server at ", flags_.server,
                                                  " ended the answer before it was whole, after ",
                                                  counted(answer.text().size(), "byte"), " of it"));
  }
}

/// Whether a server that is not ready yet may be there in a moment. False also if a signal came,
/// which *called then says.
bool Chat::waits_for_server(const ChatAnswer& answer, Status* called) {
  const bool may_come = called->code() == Code::kUnavailable ||
                        (called->code() == Code::kAborted && answer.text().empty());
  const bool is_loading = called->ok() && answer.http_status() == kHttpUnavailable;
  if ((!may_come && !is_loading) || deadline_.passed()) return false;
  pollfd stop{interrupts_->fd(), POLLIN, 0};
  const Deadline pause = Deadline::after_ms(kAskAgainMs);
  while (!pause.passed()) {
    if (::poll(&stop, 1, pause.remaining_ms()) <= 0) continue;
    *called = Status::error(Code::kCancelled, "interrupted");
    return false;
  }
  return true;
}

Status Chat::call(const OrderedJson& messages, Reply* reply) {
  if (flags_.wait_s > 0 && !is_there_) {
    SHOAL_RETURN_IF_ERROR(wait_for_http(server_, interrupts_->fd(), deadline_));
    is_there_ = true;
  }
  return http_call(server_, {"POST", kPath, api_key_, body(messages)}, interrupts_->fd(),
                   answer_deadline(flags_), [&](int status, std::string_view bytes) {
                     return receive(status, bytes, reply);
                   });
}

/// Gets the answer to the messages, and prints it as it comes.
Reply Chat::ask(const OrderedJson& messages) {
  Status left;  // how a server that had the request has left
  for (;;) {
    Reply reply;
    Status called = call(messages, &reply);
    if (called.code() == Code::kAborted) left = called;
    if (called.code() == Code::kUnavailable && !left.ok()) called = left;
    if (waits_for_server(reply.answer, &called)) continue;
    if (!flags_.json && !reply.answer.text().empty())
      end_answer_line(called.code() == Code::kCancelled);
    report(called, &reply);
    return reply;
  }
}

int Chat::one_answer() {
  const Reply reply = ask(messages_);
  const ChatAnswer& answer = reply.answer;
  if (reply.signal != 0) say_interrupted(answer.text().size(), "byte");
  if (reply.exit_code != kExitOk) return reply.exit_code;
  if (flags_.json) {
    const Status printed = write_stdout(answer.json(flags_.request.logprobs.has_value()));
    if (!printed.ok()) return fail_to_write(printed);
  }
  const std::string reason =
      answer.finish_reason() +
      length_note(answer.is_cut_off(), flags_.request.max_tokens, answer.output_tokens());
  const std::string line = figures(answer.output_tokens(), answer.prompt_tokens(), reason,
                                   answer.first_s(), answer.last_s());
  (void)write_all(STDERR_FILENO, line + seed_hint(flags_.request), "the figures to stderr");
  return kExitOk;
}

int Chat::converse() {
  return Conversation(
             messages_, *interrupts_,
             [this](const OrderedJson& messages) {
               const Reply reply = ask(messages);
               if (reply.exit_code == kExitOk && reply.answer.is_cut_off())
                 say_done("client", length_text(flags_.request.max_tokens,
                                                reply.answer.output_tokens(), "the server's "));
               return Turn{reply.answer.text(), reply.exit_code, reply.signal, reply.unprinted};
             })
      .run();
}

}  // namespace

int run_chat_client(const ClientFlags& flags, const std::string& api_key) {
  const Result<ChatServer> server = find_chat_server(flags);
  if (!server.ok()) return fail(kExitUsage, std::string(server.status().message()));
  Chat chat(flags, *server, api_key);
  if (const Status prepared = chat.prepare(); !prepared.ok())
    return fail(kExitUsage, explained(prepared));
  return flags.chat ? chat.converse() : chat.one_answer();
}

}  // namespace shoal
