#include <chrono>
#include <csignal>
#include <cstdlib>
#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>
#include <mutex>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "models/tokenizer/unicode.h"
#include "runtime/base/counted.h"
#include "runtime/base/deadline.h"
#include "runtime/base/fd.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/base/number_text.h"
#include "runtime/base/signals.h"
#include "server/cli/command_io.h"
#include "server/commands/chat_client.h"
#include "server/commands/client_channel.h"
#include "server/commands/client_report.h"
#include "server/commands/commands.h"
#include "server/commands/http_call.h"
#include "server/commands/stdin_prompt.h"
#include "server/grpc/generate_wire.h"
#include "server/grpc/grpc_status.h"
#include "server/serving/api_keys.h"

#include "openengine/v1/services.grpc.pb.h"

namespace shoal {

namespace wire = openengine::v1;

namespace {

/// While this object lives, SIGINT and SIGTERM cancel the call that is open. Without one, and after
/// a first signal, they end the process. They are blocked and read from a descriptor, because a
/// signal handler must not call gRPC. Threads that are started meanwhile inherit the mask, so make
/// this before gRPC has any: one of its threads would take the signal and end the process at once.
class CancelOnSignal {
 public:
  CancelOnSignal() {
    const sigset_t signals = not_ignored({SIGINT, SIGTERM});
    pthread_sigmask(SIG_BLOCK, &signals, &old_mask_);
    signals_.reset(::signalfd(-1, &signals, SFD_CLOEXEC));
    leave_.reset(::eventfd(0, EFD_CLOEXEC));
    // Without the descriptors a blocked Ctrl-C would do nothing at all, so leave the signals alone
    // and let Ctrl-C end the process as usual.
    if (signals_.valid() && leave_.valid())
      thread_ = std::thread([this] { watch(); });
    else
      pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
  }
  ~CancelOnSignal() {
    if (!thread_.joinable()) return;
    (void)::eventfd_write(leave_.get(), 1);
    thread_.join();
    pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
  }
  CancelOnSignal(const CancelOnSignal&) = delete;
  CancelOnSignal& operator=(const CancelOnSignal&) = delete;

  /// From now on this call is the open one; null: none is.
  void set_call(grpc::ClientContext* call) {
    const std::lock_guard lock(mutex_);
    call_ = call;
  }
  /// The exit code that the signal asks for which has cancelled a call; 0 if none has.
  int interrupted() {
    const std::lock_guard lock(mutex_);
    return interrupted_;
  }

 private:
  void watch() {
    for (;;) {
      pollfd waits[] = {{signals_.get(), POLLIN, 0}, {leave_.get(), POLLIN, 0}};
      if (::poll(waits, 2, -1) < 0) continue;  // interrupted by a signal
      if (waits[1].revents != 0) return;
      signalfd_siginfo info;
      if (::read(signals_.get(), &info, sizeof info) != sizeof info) continue;
      const std::lock_guard lock(mutex_);
      const int code = 128 + static_cast<int>(info.ssi_signo);
      // The first one is being told, or will be, also if its call has ended meanwhile.
      if (std::exchange(interrupted_, code) != 0) ::_exit(code);
      if (call_ == nullptr) {
        say_interrupted(0, "token");
        ::_exit(code);
      }
      call_->TryCancel();
    }
  }

