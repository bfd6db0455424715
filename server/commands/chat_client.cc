#include "server/commands/chat_client.h"

#include <cerrno>
#include <csignal>
#include <optional>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "runtime/base/counted.h"
#include "runtime/base/deadline.h"
#include "runtime/base/fd.h"
#include "runtime/base/log.h"
#include "runtime/base/ordered_json.h"
#include "runtime/base/signals.h"
#include "server/cli/command_io.h"
#include "server/commands/chat_answer.h"
#include "server/commands/client_report.h"
#include "server/commands/http_call.h"

namespace shoal {

namespace {

constexpr int kHttpUnavailable = 503;
constexpr char kPath[] = "/v1/chat/completions";
constexpr size_t kMostMessage = size_t{16} << 20;  // bytes of one line

/// SIGINT and SIGTERM as a descriptor, while this object lives. Ctrl-C must end an answer, and not
/// the conversation.
class Interrupts {
 public:
  Interrupts() {
    const sigset_t signals = not_ignored({SIGINT, SIGTERM});
    pthread_sigmask(SIG_BLOCK, &signals, &before_);
    signals_.reset(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
    // Without it a blocked Ctrl-C would do nothing at all.
    if (!signals_.valid()) pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  ~Interrupts() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  int fd() const { return signals_.get(); }
  /// The signal that has come, or 0.
  int take() {
    signalfd_siginfo info;
    return ::read(fd(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  sigset_t before_{};
  Fd signals_;
};

/// Lines of stdin, of which each is a message.
class Lines {
 public:
  enum class Next { kLine, kEnd, kSignal };

  /// Waits for the next line. It is the last one also without a newline.
  Next read(int signals, std::string* line) {
    for (;;) {
      if (const size_t end = buffer_.find('\n'); end != std::string::npos || (over_ && any())) {
        *line = buffer_.substr(0, end);
        buffer_.erase(0, end == std::string::npos ? end : end + 1);
        if (line->ends_with('\r')) line->pop_back();
        return Next::kLine;
      }
      if (over_) return Next::kEnd;
      pollfd fds[] = {{STDIN_FILENO, POLLIN, 0}, {signals, POLLIN, 0}};
      if (::poll(fds, 2, -1) < 0) continue;
      if (fds[1].revents != 0) return Next::kSignal;
      char bytes[4096];
      const ssize_t n = ::read(STDIN_FILENO, bytes, sizeof bytes);
      if (n > 0) buffer_.append(bytes, static_cast<size_t>(n));
      over_ =
          n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN) || buffer_.size() > kMostMessage;
    }
  }
  /// What was typed before a Ctrl-C counts no more.
  void forget() { buffer_.clear(); }

 private:
  bool any() const { return !buffer_.empty(); }

  std::string buffer_;
  bool over_ = false;
};

/// How a turn of the conversation has ended.
struct Turn {
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
  std::string body() const;
  Status call(Turn* turn);
  Turn ask();
  Status receive(int status, std::string_view bytes, Turn* turn) const;
  void report(const Status& called, Turn* turn);
  bool waits_for_server(const ChatAnswer& answer, Status* called);
  bool asks_first() const;
  bool take_turn(int* exit_code);
  bool goes_on_after_signal(int* exit_code);
  void say(const char* role, const std::string& text) {
    messages_.push_back({{"role", role}, {"content", text}});
  }

  const ClientFlags& flags_;
  const ChatServer server_;
  const std::string api_key_;
  Interrupts interrupts_;
  OrderedJson messages_ = OrderedJson::array();
  OrderedJson kwargs_;
  /// Until then a server that is not ready is waited for.
  const Deadline deadline_ = Deadline::after_s(flags_.wait_s);
  const bool terminal_ = ::isatty(STDIN_FILENO) == 1;
  bool is_there_ = false;  // the server has said something
  bool interrupted_at_prompt_ = false;
};

Status Chat::prepare() {
  if (flags_.messages) {
    SHOAL_ASSIGN_OR_RETURN(const std::string text,
                           read_input("--messages", *flags_.messages, kMaxInputBytes));
    SHOAL_ASSIGN_OR_RETURN(messages_, parse_ordered_json(text, "--messages " + *flags_.messages));
    if (!messages_.is_array() || (messages_.empty() && !flags_.chat))
      return Status::error(Code::kInvalidArgument,
                           cat("--messages ", *flags_.messages,
                               " must be a JSON list of messages, such as "
                               "[{\"role\": \"user\", \"content\": \"Hello\"}]"));
  }
  if (flags_.kwargs) {
    SHOAL_ASSIGN_OR_RETURN(kwargs_, parse_ordered_json(*flags_.kwargs, "--chat-template-kwargs"));
  }
  return {};
}

template <typename T>
void set_if(const std::optional<T>& value, const char* name, OrderedJson* body) {
  if (value) (*body)[name] = *value;
}

std::string Chat::body() const {
  const GenerationRequest& request = flags_.request;
  OrderedJson body = {
      {"messages", messages_}, {"stream", true}, {"stream_options", {{"include_usage", true}}}};
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

Status Chat::receive(int status, std::string_view bytes, Turn* turn) const {
  std::string text;
  SHOAL_RETURN_IF_ERROR(turn->answer.take(status, bytes, &text));
  return flags_.json ? Status() : write_stdout(text);
}

/// What the server's refusal means for the exit code.
int exit_code_of(int http_status) {
  if (http_status == 429 || http_status >= 503) return kExitUnavailable;
  return http_status < 500 ? kExitUsage : kExitInternal;
}

void Chat::report(const Status& called, Turn* turn) {
  const ChatAnswer& answer = turn->answer;
  if (called.code() == Code::kCancelled) {
    turn->signal = interrupts_.take();
    turn->exit_code = 128 + (turn->signal == 0 ? SIGINT : turn->signal);
  } else if (called.code() == Code::kDeadlineExceeded) {
    turn->exit_code = fail_late(flags_, counted(answer.text().size(), "byte"));
  } else if (called.code() == Code::kDataLoss) {
    turn->unprinted = true;
    turn->exit_code = fail_to_write(called);
  } else if (!called.ok()) {
    const bool gone =
        called.code() == Code::kUnavailable || called.code() == Code::kFailedPrecondition;
    // An error of the connection says only that nobody answers.
    const bool broken = gone && !answer.text().empty();
    turn->exit_code = broken
                          ? fail(kExitUnavailable,
                                 cat("the server at ", flags_.server, " is gone after ",
                                     counted(answer.text().size(), "byte"),
                                     " of the answer: it has died, or the connection has broken"))
                          : fail(gone ? kExitUnavailable : kExitInternal, explained(called));
  } else if (answer.http_status() != 200) {
    turn->exit_code = fail(exit_code_of(answer.http_status()),
                           answer.error() + wait_hint(flags_, answer.not_taken()));
  } else if (!answer.error().empty()) {
    turn->exit_code = fail(answer.may_ask_again() ? kExitUnavailable : kExitInternal,
                           cat("the request failed after ", counted(answer.text().size(), "byte"),
                               " of the answer: ", answer.error()));
  } else if (!answer.whole()) {
    turn->exit_code = fail(kExitUnavailable, cat("the server at ", flags_.server,
                                                 " ended the answer before it was whole, after ",
                                                 counted(answer.text().size(), "byte"), " of it"));
  }
}

/// Whether a server that is not ready yet may be there in a moment. False also if a signal came,
/// which *called then says.
bool Chat::waits_for_server(const ChatAnswer& answer, Status* called) {
  const bool may_come = called->code() == Code::kUnavailable && answer.text().empty();
  const bool is_loading = called->ok() && answer.http_status() == kHttpUnavailable;
  if ((!may_come && !is_loading) || deadline_.passed()) return false;
  pollfd stop{interrupts_.fd(), POLLIN, 0};
  const Deadline pause = Deadline::after_ms(kAskAgainMs);
  while (!pause.passed()) {
    if (::poll(&stop, 1, pause.remaining_ms()) <= 0) continue;
    *called = Status::error(Code::kCancelled, "interrupted");
    return false;
  }
  return true;
}

Status Chat::call(Turn* turn) {
  if (flags_.wait_s > 0 && !is_there_) {
    SHOAL_RETURN_IF_ERROR(wait_for_http(server_, interrupts_.fd(), deadline_));
    is_there_ = true;
  }
  return http_call(
      server_, {"POST", kPath, api_key_, body()}, interrupts_.fd(), answer_deadline(flags_),
      [&](int status, std::string_view bytes) { return receive(status, bytes, turn); });
}

/// Gets the answer to what has been said, and prints it as it comes.
Turn Chat::ask() {
  for (;;) {
    Turn turn;
    Status called = call(&turn);
    if (waits_for_server(turn.answer, &called)) continue;
    if (!flags_.json && !turn.answer.text().empty()) (void)write_stdout("\n");
    report(called, &turn);
    return turn;
  }
}

int Chat::one_answer() {
  const Turn turn = ask();
  const ChatAnswer& answer = turn.answer;
  if (turn.signal != 0) say_interrupted(answer.text().size(), "byte");
  if (turn.exit_code != kExitOk) return turn.exit_code;
  if (flags_.json) {
    const Status printed = write_stdout(answer.json(flags_.request.logprobs.has_value()));
    if (!printed.ok()) return fail_to_write(printed);
  }
  const std::string line = figures(answer.output_tokens(), answer.prompt_tokens(),
                                   answer.finish_reason(), answer.first_s(), answer.last_s());
  (void)write_all(STDERR_FILENO, line, "the figures to stderr");
  return kExitOk;
}

/// The last message of the user is answered, or, if that fails, taken back so that it can be said
/// again. False: the conversation is over.
bool Chat::take_turn(int* exit_code) {
  const Turn turn = ask();
  const bool stopped = turn.signal == SIGINT && terminal_;
  if (turn.unprinted || (turn.signal != 0 && !stopped)) {
    if (turn.signal != 0) say_interrupted(turn.answer.text().size(), "byte");
    *exit_code = turn.exit_code;
    return false;
  }
  if (turn.exit_code == kExitOk || (stopped && !turn.answer.text().empty())) {
    say("assistant", turn.answer.text());
  } else {
    messages_.erase(messages_.size() - 1);
  }
  if (turn.exit_code != kExitOk && !stopped && !terminal_) *exit_code = turn.exit_code;
  return true;
}

/// Ctrl-C at the prompt ends the conversation only if it comes twice.
bool Chat::goes_on_after_signal(int* exit_code) {
  const int signal = interrupts_.take();
  if (signal == 0) return true;
  if (signal == SIGINT && terminal_ && !interrupted_at_prompt_) {
    interrupted_at_prompt_ = true;
    (void)write_all(STDERR_FILENO, "\n(Ctrl-D, or Ctrl-C once more, ends)\n", "a hint to stderr");
    return true;
  }
  *exit_code = 128 + signal;
  return false;
}

/// Whether --messages ends with a message of the user.
bool Chat::asks_first() const {
  if (messages_.empty() || !messages_.back().is_object()) return false;
  const auto role = messages_.back().find("role");
  return role != messages_.back().end() && *role == "user";
}

int Chat::converse() {
  int exit_code = kExitOk;
  Lines lines;
  if (asks_first() && !take_turn(&exit_code)) return exit_code;
  for (std::string line;;) {
    if (terminal_) (void)write_all(STDERR_FILENO, "> ", "the prompt to stderr");
    const Lines::Next next = lines.read(interrupts_.fd(), &line);
    if (next == Lines::Next::kEnd) {
      if (terminal_) (void)write_all(STDERR_FILENO, "\n", "the end to stderr");
      return exit_code;
    }
    if (next == Lines::Next::kSignal) {
      lines.forget();
      if (!goes_on_after_signal(&exit_code)) return exit_code;
      continue;
    }
    interrupted_at_prompt_ = false;
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    say("user", line);
    if (!take_turn(&exit_code)) return exit_code;
  }
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
