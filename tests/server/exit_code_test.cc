#include "server/cli/exit_code.h"

#include <gtest/gtest.h>

#include "runtime/base/json.h"
#include "runtime/base/log.h"

namespace shoal {
namespace {

struct ExitCase {
  Stage stage;
  Code code;
  const char* where;
  ExitCode wanted;
};

Status failure(Code code, const char* where) {
  return Status({Cause{code, 1, where, "something", 0}});
}

TEST(ExitCodeTest, FollowsStageCodeAndPlace) {
  constexpr ExitCase kCases[] = {
      {Stage::kRequest, Code::kInvalidArgument, "server/cli/flags.cc:1", ExitCode::kUsage},
      {Stage::kRequest, Code::kNotFound, "base/json.cc:1", ExitCode::kUsage},
      {Stage::kRequest, Code::kDataLoss, "server/cli/command_io.cc:1", ExitCode::kUsage},
      {Stage::kRequest, Code::kResourceExhausted, "models/tokenizer.cc:1", ExitCode::kUsage},
      {Stage::kRequest, Code::kInternal, "server/commands/npy.cc:1", ExitCode::kInternal},
      {Stage::kModel, Code::kNotFound, "server/host/engine_plan.cc:1", ExitCode::kNoModel},
      {Stage::kModel, Code::kPermissionDenied, "base/json.cc:1", ExitCode::kNoModel},
      {Stage::kModel, Code::kInvalidArgument, "models/safetensors.cc:1", ExitCode::kBadModel},
      {Stage::kModel, Code::kUnimplemented, "models/model_config.cc:1", ExitCode::kBadModel},
      {Stage::kModel, Code::kDataLoss, "base/json.cc:1", ExitCode::kBadModel},
      {Stage::kModel, Code::kResourceExhausted, "base/json.cc:1", ExitCode::kBadModel},
      {Stage::kStart, Code::kAborted, "supervisor/worker_group.cc:1", ExitCode::kWorkerDied},
      {Stage::kStart, Code::kResourceExhausted, "memory/shm_segment.cc:1", ExitCode::kUnavailable},
      {Stage::kStart, Code::kNotFound, "memory/shm_segment.cc:1", ExitCode::kUnavailable},
      {Stage::kStart, Code::kUnavailable, "comm/tcp_communicator.cc:1", ExitCode::kUnavailable},
      {Stage::kStart, Code::kUnavailable, "server/grpc/grpc_server.cc:1", ExitCode::kUnavailable},
      {Stage::kStart, Code::kNotFound, "models/safetensors.cc:1", ExitCode::kBadModel},
      {Stage::kStart, Code::kInvalidArgument, "models/weights.cc:1", ExitCode::kBadModel},
      {Stage::kStart, Code::kInternal, "worker/worker_main.cc:1", ExitCode::kInternal},
      {Stage::kRun, Code::kAborted, "supervisor/worker_group.cc:1", ExitCode::kWorkerDied},
      {Stage::kRun, Code::kUnavailable, "comm/shm_communicator.cc:1", ExitCode::kWorkerDied},
      {Stage::kRun, Code::kDeadlineExceeded, "supervisor/worker_group.cc:1", ExitCode::kWorkerDied},
      {Stage::kRun, Code::kInvalidArgument, "engine/scheduler.cc:1", ExitCode::kUsage},
      {Stage::kRun, Code::kInternal, "worker/model_runner.cc:1", ExitCode::kInternal},
  };
  for (const ExitCase& c : kCases) {
    EXPECT_EQ(exit_code(failure(c.code, c.where), c.stage), c.wanted)
        << "stage " << static_cast<int>(c.stage) << " " << code_name(c.code) << " " << c.where;
    EXPECT_EQ(exit_code(Status(), c.stage), ExitCode::kOk);
  }
}

TEST(ExitCodeTest, TheRootDecidesWhetherATransportFailed) {
  const Status root = failure(Code::kResourceExhausted, "memory/shm_segment.cc:88");
  EXPECT_TRUE(is_transport_failure(root.while_doing("open transport shm")));
  EXPECT_FALSE(is_transport_failure(failure(Code::kResourceExhausted, "worker/kv_cache.cc:20")));
  EXPECT_FALSE(is_transport_failure(Status()));
}

TEST(ReportFailureTest, IsUnderTwoKilobytesWithTheChain) {
  Status status = failure(Code::kNotFound, "models/x.cc:1");
  for (int i = 0; i < 50; ++i)
    status = status.while_doing(cat("layer ", i, " ", std::string(100, 'x')));
  testing::internal::CaptureStderr();
  EXPECT_EQ(report_failure(status, Stage::kModel), 66);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_LT(text.size(), 2000u);
  EXPECT_EQ(text.rfind("shoal: NOT_FOUND: layer 49", 0), 0u) << text;
  EXPECT_NE(text.find("because NOT_FOUND [rank 1] models/x.cc:1 something"), std::string::npos)
      << text;
  EXPECT_EQ(text.back(), '\n');

  testing::internal::CaptureStderr();
  EXPECT_EQ(report_failure(Status(), Stage::kRun), 0);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(ReportFailureTest, IsALogLineWithJsonLogs) {
  const LogOptions before = log_options();
  set_log_options({LogLevel::kWarning, LogFormat::kJson});
  testing::internal::CaptureStderr();
  EXPECT_EQ(report_failure(Status::error(Code::kInvalidArgument, "no \"x\""), Stage::kRequest), 64);
  const std::string text = testing::internal::GetCapturedStderr();
  set_log_options(before);
  const Result<Json> line = parse_json(text, "stderr");
  ASSERT_TRUE(line.ok()) << text;
  EXPECT_EQ(line->value("message", ""), "INVALID_ARGUMENT: no \"x\"");
}

}  // namespace
}  // namespace shoal
