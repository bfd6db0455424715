#include "tests/server/grpc/grpc_fixture.h"

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <functional>
#include <unistd.h>

#include "google_rpc.pb.h"

namespace shoal {

namespace wire = openengine::v1;

StepFunction AlphabetWorkers::function() {
  return [this](const StepPlan& plan) { return step(plan); };
}

void AlphabetWorkers::hold() {
  const std::lock_guard lock(mutex_);
  held_ = true;
}

void AlphabetWorkers::allow_one_step() {
  const std::lock_guard lock(mutex_);
  ++allowed_;
  changed_.notify_all();
}

void AlphabetWorkers::release() {
  const std::lock_guard lock(mutex_);
  held_ = false;
  changed_.notify_all();
}

void AlphabetWorkers::fail(Status status) {
  const std::lock_guard lock(mutex_);
  failure_ = std::move(status);
}

void AlphabetWorkers::lose(Status why) {
  const std::lock_guard lock(mutex_);
  lost_ = std::move(why);
}

Result<StepOutcome> AlphabetWorkers::step(const StepPlan& plan) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !held_ || allowed_ > 0; });
  if (held_) --allowed_;
  if (!failure_.ok()) return failure_;
  if (!lost_.ok()) return StepOutcome(std::exchange(lost_, {}), true, true);
  StepResult result;
  result.step = plan.step;
  for (const SequenceStep& sequence : plan.sequences) {
    if (!sequence.sample) continue;
    const int32_t last = sequence.token_ids.back();
    SampledToken token;
    token.id = sequence.id;
    token.token_id = last == kA + 25 ? kEos : last >= kA && last < kA + 25 ? last + 1 : kA;
    if (sequence.sampling.logprobs >= 0) {
      token.logprob = -0.5F / static_cast<float>(1 + std::abs(token.token_id - (kA + 1)));
      token.rank = 1;
      for (int i = 0; i < sequence.sampling.logprobs; ++i)
        token.top.push_back({(token.token_id + i) % 892, -0.5F - static_cast<float>(i)});
    }
    result.tokens.push_back(std::move(token));
  }
  return StepOutcome(std::move(result));
}

TokenizingThread::Times TokenizingThread::processor_times() {
  constexpr int kOfAThread = 6;  // the kernel's CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED
  Times times;
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    const int thread = std::stoi(task.path().filename().string());
    timespec used{};
    if (thread == ::gettid() || ::clock_gettime(~thread * 8 | kOfAThread, &used) != 0) continue;
    times[thread] = std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
  }
  return times;
}

bool TokenizingThread::has_begun() const {
  return eventually([this] {
    const Times now = processor_times();
    return std::any_of(now.begin(), now.end(), [this](const auto& entry) {
      const auto before = before_.find(entry.first);
      const auto used =
          entry.second - (before == before_.end() ? Times::mapped_type(0) : before->second);
      return used >= std::chrono::milliseconds(20);
    });
  });
}

std::vector<uint32_t> StreamRecord::ids() const {
  std::vector<uint32_t> ids;
  for (const wire::GenerateResponse& event : events)
    for (const wire::TokenInfo& token : event.token().tokens()) ids.push_back(token.token_id());
  return ids;
}

std::string StreamRecord::text() const {
  std::string text;
  for (const wire::GenerateResponse& event : events) text += event.token().text();
  return text;
}

