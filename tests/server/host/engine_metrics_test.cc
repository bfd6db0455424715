// The metrics of a real engine: two ranks of the demo model, which this program starts from itself,
// and a rank that is killed. Only the front's protocol is missing.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>
#include <unistd.h>

#include "runtime/worker/worker_main.h"
#include "server/host/engine_host.h"
#include "tests/server/serving/loop_fixture.h"

namespace shoal {
namespace {

constexpr int kRanks = 2;

EngineFlags demo_flags() {
  EngineFlags flags;
  flags.model = SHOAL_SOURCE_DIR "/models/demo";
  flags.tensor_parallel_size = kRanks;
  flags.threads_per_rank = 1;
  flags.max_model_len = 512;
  flags.max_restarts = 1;  // a second loss is the end
  flags.transport.order = {"shm", "memfd", "tcp"};
  return flags;
}

/// The processes that the threads of this one have started.
std::vector<pid_t> children() {
  std::vector<pid_t> found;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(thread.path() / "children");
    for (pid_t child = 0; file >> child;) found.push_back(child);
  }
  return found;
}

/// The value of the line that begins with this name and these labels; -1 if there is none.
double value_of(const std::string& text, const std::string& series) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(series + " ")) return std::stod(line.substr(series.size() + 1));
  }
  return -1;
}

ResolvedRequest stream_of(int32_t tokens) {
  ResolvedRequest request;
  request.engine.prompt = {0, 1151, 262, 2088};
  request.engine.max_tokens = tokens;
  return request;
}

/// Everything that serve_command.cc puts together, without its servers.
class EngineMetricsTest : public testing::Test {
 protected:
  EngineMetricsTest()
      : flags_(demo_flags()),
        facts_(facts_for(&flags_.transport, kRanks).value()),
        files_(open_model(flags_.model).value()),
        plan_(plan_engine(flags_, files_, host_resources()).value()),
        metrics_({"demo", plan_.model.limits, kRanks}) {}

  void start() {
    Attempt<std::unique_ptr<EngineHost>> host = EngineHost::start(plan_, flags_, facts_);
    ASSERT_TRUE(host.ok()) << host.status().to_string();
    host_ = std::move(host).value();
    model_.emplace(
        make_served_model(files_, Tokenizer::load(flags_.model).value(), plan_, std::nullopt));
    loop_.emplace(
        *model_, plan_.model.limits, [this](const StepPlan& plan) { return host_->step(plan); },
        Scheduling{}, metrics_.book());
    measured_.emplace(metrics_, EngineSources{[this] { return loop_->load(); },
                                              [this] { return host_->ranks_state(); }});
  }
  double value(const std::string& series) const { return value_of(metrics_.text(), series); }
  double vllm(const std::string& name, const std::string& label = "") const {
    return value("vllm:" + name + "{model_name=\"demo\",engine=\"0\"" + label + "}");
  }

  EngineFlags flags_;
  const HostFacts facts_;
  const ModelFiles files_;
  EnginePlan plan_;
  Metrics metrics_;
  std::unique_ptr<EngineHost> host_;
  std::optional<ServedModel> model_;
  std::optional<InferenceLoop> loop_;
  std::optional<MeasuredEngine> measured_;
};

TEST_F(EngineMetricsTest, ShowARankThatIsKilledUnderTwoStreams) {
  EXPECT_EQ(value("shoal_rank_up{rank=\"1\"}"), 0) << "the model is not loaded yet";
  start();
  EXPECT_EQ(value("shoal_rank_up{rank=\"1\"}"), 1);
  EXPECT_EQ(value("shoal_restarts_total"), 0);
  const std::string rung = host_->transport();
  EXPECT_EQ(value("shoal_transport_info{rung=\"" + rung + "\",first_choice=\"shm\"}"), 1);
  EXPECT_EQ(value("shoal_shm_reserved_bytes"),
            value("shoal_shm_need_bytes{rung=\"" + rung + "\"}"));
  for (const char* phase : {"budget", "spawn", "open", "self-test", "load", "touch", "warm-up"})
    EXPECT_GT(value(std::string("shoal_start_phase_seconds{phase=\"") + phase + "\"}"), 0) << phase;

  constexpr int kTokens = 30;
  const auto first = std::make_shared<CollectingSink>(),
             second = std::make_shared<CollectingSink>();
  second->after_delta = [&] {
    if (second->tokens.size() != 10) return;
    const std::vector<pid_t> ranks = children();
    ASSERT_EQ(ranks.size(), size_t{kRanks});
    ASSERT_EQ(::kill(ranks[1], SIGKILL), 0);
  };
  ASSERT_TRUE(loop_->submit(stream_of(kTokens), first).ok());
  ASSERT_TRUE(loop_->submit(stream_of(kTokens), second).ok());
  EXPECT_EQ(first->wait().tokens, second->wait().tokens);
  EXPECT_EQ(first->tokens.size(), size_t{kTokens});

  EXPECT_EQ(value("shoal_restarts_total"), 1);
  EXPECT_EQ(value("shoal_recovered_requests_total"), 2);
  EXPECT_EQ(value("shoal_rank_up{rank=\"1\"}"), 1);
  EXPECT_EQ(vllm("generation_tokens_total"), 2 * kTokens);
  EXPECT_EQ(vllm("prompt_tokens_total"), 2 * 4);
  EXPECT_EQ(vllm("time_to_first_token_seconds_count"), 2);
  EXPECT_EQ(vllm("inter_token_latency_seconds_count"), 2 * (kTokens - 1));
  EXPECT_EQ(vllm("request_success_total", ",finished_reason=\"length\""), 2);
  EXPECT_EQ(vllm("kv_cache_usage_perc"), 0);
  EXPECT_GT(vllm("iteration_tokens_total_sum"), 2 * (4 + kTokens - 1)) << "some of it twice";
  EXPECT_GE(value("shoal_collective_seconds_total{rank=\"0\"}"), 0);

  const auto third = std::make_shared<CollectingSink>();
  // A crash, which counts for --max-restarts. A sanitizer would report SIGSEGV as its own finding.
  ASSERT_EQ(::kill(children().front(), SIGABRT), 0);
  ASSERT_TRUE(loop_->submit(stream_of(kTokens), third).ok());
  EXPECT_FALSE(third->wait().end.status.ok());
  EXPECT_EQ(vllm("request_success_total", ",finished_reason=\"error\""), 1);
  EXPECT_EQ(value("shoal_rank_up{rank=\"0\"}"), 0);
  EXPECT_EQ(value("shoal_rank_up{rank=\"1\"}"), 0);
}

}  // namespace
}  // namespace shoal

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "worker") return shoal::worker_main(3);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
