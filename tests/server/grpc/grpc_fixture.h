#pragma once
#include <chrono>
#include <condition_variable>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "server/grpc/grpc_server.h"
#include "tests/guard.h"

#include "openengine/v1/services.grpc.pb.h"

namespace shoal {

/// Takes the place of workers. A letter is followed by the next letter, z by EOS, and anything else
/// by "a". Steps can be held, and can be made to fail.
class AlphabetWorkers {
 public:
  static constexpr int32_t kA = 67;  ///< the tokenizer's id of "a"; the other letters have the ids
                                     ///< after it
  static constexpr int32_t kEos = 1;

  StepFunction function();
  void hold();
  void allow_one_step();  ///< to be called while steps are held
  void release();
  void fail(Status status);
  void lose(Status why);  ///< in the next step; after it they run again

 private:
  Result<StepOutcome> step(const StepPlan& plan);
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
  int allowed_ = 0;
  Status failure_;
  Status lost_;
};

/// Knows when a thread of this process has begun to tokenize a long prompt. To be made before the
/// prompt is sent, while nothing else computes.
class TokenizingThread {
 public:
  TokenizingThread() : before_(processor_times()) {}
  /// Waits until one other thread alone has used more processor time than anything else here needs,
  /// and far less than a prompt of some MiB takes.
  bool has_begun() const;

 private:
  using Times = std::map<int, std::chrono::nanoseconds>;  // by thread id
  static Times processor_times();
  const Times before_;
};

/// What a client received in one stream.
struct StreamRecord {
  grpc::Status status;
  std::vector<openengine::v1::GenerateResponse> events;
  std::vector<uint32_t> ids() const;
  std::string text() const;
  const openengine::v1::GenerationFinished& finished() const { return events.back().finished(); }
};

/// A real server on a free port, a real loop over AlphabetWorkers, and a channel to the server.
class GrpcFixture : public testing::Test {
 protected:
  struct Setup {
    int32_t kv_blocks = 64;
    int32_t max_model_len = 256;
    int32_t max_num_seqs = 8;
    QueueLimits queue = {.requests = 72};
    SchedulingPolicy policy = SchedulingPolicy::kFcfs;
    int slow_reader_ms = 30'000;
    bool ready = true;
    std::vector<GrpcFacade> facades = {};
    /// What another front shares; null: the fixture makes its own.
    std::shared_ptr<ServingState> state = nullptr;
    std::shared_ptr<Intake> intake = nullptr;
  };
  void start(const Setup& setup);
  void make_ready();
  void TearDown() override;

  /// A request with this prompt as text.
  static openengine::v1::GenerateRequest text_request(const std::string& prompt,
                                                      uint32_t max_tokens = 8);
  StreamRecord generate(const openengine::v1::GenerateRequest& request);
  StreamRecord generate(grpc::ClientContext* context,
                        const openengine::v1::GenerateRequest& request);
  bool idle() const { return loop_->load().running == 0 && loop_->load().waiting == 0; }

  Setup setup_;
  AlphabetWorkers workers_;
  /// What the Transport service and the health detail report. Set it before start() or
  /// make_ready().
  TransportReport transport_;
  std::string gpus_;  // DeploymentInfo::gpus
  std::optional<ServedModel> model_;
  std::unique_ptr<InferenceLoop> loop_;
  std::unique_ptr<GrpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<openengine::v1::Inference::Stub> inference_;
  std::unique_ptr<openengine::v1::Control::Stub> control_;
};

/// The decoded error details of a refused call.
struct RefusalDetails {
  std::string reason;
  std::string field;
  int64_t retry_ms = 0;
};
RefusalDetails refusal_details(const grpc::Status& status);

}  // namespace shoal
