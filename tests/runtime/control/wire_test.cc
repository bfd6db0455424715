#include "runtime/control/wire.h"

#include <cstring>
#include <gtest/gtest.h>
#include <limits>

namespace shoal {
namespace {

template <typename T, typename Message>
T as(const Result<Message>& message) {
  EXPECT_TRUE(message.ok()) << message.status().to_string();
  EXPECT_TRUE(std::holds_alternative<T>(*message));
  return std::get<T>(*message);
}

TEST(Wire, InitRoundTrip) {
  WorkerInit init;
  init.rank = 3;
  init.world_size = 5;
  init.model_dir = "/models/a b/ü";
  init.dtype = Dtype::kF16;
  init.max_model_len = 4096;
  init.max_num_batched_tokens = 512;
  init.max_num_seqs = 64;
  init.kv_blocks = 1000;
  init.threads = 2;
  init.cpus = {4, 5};
  init.kernels = "avx2";
  init.transport = "tcp";
  init.tcp_ports = {40000, 40001};
  init.shm_bytes = int64_t{1} << 40;
  init.collective_timeout_ms = 123456789012;
  init.group_key = ~uint64_t{0};
  init.log_level = 2;
  init.log_json = true;
  init.device = DeviceKind::kCuda;
  init.ranks_per_gpu = 2;
  init.cuda_module = "./libshoal_cuda.so";
  init.nccl_library = "/usr/lib/libnccl.so.2";
  init.reproducible = false;
  const auto back = as<WorkerInit>(decode_front_message(encode(FrontMessage(init))));
  EXPECT_EQ(back.rank, 3);
  EXPECT_EQ(back.world_size, 5);
  EXPECT_EQ(back.model_dir, init.model_dir);
  EXPECT_EQ(back.dtype, Dtype::kF16);
  EXPECT_EQ(back.max_model_len, 4096);
  EXPECT_EQ(back.max_num_batched_tokens, 512);
  EXPECT_EQ(back.max_num_seqs, 64);
  EXPECT_EQ(back.kv_blocks, 1000);
  EXPECT_EQ(back.threads, 2);
  EXPECT_EQ(back.cpus, init.cpus);
  EXPECT_EQ(back.kernels, "avx2");
  EXPECT_EQ(back.transport, "tcp");
  EXPECT_EQ(back.tcp_ports, init.tcp_ports);
  EXPECT_EQ(back.shm_bytes, init.shm_bytes);
  EXPECT_EQ(back.collective_timeout_ms, init.collective_timeout_ms);
  EXPECT_EQ(back.group_key, init.group_key);
  EXPECT_EQ(back.log_level, 2);
  EXPECT_TRUE(back.log_json);
  EXPECT_EQ(back.device, DeviceKind::kCuda);
  EXPECT_EQ(back.ranks_per_gpu, 2);
  EXPECT_EQ(back.cuda_module, init.cuda_module);
  EXPECT_EQ(back.nccl_library, init.nccl_library);
  EXPECT_FALSE(back.reproducible);
}

TEST(Wire, PlanRoundTripKeepsEverySamplingField) {
  SequenceStep sequence;
  sequence.id = 77;
  sequence.token_ids = {1, 2, 262143};
  sequence.first_position = 31;
  sequence.block_table = {9, 0, 4};
  sequence.sample = true;
  sequence.all_logits = true;
  sequence.sampling = {.temperature = 0.1f,
                       .top_p = 0.9f,
                       .top_k = 40,
                       .min_p = 0.05f,
                       .repetition_penalty = 1.1f,
                       .presence_penalty = -0.5f,
                       .frequency_penalty = 0.25f,
                       .seed = ~uint64_t{0} - 1,
                       .logprobs = -1};
  sequence.history = {5, 6, 7};
  sequence.history_prompt_tokens = 2;
  const auto back =
      as<StepPlan>(decode_front_message(encode(FrontMessage(StepPlan{42, {sequence, {}}}))));
  EXPECT_EQ(back.step, 42u);
  ASSERT_EQ(back.sequences.size(), 2u);
  const SequenceStep& s = back.sequences[0];
  EXPECT_EQ(s.id, 77u);
  EXPECT_EQ(s.token_ids, sequence.token_ids);
  EXPECT_EQ(s.first_position, 31);
  EXPECT_EQ(s.block_table, sequence.block_table);
  EXPECT_TRUE(s.sample);
  EXPECT_TRUE(s.all_logits);
  EXPECT_EQ(s.sampling, sequence.sampling);
  EXPECT_EQ(s.history, sequence.history);
  EXPECT_EQ(s.history_prompt_tokens, 2);
  EXPECT_EQ(back.sequences[1].sampling, SamplingParams{});
}

TEST(Wire, ResultRoundTripKeepsFloatsToTheBit) {
  StepResult result;
  result.step = 7;
  result.tokens = {{1, 5, -0.1f, 2, {{5, -0.1f}, {6, -3.4028235e38f}}}, {2, 9, 0, 0, {}}};
  result.logits = {0.1f, -0.0f, std::numeric_limits<float>::denorm_min(),
                   std::numeric_limits<float>::infinity()};
  const auto back = as<StepResult>(decode_worker_message(encode(WorkerMessage(result))));
  EXPECT_EQ(back.step, 7u);
  ASSERT_EQ(back.tokens.size(), 2u);
  EXPECT_EQ(back.tokens[0].token_id, 5);
  EXPECT_EQ(back.tokens[0].logprob, -0.1f);
  EXPECT_EQ(back.tokens[0].rank, 2);
  ASSERT_EQ(back.tokens[0].top.size(), 2u);
  EXPECT_EQ(back.tokens[0].top[1].token_id, 6);
  EXPECT_EQ(back.tokens[0].top[1].logprob, -3.4028235e38f);
  ASSERT_EQ(back.logits.size(), 4u);
  EXPECT_EQ(std::memcmp(back.logits.data(), result.logits.data(), 16), 0);
}

TEST(Wire, AStatusKeepsItsChainAcrossProcesses) {
  set_process_rank(1);
  const Status root = Status::error(Code::kResourceExhausted, "fallocate 9637892 B", 28);
  set_process_rank(kFrontRank);
  const Status whole = root.because_of(Code::kUnavailable, "no transport for 4 ranks");
  const WorkerFailure failure{whole, {7, "barrier", {1, 3}}};
  const auto back = as<WorkerFailure>(decode_worker_message(encode(WorkerMessage(failure))));
  EXPECT_EQ(back.status.to_string(), whole.to_string());
  EXPECT_EQ(back.status.causes().back().rank, 1);
  EXPECT_EQ(back.status.causes().back().os_error, 28);
  EXPECT_EQ(back.wait.collective, 7u);
  EXPECT_EQ(back.wait.what, "barrier");
  EXPECT_EQ(back.wait.waits_for, (std::vector<int32_t>{1, 3}));
}

TEST(Wire, TextNeedsNotBeUtf8) {
  WorkerInit init;
  init.model_dir = "/models/caf\xe9";
  init.cuda_module = "/opt/\xff.so";
  init.nccl_library = "/opt/\xfe.so";
  const auto back = as<WorkerInit>(decode_front_message(encode(FrontMessage(init))));
  EXPECT_EQ(back.model_dir, init.model_dir);
  EXPECT_EQ(back.cuda_module, init.cuda_module);
  EXPECT_EQ(back.nccl_library, init.nccl_library);
  const WorkerFailure failure{Status::error(Code::kNotFound, "open /models/caf\xe9/config.json", 2),
                              {1, "\xe9", {0}}};
  const auto told = as<WorkerFailure>(decode_worker_message(encode(WorkerMessage(failure))));
  EXPECT_EQ(told.status.to_string(), failure.status.to_string());
  EXPECT_EQ(told.wait.what, "\xe9");
}

TEST(Wire, OtherMessages) {
  EXPECT_EQ(as<LoadProgress>(decode_worker_message(encode(WorkerMessage(LoadProgress{5, 10}))))
                .bytes_total,
            10);
  const auto ready = as<WorkerReady>(
      decode_worker_message(encode(WorkerMessage(WorkerReady{"shm", "avx2", 1, 2}))));
  EXPECT_EQ(ready.transport, "shm");
  EXPECT_EQ(ready.kv_bytes, 2);
  const ExchangeAll all{{"a", std::string("\0b", 2), ""}};
  EXPECT_EQ(as<ExchangeAll>(decode_front_message(encode(FrontMessage(all)))).parts, all.parts);
  EXPECT_TRUE(
      std::holds_alternative<Explain>(*decode_front_message(encode(FrontMessage(Explain{})))));
  const auto phase = as<PhaseBegun>(
      decode_worker_message(encode(WorkerMessage(PhaseBegun{WorkerPhase::kSelfTest}))));
  EXPECT_STREQ(phase_name(phase.phase), "self-test");
  const auto part = as<ExchangePart>(
      decode_worker_message(encode(WorkerMessage(ExchangePart{std::string(3, '\0')}))));
  EXPECT_EQ(part.part.size(), 3u);
  const auto verified = as<TransportVerified>(
      decode_worker_message(encode(WorkerMessage(TransportVerified{1.5, 2e9, 0.25}))));
  EXPECT_EQ(verified.latency_us, 1.5);
  EXPECT_EQ(verified.bytes_per_s, 2e9);
  EXPECT_EQ(verified.seconds, 0.25);
  EXPECT_EQ(as<StepProgress>(decode_worker_message(encode(WorkerMessage(StepProgress{9})))).step,
            9u);
  EXPECT_TRUE(
      std::holds_alternative<Shutdown>(*decode_front_message(encode(FrontMessage(Shutdown{})))));
}

TEST(Wire, BytesThatAreNoMessageAreAnError) {
  EXPECT_EQ(decode_front_message("").status().code(), Code::kInternal);
  EXPECT_EQ(decode_front_message("\xff\xff\xff garbage").status().code(), Code::kInternal);
  EXPECT_EQ(decode_worker_message(std::string(100, '\x07')).status().code(), Code::kInternal);
}

}  // namespace
}  // namespace shoal
