#include "server/cli/exit_code.h"

#include <cerrno>
#include <csignal>
#include <gtest/gtest.h>

#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "server/cli/process_start.h"
#include "tests/in_child.h"

namespace shoal {
namespace {

struct ExitCase {
  Stage stage;
  Code code;
  Fault fault;
  ExitCode wanted;
};

TEST(ExitCodeTest, FollowsStageCodeAndFault) {
  constexpr ExitCase kCases[] = {
      {Stage::kRequest, Code::kInvalidArgument, Fault::kOwn, ExitCode::kUsage},
      {Stage::kRequest, Code::kNotFound, Fault::kOwn, ExitCode::kUsage},
      {Stage::kRequest, Code::kDataLoss, Fault::kOwn, ExitCode::kOutput},
      {Stage::kRequest, Code::kResourceExhausted, Fault::kOwn, ExitCode::kUsage},
      {Stage::kRequest, Code::kInternal, Fault::kOwn, ExitCode::kInternal},
      {Stage::kModel, Code::kNotFound, Fault::kOwn, ExitCode::kNoModel},
      {Stage::kModel, Code::kPermissionDenied, Fault::kOwn, ExitCode::kNoModel},
      {Stage::kModel, Code::kInvalidArgument, Fault::kOwn, ExitCode::kBadModel},
      {Stage::kModel, Code::kUnimplemented, Fault::kOwn, ExitCode::kBadModel},
      {Stage::kModel, Code::kDataLoss, Fault::kOwn, ExitCode::kBadModel},
      {Stage::kModel, Code::kResourceExhausted, Fault::kOwn, ExitCode::kBadModel},
      {Stage::kModel, Code::kUnavailable, Fault::kOwn, ExitCode::kUnavailable},
      {Stage::kModel, Code::kDataLoss, Fault::kModelChanged, ExitCode::kWorkerDied},
      {Stage::kStart, Code::kAborted, Fault::kDeath, ExitCode::kWorkerDied},
      {Stage::kStart, Code::kAborted, Fault::kTransport, ExitCode::kWorkerDied},
      {Stage::kStart, Code::kResourceExhausted, Fault::kSharedMemory, ExitCode::kUnavailable},
      {Stage::kStart, Code::kNotFound, Fault::kSharedMemory, ExitCode::kUnavailable},
      {Stage::kStart, Code::kDataLoss, Fault::kTransport, ExitCode::kUnavailable},
      {Stage::kStart, Code::kInternal, Fault::kTransport, ExitCode::kUnavailable},
      {Stage::kStart, Code::kUnavailable, Fault::kPolicy, ExitCode::kUnavailable},
      {Stage::kStart, Code::kUnavailable, Fault::kOwn, ExitCode::kUnavailable},
      {Stage::kStart, Code::kResourceExhausted, Fault::kOwn, ExitCode::kUnavailable},
      {Stage::kStart, Code::kDeadlineExceeded, Fault::kSilence, ExitCode::kUnavailable},
      {Stage::kStart, Code::kNotFound, Fault::kOwn, ExitCode::kBadModel},
      {Stage::kStart, Code::kInvalidArgument, Fault::kOwn, ExitCode::kBadModel},
      {Stage::kStart, Code::kFailedPrecondition, Fault::kOwn, ExitCode::kUsage},
      {Stage::kStart, Code::kInternal, Fault::kOwn, ExitCode::kInternal},
      {Stage::kRun, Code::kAborted, Fault::kDeath, ExitCode::kWorkerDied},
      {Stage::kRun, Code::kUnavailable, Fault::kTransport, ExitCode::kWorkerDied},
      {Stage::kRun, Code::kDeadlineExceeded, Fault::kSilence, ExitCode::kWorkerDied},
      {Stage::kRun, Code::kInvalidArgument, Fault::kOwn, ExitCode::kUsage},
      {Stage::kRun, Code::kResourceExhausted, Fault::kOwn, ExitCode::kUsage},
      {Stage::kRun, Code::kResourceExhausted, Fault::kShortage, ExitCode::kUnavailable},
      {Stage::kRun, Code::kDataLoss, Fault::kOwn, ExitCode::kBadModel},
      {Stage::kRun, Code::kDataLoss, Fault::kModelChanged, ExitCode::kWorkerDied},
      {Stage::kStart, Code::kDataLoss, Fault::kModelChanged, ExitCode::kWorkerDied},
      {Stage::kRun, Code::kInternal, Fault::kOwn, ExitCode::kInternal},
  };
  for (const ExitCase& c : kCases) {
    EXPECT_EQ(exit_code({Status::error(c.code, "something"), c.stage, c.fault}), c.wanted)
        << "stage " << static_cast<int>(c.stage) << " " << code_name(c.code) << " fault "
        << static_cast<int>(c.fault);
    EXPECT_EQ(exit_code({Status(), c.stage, c.fault}), ExitCode::kOk);
  }
}

TEST(ExitCodeTest, TheSameErrorGivesTheSameCodeWhereverItWasMade) {
  for (const char* file : {"runtime/comm/x.cc", "runtime/comm/tcp/x.cc", "models/x.cc"}) {
    const Status made = Status::error(Code::kInternal, "x", 0, file);
    EXPECT_EQ(exit_code(at(Stage::kStart, made)), ExitCode::kInternal) << file;
    EXPECT_EQ(exit_code(at(Stage::kStart, made.blamed_on(Fault::kTransport))),
              ExitCode::kUnavailable)
        << file;
  }
}

TEST(ExitCodeTest, AnErrorCarriesItsStage) {
  const auto three = []() -> Result<int> { return 3; };
  const auto none = []() -> Result<int> { return Status::error(Code::kNotFound, "no such thing"); };
  const auto command = [&](bool fails) -> Ending {
    SHOAL_ASSIGN_OR_RETURN(const int value, at(Stage::kRequest, three()));
    SHOAL_ASSIGN_OR_RETURN(const int other, at(Stage::kModel, fails ? none() : three()));
    return at(Stage::kRun,
              value == other ? Status() : Status::error(Code::kInternal, "3 is not 3"));
  };
  EXPECT_TRUE(command(false).ok());
  EXPECT_EQ(command(true).stage, Stage::kModel);
  EXPECT_EQ(exit_code(command(true)), ExitCode::kNoModel);
}

TEST(ExitCodeTest, AFailureOfTheRanksCarriesItsFault) {
  const auto start = []() -> Attempt<int> {
    return Failure{Status::error(Code::kDataLoss, "wrong bits"), Phase::kSelfTest, 1,
                   Fault::kTransport};
  };
  EXPECT_EQ(exit_code(at(Stage::kStart, start()).error()), ExitCode::kUnavailable);
}

TEST(ReportFailureTest, IsUnderTwoKilobytesWithTheChain) {
  Status status({Cause{Code::kNotFound, 1, "models/x.cc:1", "something", 0, Fault::kOwn}});
  for (int i = 0; i < 50; ++i)
    status = status.while_doing(cat("layer ", i, " ", std::string(100, 'x')));
  testing::internal::CaptureStderr();
  EXPECT_EQ(report_failure(at(Stage::kModel, status)), 66);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_LT(text.size(), 2000u);
  EXPECT_EQ(text.rfind("shoal: error: layer 49", 0), 0u) << text;
  EXPECT_NE(text.find("because rank 1: something"), std::string::npos) << text;
  EXPECT_EQ(text.back(), '\n');

  testing::internal::CaptureStderr();
  EXPECT_EQ(report_failure(at(Stage::kRun, Status())), 0);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(ReportFailureTest, AReaderThatHasLeftEndsTheProcessBySigpipe) {
  const Status left = Status::error(Code::kDataLoss, "write the output", EPIPE);
  const auto end_if = [&left](void (*pipe_signal)(int)) {
    return in_child([&]() -> std::string {
      std::signal(SIGPIPE, pipe_signal);
      char* none[] = {nullptr};
      begin_process(none);
      return cat(report_failure(at(Stage::kRequest, left)));
    });
  };
  EXPECT_EQ(end_if(SIG_DFL), cat("signal ", SIGPIPE));
  EXPECT_EQ(end_if(SIG_IGN), "74") << "a signal that was ignored stays ignored";
}

TEST(ReportFailureTest, OutputThatIsLostForAnotherReasonIsReported) {
  const Status left = Status::error(Code::kDataLoss, "write the output", EPIPE);
  testing::internal::CaptureStderr();
  EXPECT_EQ(report_failure(at(Stage::kRun, left)), 65) << "a connection between ranks";
  EXPECT_EQ(report_failure(
                at(Stage::kRequest, Status::error(Code::kDataLoss, "write the output", ENOSPC))),
            74);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("Broken pipe"), std::string::npos);
  EXPECT_NE(text.find("No space left"), std::string::npos);
}

/// What report_failure() writes of an error with a reason.
std::string reported(Stage stage, Code code) {
  const Status status = Status::error(Code::kNotFound, "no y", 0, "a/b/c.cc", 7)
                            .because_of(code, "no x", "a/b/c.cc", 8);
  testing::internal::CaptureStderr();
  EXPECT_NE(report_failure(at(stage, status)), 0);
  return testing::internal::GetCapturedStderr();
}

TEST(ReportFailureTest, OnlyBugsAndRanksHaveCodesAndPlaces) {
  const std::string plain = "shoal: error: no x\n  because no y\n";
  EXPECT_EQ(reported(Stage::kRequest, Code::kInvalidArgument), plain);
  EXPECT_EQ(reported(Stage::kModel, Code::kNotFound), plain);
  EXPECT_EQ(reported(Stage::kStart, Code::kUnavailable), plain);
  const std::string reason = "\n  because NOT_FOUND [front] b/c.cc:7 no y\n";
  EXPECT_EQ(reported(Stage::kStart, Code::kInternal), "shoal: error: INTERNAL: no x" + reason);
  EXPECT_EQ(reported(Stage::kRun, Code::kAborted), "shoal: error: ABORTED: no x" + reason);
  const LogOptions before = log_options();
  set_log_options({.level = LogLevel::kDebug});
  EXPECT_EQ(reported(Stage::kRequest, Code::kInvalidArgument),
            "shoal: error: INVALID_ARGUMENT: no x" + reason);
  set_log_options(before);
}

TEST(ReportFailureTest, IsALogLineWithJsonLogs) {
  const LogOptions before = log_options();
  set_log_options({LogLevel::kWarning, LogFormat::kJson});
  testing::internal::CaptureStderr();
  EXPECT_EQ(report_failure(at(Stage::kRequest, Status::error(Code::kInvalidArgument, "no \"x\""))),
            64);
  const std::string text = testing::internal::GetCapturedStderr();
  set_log_options(before);
  const Result<Json> line = parse_json(text, "stderr");
  ASSERT_TRUE(line.ok()) << text;
  EXPECT_EQ(line->value("message", ""), "INVALID_ARGUMENT: no \"x\"");
  EXPECT_EQ(line->value("event", ""), "error");
  EXPECT_EQ(line->value("exit_code", 0), 64);
  EXPECT_EQ(line->value("code", ""), "INVALID_ARGUMENT");
  EXPECT_EQ(line->value("fault", ""), "own");
}

TEST(SayInterruptedTest, IsNoErrorForAPersonAndALogLineWithJsonLogs) {
  const auto said = [](LogFormat format, size_t come) {
    const LogOptions before = log_options();
    set_log_options({LogLevel::kWarning, format});
    testing::internal::CaptureStderr();
    say_interrupted(come, "token");
    set_log_options(before);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(said(LogFormat::kText, 0), "shoal: interrupted\n");
  EXPECT_EQ(said(LogFormat::kText, 1), "shoal: interrupted after 1 token of the answer\n");
  EXPECT_EQ(said(LogFormat::kText, 2), "shoal: interrupted after 2 tokens of the answer\n");
  const Result<Json> line = parse_json(said(LogFormat::kJson, 2), "stderr");
  ASSERT_TRUE(line.ok()) << line.status().to_string();
  EXPECT_EQ(line->value("message", ""), "interrupted after 2 tokens of the answer");
}

}  // namespace
}  // namespace shoal