void GrpcFixture::start(const Setup& setup) {
  setup_ = setup;
  if (transport_.rung.empty()) transport_.rung = "shm";
  transport_.world_size = 2;
  GrpcServerOptions options;
  options.port = 0;
  options.slow_reader_ms = setup.slow_reader_ms;
  options.facades = setup.facades;
  if (!setup_.state)
    setup_.state = std::make_shared<ServingState>(std::vector<std::string>{"letters"});
  options.state = setup_.state;
  options.intake =
      setup.intake ? setup.intake : std::make_shared<Intake>(Intake::Options{}, setup_.state);
  Result<std::unique_ptr<GrpcServer>> server = GrpcServer::start(options);
  ASSERT_TRUE(server.ok()) << server.status().to_string();
  server_ = std::move(server).value();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // The windows must not grow, so that a client that does not read is noticed after 64 KiB. Each
  // channel gets a connection of its own.
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 65535);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  channel_ =
      grpc::CreateCustomChannel(server_->address(), grpc::InsecureChannelCredentials(), arguments);
  inference_ = wire::Inference::NewStub(channel_);
  control_ = wire::Control::NewStub(channel_);
  if (setup.ready) make_ready();
}

void GrpcFixture::make_ready() {
  const std::string directory = SHOAL_TEST_DATA "/oracle/llama3-gqa-tied-sharded";
  Result<ModelConfig> config = load_model_config(directory);
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  Result<Tokenizer> tokenizer = Tokenizer::load(directory);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  model_.emplace(ServedModel{.name = "letters",
                             .config = std::move(config).value(),
                             .generation = {},
                             .tokenizer = std::move(tokenizer).value(),
                             .max_model_len = setup_.max_model_len,
                             .default_seed = 0});
  EngineLimits limits;
  limits.max_num_seqs = setup_.max_num_seqs;
  limits.max_num_batched_tokens = 512;
  limits.kv_blocks = setup_.kv_blocks;
  limits.max_model_len = setup_.max_model_len;
  loop_ = std::make_unique<InferenceLoop>(
      *model_, limits, workers_.function(),
      Scheduling{.policy = setup_.policy, .queue = setup_.queue}, setup_.state->book());
  DeploymentInfo deployment;
  deployment.tensor_parallel_size = 2;
  deployment.kv_block_tokens = 16;
  deployment.limits = limits;
  deployment.transport_report = [this] { return transport_; };
  deployment.kernels = "reference";
  deployment.gpus = gpus_;
  deployment.arithmetic = "00000000arithmetic";
  server_->set_ready(&*model_, loop_.get(), deployment);
}

void GrpcFixture::TearDown() {
  workers_.release();
  server_.reset();
  loop_.reset();
}

wire::GenerateRequest GrpcFixture::text_request(const std::string& prompt, uint32_t max_tokens) {
  wire::GenerateRequest request;
  request.set_prompt(prompt);
  request.mutable_stopping()->set_max_tokens(max_tokens);
  return request;
}

StreamRecord GrpcFixture::generate(const wire::GenerateRequest& request) {
  grpc::ClientContext context;
  return generate(&context, request);
}

StreamRecord GrpcFixture::generate(grpc::ClientContext* context,
                                   const wire::GenerateRequest& request) {
  StreamRecord record;
  const auto reader = inference_->Generate(context, request);
  for (wire::GenerateResponse event; reader->Read(&event);) record.events.push_back(event);
  record.status = reader->Finish();
  return record;
}

RefusalDetails refusal_details(const grpc::Status& status) {
  RefusalDetails details;
  google::rpc::Status wire_status;
  EXPECT_TRUE(wire_status.ParseFromString(status.error_details()));
  EXPECT_EQ(wire_status.code(), static_cast<int>(status.error_code()));
  EXPECT_EQ(wire_status.message(), status.error_message());
  for (const auto& detail : wire_status.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::RetryInfo retry;
    google::rpc::BadRequest bad;
    if (detail.UnpackTo(&info)) {
      EXPECT_EQ(info.domain(), "shoal");
      details.reason = info.reason();
    } else if (detail.UnpackTo(&retry)) {
      details.retry_ms =
          retry.retry_delay().seconds() * 1000 + retry.retry_delay().nanos() / 1'000'000;
    } else if (detail.UnpackTo(&bad)) {
      details.field = bad.field_violations(0).field();
    }
  }
  return details;
}

}  // namespace shoal
