#include "runtime/control/messages.h"

#include <gtest/gtest.h>

#include "tests/hostile_bytes.h"

namespace shoal {
namespace {

const std::string kAnyBytes("\xe9\0\xff work", 8);

RankStart sample_start() {
  RankStart start;
  start.rank = 3;
  start.world_size = 5;
  start.cpus = {4, 5};
  start.transport = "tcp";
  start.tcp_ports = {40000, 40001};
  start.shm_bytes = int64_t{1} << 40;
  start.collective_timeout_ms = 123456789012;
  start.group_key = ~uint64_t{0};
  start.log = {LogLevel::kWarning, LogFormat::kJson};
  start.start_number = 2;
  start.has_run = true;
  start.transport_only = true;
  start.trial_threads = 6;
  start.trial_bytes = int64_t{1} << 41;
  start.self_test_seed = 99;
  start.heartbeat_ms = 1000;
  start.device = DeviceKind::kCuda;
  start.ranks_per_gpu = 2;
  start.gpus = {{1, "GPU-7", "NVIDIA \xff"}, {0, "GPU-8", "other"}};
  start.cuda_module = "/opt/\xff.so";
  start.nccl_library = "/usr/lib/libnccl.so.2";
  start.reproducible = false;
  start.compiles_kernels = true;
  start.work = kAnyBytes;
  return start;
}

RankFailure sample_failure() {
  const Status root = Status::error(Code::kNotFound, "open /models/caf\xe9/config.json", 2);
  return {
      root.because_of(Code::kUnavailable, "rank 1 cannot begin").blamed_on(Fault::kSharedMemory),
      {7, "barrier", {1, 3}, "layer 5, mlp", DeviceMark{22, true, 6}},
      Fault::kTransport};
}

template <typename Message>
Message to_rank(const Message& message) {
  const Result<FrontMessage> back = decode_front_message(encode_front_message(message));
  EXPECT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_TRUE(std::holds_alternative<Message>(*back));
  return std::get<Message>(*back);
}

template <typename Message>
Message to_front(const Message& message) {
  const Result<RankMessage> back = decode_rank_message(encode_rank_message(message));
  EXPECT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_TRUE(std::holds_alternative<Message>(*back));
  return std::get<Message>(*back);
}

TEST(Messages, AStartKeepsEveryField) {
  const RankStart start = sample_start(), back = to_rank(start);
  EXPECT_EQ(back.rank, 3);
  EXPECT_EQ(back.world_size, 5);
  EXPECT_EQ(back.cpus, start.cpus);
  EXPECT_EQ(back.transport, "tcp");
  EXPECT_EQ(back.tcp_ports, start.tcp_ports);
  EXPECT_EQ(back.shm_bytes, start.shm_bytes);
  EXPECT_EQ(back.collective_timeout_ms, start.collective_timeout_ms);
  EXPECT_EQ(back.group_key, start.group_key);
  EXPECT_EQ(back.log.level, LogLevel::kWarning);
  EXPECT_EQ(back.log.format, LogFormat::kJson);
  EXPECT_EQ(back.start_number, 2);
  EXPECT_TRUE(back.has_run);
  EXPECT_TRUE(back.transport_only);
  EXPECT_EQ(back.trial_threads, 6);
  EXPECT_EQ(back.trial_bytes, start.trial_bytes);
  EXPECT_EQ(back.self_test_seed, 99u);
  EXPECT_EQ(back.heartbeat_ms, 1000);
  EXPECT_EQ(back.device, DeviceKind::kCuda);
  EXPECT_EQ(back.ranks_per_gpu, 2);
  ASSERT_EQ(back.gpus.size(), 2u);
  EXPECT_EQ(to_text(back.gpus[0]), "GPU 1 (GPU-7, NVIDIA \xff)");
  EXPECT_EQ(to_text(back.gpus[1]), "GPU 0 (GPU-8, other)");
  EXPECT_EQ(back.cuda_module, start.cuda_module);
  EXPECT_EQ(back.nccl_library, start.nccl_library);
  EXPECT_FALSE(back.reproducible);
  EXPECT_TRUE(back.compiles_kernels);
  EXPECT_EQ(back.work, kAnyBytes);
}

TEST(Messages, AFailureKeepsReasonPlaceAndFault) {
  const RankFailure failure = sample_failure(), back = to_front(failure);
  EXPECT_EQ(back.status.to_string(), failure.status.to_string());
  EXPECT_EQ(back.status.fault(), Fault::kSharedMemory);
  EXPECT_EQ(back.wait.collective, 7u);
  EXPECT_EQ(back.wait.what, "barrier");
  EXPECT_EQ(back.wait.waits_for, (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(back.wait.where, "layer 5, mlp");
  ASSERT_TRUE(back.wait.device.has_value());
  EXPECT_EQ(back.wait.device->mark, 22u);
  EXPECT_TRUE(back.wait.device->sums);
  EXPECT_EQ(back.wait.device->step, 6u);
  EXPECT_EQ(back.fault, Fault::kTransport);
}

TEST(Messages, AFailureWithoutAReasonIsNoMessage) {
  const Status status = decode_rank_message(encode_rank_message(RankFailure{})).status();
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_NE(status.message().find("no reason"), std::string_view::npos) << status.to_string();
}

TEST(Messages, ARankCannotMeanEveryPhaseAndFault) {
  const auto code_of = [](const auto& message) {
    return decode_rank_message(encode_rank_message(message)).status().code();
  };
  for (const Phase phase : {Phase::kBudget, Phase::kSpawn, Phase::kIdle, static_cast<Phase>(99)}) {
    EXPECT_EQ(code_of(PhaseBegun{phase}), Code::kInternal) << phase_name(phase);
  }
  const Status why = Status::error(Code::kDataLoss, "wrong bits");
  EXPECT_EQ(code_of(RankFailure{why, {}, static_cast<Fault>(99)}), Code::kInternal);
  EXPECT_EQ(code_of(RankFailure{why, {}, Fault::kTransport}), Code::kOk);
}

TEST(Messages, OthersKeepTheirFields) {
  EXPECT_EQ(to_rank(Step{42, kAnyBytes}).number, 42u);
  EXPECT_EQ(to_rank(Step{42, kAnyBytes}).plan, kAnyBytes);
  EXPECT_EQ(to_rank(ExchangeAll{{"a", kAnyBytes, ""}}).parts,
            (std::vector<std::string>{"a", kAnyBytes, ""}));
  (void)to_rank(Shutdown{});
  (void)to_rank(Explain{});
  EXPECT_EQ(to_front(PhaseBegun{Phase::kWarmUp}).phase, Phase::kWarmUp);
  EXPECT_TRUE(to_front(PhaseBegun{Phase::kOpen, true}).compiles);
  EXPECT_EQ(to_front(ExchangePart{kAnyBytes}).part, kAnyBytes);
  const TransportVerified verified = to_front(TransportVerified{1.5, 2e9, true, 0.25});
  EXPECT_EQ(verified.latency_us, 1.5);
  EXPECT_EQ(verified.bytes_per_s, 2e9);
  EXPECT_EQ(verified.seconds, 0.25);
  EXPECT_EQ(to_front(LoadProgress{5, 10}).bytes_done, 5);
  EXPECT_EQ(to_front(LoadProgress{5, 10}).bytes_total, 10);
  EXPECT_EQ(to_front(Ready{"shm", kAnyBytes}).transport, "shm");
  EXPECT_EQ(to_front(Ready{"shm", kAnyBytes}).about, kAnyBytes);
  const StepTimes times = to_front(StepTimes{7, 1.5, 0.5, 0.25, 0.125});
  EXPECT_EQ(times.steps, 7);
  EXPECT_EQ(times.seconds, 1.5);
  EXPECT_EQ(times.collective_seconds, 0.5);
  EXPECT_EQ(times.waited_seconds, 0.25);
  EXPECT_EQ(times.waited_for_previous_seconds, 0.125);
  EXPECT_EQ(to_front(StepTimes{7, 1.5, 0.5, {}, 0}).waited_seconds, std::nullopt);
  const StepProgress moved = to_front(StepProgress{9, 10, true});
  EXPECT_EQ(moved.number, 9u);
  EXPECT_EQ(moved.parts, 10u);
  EXPECT_TRUE(moved.waits);
  EXPECT_EQ(to_front(StepDone{8, kAnyBytes}).number, 8u);
  EXPECT_EQ(to_front(StepDone{8, kAnyBytes}).result, kAnyBytes);
}

TEST(Messages, HostileBytesToARankAreAnError) {
  const auto decode = [](std::string_view bytes) { return decode_front_message(bytes); };
  const auto encode = [](const FrontMessage& message) { return shoal::encode(message); };
  for (const FrontMessage& message :
       std::initializer_list<FrontMessage>{sample_start(), Step{1, kAnyBytes}, Shutdown{},
                                           ExchangeAll{{"a", kAnyBytes, ""}}, Explain{}}) {
    attack(encode(message), decode, encode);
  }
  EXPECT_EQ(decode_front_message("\xff\xff\xff garbage").status().code(), Code::kInternal);
}

TEST(Messages, HostileBytesToTheFrontAreAnError) {
  const auto decode = [](std::string_view bytes) { return decode_rank_message(bytes); };
  const auto encode = [](const RankMessage& message) { return shoal::encode(message); };
  for (const RankMessage& message : std::initializer_list<RankMessage>{
           LoadProgress{5, 10}, Ready{"shm", kAnyBytes}, StepDone{8, kAnyBytes}, sample_failure(),
           PhaseBegun{Phase::kLoad}, ExchangePart{kAnyBytes},
           TransportVerified{1.5, 2e9, true, 0.25}, StepProgress{9},
           StepTimes{7, 1.5, 0.5, 0.25, 0.125}}) {
    attack(encode(message), decode, encode);
  }
  EXPECT_EQ(decode_rank_message(std::string(100, '\x07')).status().code(), Code::kInternal);
}

}  // namespace
}  // namespace shoal
