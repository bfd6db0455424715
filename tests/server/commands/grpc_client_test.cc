// `shoal client` with a real server: its output and its exit codes.

#include <algorithm>
#include <csignal>
#include <thread>
#include <unistd.h>

#include "runtime/base/json.h"
#include "server/commands/commands.h"
#include "server/grpc/grpc_status.h"
#include "tests/server/grpc/grpc_fixture.h"

namespace shoal {
namespace {

/// Blocks these signals before any thread exists, so that they wait for the client under test, as
/// they would in the program.
const bool kSignalsBlocked = [] {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return pthread_sigmask(SIG_BLOCK, &signals, nullptr) == 0;
}();

class GrpcClient : public GrpcFixture {
 protected:
  struct Run {
    int exit_code = -1;
    std::string out;
    std::string err;
  };
  static Run run(const ClientFlags& flags) {
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    Run run;
    run.exit_code = run_client(flags);
    run.out = testing::internal::GetCapturedStdout();
    run.err = testing::internal::GetCapturedStderr();
    return run;
  }
  ClientFlags flags(const std::string& prompt) {
    ClientFlags flags;
    flags.server = server_->address();
    flags.request.prompt = prompt;
    flags.request.max_tokens = 4;
    return flags;
  }
};

TEST_F(GrpcClient, PrintsTheTextAndThenTheFigures) {
  start({});
  const Run got = run(flags("a"));
  EXPECT_EQ(got.exit_code, 0);
  EXPECT_EQ(got.out, "bcde\n");
  EXPECT_NE(got.err.find("4 tokens after a prompt of 2, finish reason length (stopped at "
                         "--max-tokens 4), first token after "),
            std::string::npos)
      << got.err;
  EXPECT_NE(got.err.find("the request has no seed"), std::string::npos) << got.err;
}

TEST_F(GrpcClient, EndsAnAnswerThatTakesTooLong) {
  start({});
  workers_.hold();
  ClientFlags asked = flags("a");
  asked.timeout_s = 0.3;  // no deadline: the server never answers here
  const Run got = run(asked);
  workers_.release();
  EXPECT_EQ(got.exit_code, 69);
  EXPECT_NE(got.err.find("shoal: error: the answer is not whole after the 0.3 s of --timeout; 0 "
                         "tokens of it came\n"),
            std::string::npos)
      << got.err;
}

TEST_F(GrpcClient, ReadsBytesThatAreNoUtf8AsTheTokenizerDoes) {
  start({});
  ClientFlags asked = flags(
      "\xff"
      "a");
  asked.request.stop = {"d\xe9"};
  const Run got = run(asked);
  EXPECT_EQ(got.exit_code, 0) << got.err;
  EXPECT_EQ(got.out, run(flags("\xEF\xBF\xBD"
                               "a"))
                         .out);
  asked.model = "caf\xe9";
  const Run refused = run(asked);
  EXPECT_EQ(refused.exit_code, 64);
  EXPECT_NE(refused.err.find("caf\xEF\xBF\xBD"), std::string::npos) << refused.err;
}

TEST_F(GrpcClient, PrintsJson) {
  start({});
  ClientFlags asked = flags("");
  asked.request.prompt.reset();
  asked.request.prompt_ids = {{67, 90}};
  asked.request.logprobs = 2;
  asked.json = true;
  const Run got = run(asked);
  EXPECT_EQ(got.exit_code, 0) << got.err;
  Result<Json> object = parse_json(got.out, "stdout");
  ASSERT_TRUE(object.ok()) << got.out;
  EXPECT_EQ((*object)["token_ids"], (Json{91, 92, 1}));
  EXPECT_EQ((*object)["text"], "yz");
  EXPECT_EQ((*object)["finish_reason"], "stop");
  EXPECT_EQ((*object)["logprobs"][0]["top"], (Json{{91, -0.5}, {92, -1.5}}));
  EXPECT_EQ((*object)["usage"]["prompt_tokens"], 2);
}

TEST_F(GrpcClient, ReadsWhyARequestWasNotTaken) {
  for (int reason = 0; reason < kNotTakenReasons; ++reason) {
    const auto why = static_cast<NotTaken>(reason);
    const grpc::Status status =
        to_grpc_status(refuse(why, Status::error(Code::kUnavailable, "not now")));
    EXPECT_EQ(why_not_taken(status), why) << reason_of(why);
  }
  EXPECT_EQ(why_not_taken(grpc::Status(grpc::StatusCode::UNAVAILABLE, "no connection")),
            std::nullopt);
  EXPECT_EQ(not_taken_of("no reason of ours"), std::nullopt);
}

TEST_F(GrpcClient, TellsWhoseFaultItIs) {
  // The server of this test is in the same process, and its log is not the client's.
  set_log_options({.level = LogLevel::kWarning});
  Setup setup;
  setup.ready = false;
  start(setup);
  Run got = run(flags("a"));
  EXPECT_EQ(got.exit_code, 69);
  EXPECT_NE(got.err.find("the model is loading; try again soon; with --wait SECONDS the client "
                         "waits for it\n"),
            std::string::npos)
      << got.err;
  make_ready();

  ClientFlags bad = flags("a");
  bad.request.temperature = -1;
  got = run(bad);
  EXPECT_EQ(got.exit_code, 64);
  EXPECT_NE(got.err.find("temperature"), std::string::npos) << got.err;
  EXPECT_EQ(std::count(got.err.begin(), got.err.end(), '\n'), 1) << got.err;
  bad = flags("a");
  bad.model = "other";
  EXPECT_EQ(run(bad).exit_code, 64);
  bad = flags("a");
  bad.request.max_tokens = -3;
  EXPECT_EQ(run(bad).exit_code, 64);

  ClientFlags nobody = flags("a");
  server_->shutdown(Deadline::after_ms(0));
  got = run(nobody);
  EXPECT_EQ(got.exit_code, 69);
  EXPECT_NE(got.err.find(nobody.server), std::string::npos) << got.err;
  EXPECT_NE(got.err.find("shoal serve"), std::string::npos) << got.err;
}

TEST_F(GrpcClient, ALostServerIsAnError) {
  start({});
  workers_.fail(Status::error(Code::kAborted, "rank 1 was killed by signal 9"));
  const Run got = run(flags("a"));
  EXPECT_EQ(got.exit_code, 69) << "it may be asked again";
  EXPECT_NE(got.err.find("rank 1 was killed by signal 9"), std::string::npos) << got.err;
}

TEST_F(GrpcClient, ASignalCancelsTheRequest) {
  ASSERT_TRUE(kSignalsBlocked);
  start({});
  for (const int signal : {SIGINT, SIGTERM}) {
    workers_.hold();
    int exit_code = -1;
    testing::internal::CaptureStderr();
    std::thread client([&] { exit_code = run_client(flags("a")); });
    EXPECT_TRUE(eventually([&] { return !idle(); }));
    ::kill(::getpid(), signal);
    client.join();
    const std::string err = testing::internal::GetCapturedStderr();
    EXPECT_EQ(exit_code, 128 + signal);
    EXPECT_NE(err.find("shoal: interrupted\n"), std::string::npos) << err;
    EXPECT_EQ(err.find("error"), std::string::npos) << err;
    workers_.release();
    EXPECT_TRUE(eventually([&] { return idle(); }));
  }
}

}  // namespace
}  // namespace shoal
