#include <atomic>
#include <csignal>
#include <cstdio>
#include <grpcpp/grpcpp.h>
#include <iomanip>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <thread>
#include <unistd.h>

#include "models/tokenizer/unicode.h"
#include "runtime/base/deadline.h"
#include "runtime/base/fd.h"
#include "runtime/base/json.h"
#include "server/cli/command_io.h"
#include "server/commands/commands.h"
#include "server/grpc/generate_wire.h"

#include "openengine/v1/services.grpc.pb.h"

namespace shoal {

namespace wire = openengine::v1;

namespace {

constexpr int kExitOk = 0;
constexpr int kExitUsage = 64;
constexpr int kExitUnavailable = 69;
constexpr int kExitInternal = 70;
constexpr int kExitInterrupted = 128 + SIGINT;

int fail(int exit_code, const std::string& text) {
  const std::string line = "shoal client: " + text.substr(0, 1900) + "\n";
  (void)write_all(STDERR_FILENO, line, "the error to stderr");  // nowhere else to report it
  return exit_code;
}

/// While this object lives, SIGINT and SIGTERM cancel a call, and a second signal ends the process.
/// The signals are blocked and read from a descriptor, because a signal handler must not call gRPC.
/// Threads that are started meanwhile inherit the mask.
class CancelOnSignal {
 public:
  explicit CancelOnSignal(grpc::ClientContext* context) : context_(context) {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
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

  bool interrupted() const { return interrupted_; }

 private:
  void watch() {
    for (;;) {
      pollfd waits[] = {{signals_.get(), POLLIN, 0}, {leave_.get(), POLLIN, 0}};
      if (::poll(waits, 2, -1) < 0) continue;  // interrupted by a signal
      if (waits[1].revents != 0) return;
      signalfd_siginfo info;
      if (::read(signals_.get(), &info, sizeof info) != sizeof info) continue;
      if (interrupted_.exchange(true)) ::_exit(kExitInterrupted);
      context_->TryCancel();
    }
  }

  grpc::ClientContext* const context_;
  sigset_t old_mask_{};
  Fd signals_;
  Fd leave_;
  std::atomic<bool> interrupted_{false};
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

std::string figures(const Received& received) {
  const double after_first_s = received.last_s - received.first_s;
  const auto tokens = received.token_ids.size();
  std::ostringstream line;
  line << std::fixed << std::setprecision(3) << "shoal client: " << tokens
       << " tokens after a prompt of " << received.usage.prompt_tokens() << ", finish reason "
       << finish_reason(received.finished) << ", first token after " << received.first_s << " s";
  if (tokens > 1 && after_first_s > 0)
    line << std::setprecision(1) << ", then " << static_cast<double>(tokens - 1) / after_first_s
         << " tokens/s";
  line << "\n";
  return std::move(line).str();
}

int report_refusal(const ClientFlags& flags, const grpc::Status& status) {
  const std::string text = status.error_message();
  switch (status.error_code()) {
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::NOT_FOUND:
      return fail(kExitUsage, text);
    case grpc::StatusCode::UNAVAILABLE:
      // Only answers from the server itself carry details; errors of the connection have none.
      if (!status.error_details().empty())
        return fail(kExitUnavailable, cat(flags.server, ": ", text));
      return fail(
          kExitUnavailable,
          cat("no server answers at ", flags.server,
              ": start one with `shoal serve MODEL`, or name it with --server (", text, ")"));
    default:
      return fail(kExitInternal, cat(flags.server, ": ", text));
  }
}

std::shared_ptr<grpc::Channel> connect(const std::string& server) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  // Ignore proxy settings. A web proxy does not lead to an inference server, and http_proxy would
  // even break calls to 127.0.0.1.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(server, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

int run_client(const ClientFlags& flags) {
  Result<wire::GenerateRequest, RequestError> request = write_generate_request(flags.request);
  if (!request.ok()) return fail(kExitUsage, std::string(request.error().status.message()));
  request->set_model(to_valid_utf8(flags.model));
  grpc::ClientContext context;
  const CancelOnSignal cancel(&context);
  const auto stub = wire::Inference::NewStub(connect(flags.server));
  Received received;
  const auto reader = stub->Generate(&context, *request);
  const Status written = read_stream(reader.get(), !flags.json, &received);
  if (!written.ok()) context.TryCancel();
  const grpc::Status status = reader->Finish();
  if (!written.ok()) return fail(kExitInternal, written.to_string());
  const bool line_open = !flags.json && !received.text.empty();
  if (line_open && !write_stdout("\n").ok())
    return fail(kExitInternal, "stdout takes no more output");
  if (cancel.interrupted()) return fail(kExitInterrupted, "cancelled");
  if (!status.ok()) return report_refusal(flags, status);
  if (received.error.code() != wire::ERROR_CODE_UNSPECIFIED)
    return fail(kExitInternal, cat("the request failed: ", received.error.message()));
  if (received.finished.reason() == wire::FINISH_REASON_CANCELLED)
    return fail(kExitInternal, "the request was aborted at the server");
  if (flags.json) {
    const Status printed = write_stdout(result_json(received, flags.request.logprobs.has_value()));
    if (!printed.ok()) return fail(kExitInternal, printed.to_string());
  }
  (void)write_all(STDERR_FILENO, figures(received), "the figures to stderr");
  return kExitOk;
}

}  // namespace shoal