  sigset_t old_mask_{};
  Fd signals_;
  Fd leave_;
  std::mutex mutex_;  // guards what follows
  grpc::ClientContext* call_ = nullptr;
  int interrupted_ = 0;
  std::thread thread_;
};

/// What one stream has delivered.
struct Received {
  std::string request_id;
  Json token_ids = Json::array();
  Json logprobs = Json::array();
  std::string text;
  wire::GenerationFinished finished;
  wire::EngineError error;
  wire::Usage usage;
  Clock::time_point started = Clock::now();
  double first_s = 0;  ///< seconds to the first token
  double last_s = 0;
};

void record_tokens(const wire::TokenOutput& output, Received* received) {
  received->last_s = seconds_since(received->started);
  if (received->token_ids.empty()) received->first_s = received->last_s;
  for (const wire::TokenInfo& token : output.tokens()) {
    received->token_ids.push_back(token.token_id());
    Json top = Json::array();
    for (const wire::LogProb& candidate : token.candidates())
      top.push_back(Json::array({candidate.token_id(), candidate.logprob()}));
    received->logprobs.push_back(
        {{"token_id", token.token_id()}, {"logprob", token.logprob()}, {"top", top}});
  }
  received->text += output.text();
}

/// Reads the stream to its end. Error: DATA_LOSS if stdout cannot be written.
Status read_stream(grpc::ClientReader<wire::GenerateResponse>* reader, bool print_text,
                   Received* received) {
  wire::GenerateResponse response;
  while (reader->Read(&response)) {
    received->request_id = response.request_id();
    if (response.has_usage()) received->usage = response.usage();
    if (response.has_token()) {
      record_tokens(response.token(), received);
      if (print_text) SHOAL_RETURN_IF_ERROR(write_stdout(response.token().text()));
    } else if (response.has_finished()) {
      received->finished = response.finished();
    } else if (response.has_error()) {
      received->error = response.error();
    }
  }
  return {};
}

const char* finish_reason(const wire::GenerationFinished& finished) {
  switch (finished.reason()) {
    case wire::FINISH_REASON_STOP:
      return "stop";
    case wire::FINISH_REASON_LENGTH:
      return "length";
    case wire::FINISH_REASON_CANCELLED:
      return "cancelled";
    default:
      return "unknown";
  }
}

std::string result_json(const Received& received, bool with_logprobs) {
  Json object = {{"request_id", received.request_id},
                 {"token_ids", received.token_ids},
                 {"text", received.text},
                 {"finish_reason", finish_reason(received.finished)},
                 {"logprobs", with_logprobs ? received.logprobs : Json()},
                 {"usage",
                  {{"prompt_tokens", received.usage.prompt_tokens()},
                   {"completion_tokens", received.usage.completion_tokens()}}}};
  return json_text(object) + "\n";
}

std::string figures_of(const ClientFlags& flags, const Received& received) {
  const auto tokens = static_cast<int64_t>(received.token_ids.size());
  const bool is_length = received.finished.reason() == wire::FINISH_REASON_LENGTH;
  const std::string note = length_note(is_length, flags.request.max_tokens, tokens);
  return figures(tokens, received.usage.prompt_tokens(), finish_reason(received.finished) + note,
                 received.first_s, received.last_s);
}

/// How a call has ended.
struct Call {
  Received received = {};
  Status written = {};  ///< not ok: stdout takes no more
  grpc::Status status = {};
  int interrupted = 0;     ///< the exit code, if a signal has cancelled it
  bool was_there = false;  ///< a server of gRPC has been connected, by this call or one before it
};

/// What gRPC says of a connection, without what is the same each time.
std::string reason_of(std::string_view text) {
  for (const std::string_view before :
       {"failed to connect to all addresses; last error: ", "UNKNOWN: ", "UNAVAILABLE: "})
    if (text.starts_with(before)) text.remove_prefix(before.size());
  return std::string(text);
}

/// Whether something is there after all, for example a server of HTTP.
bool takes_connections(HttpAddress address) {
  address.encrypted = false;  // only the connection matters
  return ClientConnection::open(address, nullptr, -1).ok();
}

std::string no_answer(const ClientFlags& flags, const Call& call) {
  const std::string reason = reason_of(call.status.error_message());
  const size_t tokens = call.received.token_ids.size();
  if (call.was_there || tokens > 0)
    return cat("the server at ", flags.server, " is gone after ", counted(tokens, "token"),
               " of the answer: it has died, or the connection has broken (", reason, ")");
  const Result<HttpAddress> address = parse_http_address(flags.server, ServerPort::kGrpc);
  const bool encrypted = flags.tls.any() || flags.server.starts_with("https://");
  if (address.ok() && encrypted && takes_connections(*address))
    return cat("what answers at ", flags.server,
               " does not speak gRPC over TLS that is trusted here: its certificate may need "
               "--ssl-ca-certs, it may ask for one of this client (--ssl-certfile), or this is not "
               "its gRPC port, which is grpc= in its READY line (",
               reason, ")");
  if (address.ok() && takes_connections(*address))
    return cat(
        "what answers at ", flags.server,
        " does not speak gRPC: name the server's gRPC port, which is grpc= in its READY line "
        "(usually --server ",
        usual_address(*address, ServerPort::kGrpc),
        "), with https:// if it has a certificate; or, if this is its HTTP port, ask it with "
        "--chat instead of a prompt (",
        reason, ")");
  return cat(
      "no server answers at ", flags.server,
      flags.wait_s > 0 ? cat(" within ", with_digits(flags.wait_s, 6), " s") : "",
      ": start one with `shoal serve MODEL`, or give --server the address after grpc= in the "
      "READY line of one that runs (",
      reason, ")");
}

int report_refusal(const ClientFlags& flags, const Call& call) {
  const grpc::Status& status = call.status;
  const std::string text = status.error_message();
  switch (status.error_code()) {
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::NOT_FOUND:
    case grpc::StatusCode::UNAUTHENTICATED:
      return fail(kExitUsage, text);
    case grpc::StatusCode::UNAVAILABLE:
      // Only answers from the server itself carry details; errors of the connection have none.
      if (!status.error_details().empty())
        return fail(kExitUnavailable,
                    cat(flags.server, ": ", text, wait_hint(flags, why_not_taken(status))));
      return fail(kExitUnavailable, no_answer(flags, call));
    case grpc::StatusCode::DEADLINE_EXCEEDED:  // also one that somebody on the way has set
      if (flags.timeout_s <= 0) return fail(kExitUnavailable, cat(flags.server, ": ", text));
      return fail_late(flags, counted(call.received.token_ids.size(), "token"));
    case grpc::StatusCode::RESOURCE_EXHAUSTED:  // also a deadline that cannot be met
      return fail(kExitUnavailable, cat(flags.server, ": ", text));
    default:
      return fail(kExitInternal, cat(flags.server, ": ", text));
  }
}

/// The key that the server may need: the flag's or the file's, otherwise the environment's; empty
/// if there is none. INVALID_ARGUMENT: the file has none, or a header cannot carry it.
Result<std::string> key_of(const ClientFlags& flags) {
  std::string key = flags.api_key;
  if (key.empty() && !flags.api_key_file.empty()) {
    const Result<std::vector<std::string>> keys = read_api_keys(flags.api_key_file);
    if (!keys.ok())
      return keys.status().because_of(Code::kInvalidArgument, "--api-key-file gives no key");
    key = keys->front();
  }
  const char* value = std::getenv("SHOAL_API_KEY");
  if (key.empty() && value != nullptr) key = value;
  if (!key.empty()) SHOAL_RETURN_IF_ERROR(check_api_key(key, "the API key"));
  return key;
}

std::chrono::system_clock::time_point from_now(double seconds) {
  using Clock = std::chrono::system_clock;
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

/// Waits until the channel has a connection or cannot get one, and says whether it has one. Only a
/// server of gRPC at the other end makes it ready.
bool channel_connects(grpc::Channel& channel, std::chrono::system_clock::time_point deadline) {
  for (;;) {
    const grpc_connectivity_state state = channel.GetState(true);
    if (state == GRPC_CHANNEL_READY) return true;
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE || state == GRPC_CHANNEL_SHUTDOWN) return false;
    if (!channel.WaitForStateChange(state, deadline)) return false;
  }
}

Call call_server(const ClientFlags& flags, const std::string& key,
                 const wire::GenerateRequest& request,
                 const std::shared_ptr<grpc::Channel>& channel, CancelOnSignal* signals) {
  Call call;
  grpc::ClientContext context;
  if (!key.empty()) context.AddMetadata("authorization", "Bearer " + key);
  if (flags.timeout_s > 0) context.set_deadline(from_now(flags.timeout_s));
  call.was_there = channel_connects(*channel, context.deadline());
  const auto stub = wire::Inference::NewStub(channel);
  signals->set_call(&context);
  const auto reader = stub->Generate(&context, request);
  call.written = read_stream(reader.get(), !flags.json, &call.received);
  if (!call.written.ok()) context.TryCancel();
  call.status = reader->Finish();
  signals->set_call(nullptr);
  call.interrupted = signals->interrupted();
  return call;
}

/// Whether the server may be there, or ready, in a moment.
bool may_come(const Call& call) {
  return call.status.error_code() == grpc::StatusCode::UNAVAILABLE && call.interrupted == 0 &&
         call.written.ok() && call.received.token_ids.empty();
}

/// Prints what is left to print of a call that has ended, and returns the exit code.
int conclude(const ClientFlags& flags, const Call& call) {
  const Received& received = call.received;
  if (!call.written.ok()) return fail_to_write(call.written);
  const bool line_open = !flags.json && !received.text.empty();
  const Status line_ended = line_open ? write_stdout("\n") : Status();
  if (!line_ended.ok()) return fail_to_write(line_ended);
  if (call.interrupted != 0) {
    say_interrupted(received.token_ids.size(), "token");
    return call.interrupted;
  }
  if (!call.status.ok()) return report_refusal(flags, call);
  if (received.error.code() != wire::ERROR_CODE_UNSPECIFIED) {
    return fail(received.error.retryable() ? kExitUnavailable : kExitInternal,
                cat("the request failed after ", counted(received.token_ids.size(), "token"),
                    " of the answer: ", received.error.message()));
  }
  if (received.finished.reason() == wire::FINISH_REASON_CANCELLED)
    return fail(kExitInternal, "the request was aborted at the server");
  if (flags.json) {
    const Status printed = write_stdout(result_json(received, flags.request.logprobs.has_value()));
    if (!printed.ok()) return fail_to_write(printed);
  }
  const bool ended_at_once = received.text.empty() && !flags.request.prompt_ids &&
                             received.finished.stop_match().has_eos_token_id();
  const std::string below = cat(figures_of(flags, received), seed_hint(flags.request),
                                ended_at_once ? kEmptyAnswerHint : "");
  (void)write_all(STDERR_FILENO, below, "the figures to stderr");
  return kExitOk;
}

/// Between calls nobody else looks at the channel, and gRPC alone would look every 5 s. A port that
/// takes a connection and then says nothing is no server either.
bool connects_within(grpc::Channel& channel, double seconds) {
  return channel.WaitForConnected(from_now(seconds));
}

int complete(const ClientFlags& flags, const std::string& key) {
  GenerationRequest wanted = flags.request;
  const Status prompted =
      take_stdin_prompt("client", "--prompt, --prompt-ids, --messages, --chat", false, &wanted);
  if (!prompted.ok()) return fail(kExitUsage, explained(prompted));
  Result<wire::GenerateRequest, RequestError> request = write_generate_request(wanted);
  if (!request.ok()) return fail(kExitUsage, std::string(request.error().status.message()));
  request->set_model(to_valid_utf8(flags.model));
  CancelOnSignal signals;
  gpr_set_log_function([](gpr_log_func_args*) {});  // what it says is in the status as well
  const Result<std::shared_ptr<grpc::Channel>> channel = open_client_channel(flags);
  if (!channel.ok()) return fail(kExitUsage, explained(channel.status()));
  const Deadline deadline = Deadline::after_s(flags.wait_s);
  if (flags.wait_s > 0 && !connects_within(**channel, flags.wait_s)) {
    Call none;
    none.status = grpc::Status(grpc::StatusCode::UNAVAILABLE, "no connection could be made");
    return conclude(flags, none);
  }
  bool was_there = flags.wait_s > 0;
  for (;;) {
    Call call = call_server(flags, key, *request, *channel, &signals);
    call.was_there |= was_there;
    was_there = call.was_there;
    if (!may_come(call) || deadline.passed()) return conclude(flags, call);
    const Deadline pause = Deadline::after_ms(kAskAgainMs);
    while (!pause.passed())
      std::this_thread::sleep_for(std::chrono::milliseconds(pause.remaining_ms()));
  }
}

}  // namespace

int run_client(const ClientFlags& flags) {
  const Result<std::string> key = key_of(flags);
  if (!key.ok()) return fail(kExitUsage, explained(key.status()));
  return flags.chat || flags.messages ? run_chat_client(flags, *key) : complete(flags, *key);
}

}  // namespace shoal
