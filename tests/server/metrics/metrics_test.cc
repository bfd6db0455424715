#include "server/metrics/metrics.h"

#include <atomic>
#include <fcntl.h>
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>
#include <thread>
#include <unistd.h>
#include <vector>

#include "server/metrics/metric_table.h"
#include "server/metrics/process_figures.h"
#include "tests/server/serving/loop_fixture.h"
#include "tests/server/serving/served_model.h"

namespace shoal {
namespace {

/// The value of the line that begins with this name and these labels; "" if there is none.
std::string value_of(const std::string& text, const std::string& series) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(series + " ")) return line.substr(series.size() + 1);
  }
  return "";
}

RanksState ranks_after_a_restart() {
  RanksState ranks;
  ranks.up = true;
  ranks.transport.world_size = 2;
  ranks.transport.order = {"shm", "memfd", "tcp"};
  ranks.transport.rung = "memfd";
  const Status why = Status::error(Code::kResourceExhausted, "needs 5, \"has\" 4");
  ranks.transport.refusals = {{"shm", Phase::kBudget, Fault::kSharedMemory, why},
                              {"shm", Phase::kBudget, Fault::kSharedMemory, why}};
  ranks.transport.needs = {{"shm", {{"slots", 4096, 1}, {"flags", 64, 1}}, {}},
                           {"memfd", {}, {{"slots", 4096, 1}}}};
  ranks.transport.add_restart("rank 1 was killed");
  ranks.collective_seconds = {1.5, 0.5};
  ranks.transport.waits = GroupWaits{{0.5, 0.25}, {0.25, 0.5}, GroupWaits::Last{1, 0.5}};
  ranks.start_phases = {{Phase::kSpawn, 0.25}, {Phase::kSelfTest, 0.5}};
  return ranks;
}

TEST(MetricsTest, BeforeTheEngineRunsNothingHasHappened) {
  const Metrics metrics({"m", kLimits, 2});
  const std::string text = metrics.text();
  const std::string engine = "{model_name=\"m\",engine=\"0\"}";
  EXPECT_EQ(value_of(text, "vllm:num_requests_running" + engine), "0");
  EXPECT_EQ(value_of(text, "vllm:num_preemptions_total" + engine), "0");
  EXPECT_EQ(value_of(text, "vllm:kv_cache_usage_perc" + engine), "0");
  EXPECT_EQ(value_of(text, "vllm:time_to_first_token_seconds_count" + engine), "0");
  EXPECT_EQ(
      value_of(text,
               "vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"64\"}"),
      "1");
  EXPECT_EQ(value_of(text, "shoal_rank_up{rank=\"0\"}"), "0");
  EXPECT_EQ(value_of(text, "shoal_rank_up{rank=\"1\"}"), "0");
  EXPECT_EQ(value_of(text, "shoal_rank_up{rank=\"2\"}"), "");
  EXPECT_EQ(text.find("shoal_transport"), std::string::npos);
  EXPECT_EQ(text.find("shoal_http"), std::string::npos);
}

TEST(MetricsTest, ShowsTheEngineAsLongAsItLives) {
  Metrics metrics({"m", kLimits, 2});
  {
    const MeasuredEngine engine(metrics, {[] {
                                            return EngineLoad{.running = 3,
                                                              .waiting = 4,
                                                              .used_kv_blocks = 16,
                                                              .total_kv_blocks = 64,
                                                              .preemptions = 5};
                                          },
                                          ranks_after_a_restart});
    const std::string text = metrics.text();
    EXPECT_EQ(value_of(text, "vllm:num_requests_running{model_name=\"m\",engine=\"0\"}"), "3");
    EXPECT_EQ(value_of(text, "vllm:num_requests_waiting{model_name=\"m\",engine=\"0\"}"), "4");
    EXPECT_EQ(value_of(text, "vllm:kv_cache_usage_perc{model_name=\"m\",engine=\"0\"}"), "0.25");
    EXPECT_EQ(value_of(text, "vllm:num_preemptions_total{model_name=\"m\",engine=\"0\"}"), "5");
    EXPECT_EQ(value_of(text, "shoal_rank_up{rank=\"1\"}"), "1");
    EXPECT_EQ(value_of(text, "shoal_restarts_total"), "1");
    EXPECT_EQ(value_of(text, "shoal_start_phase_seconds{phase=\"self-test\"}"), "0.5");
    EXPECT_EQ(value_of(text, "shoal_collective_seconds_total{rank=\"1\"}"), "0.5");
    EXPECT_EQ(value_of(text, "shoal_makes_others_wait_ratio{rank=\"0\"}"), "0.25");
    EXPECT_EQ(value_of(text, "shoal_makes_others_wait_ratio{rank=\"1\"}"), "0.5");
    EXPECT_EQ(value_of(text, "shoal_transport_info{rung=\"memfd\",first_choice=\"shm\"}"), "1");
    EXPECT_EQ(value_of(text,
                       "shoal_transport_refusals{rung=\"shm\",phase=\"budget\","
                       "reason=\"shared_memory\"}"),
              "2")
        << "one series, not two of the same name";
    EXPECT_EQ(value_of(text, "shoal_shm_need_bytes{rung=\"shm\"}"), "4160");
    EXPECT_EQ(value_of(text, "shoal_shm_need_bytes{rung=\"memfd\"}"), "0");
    EXPECT_EQ(value_of(text, "shoal_shm_reserved_bytes"), "0") << "memfd takes none of /dev/shm";
    EXPECT_EQ(text.find("needs 5"), std::string::npos) << "no free text in a label";
  }
  EXPECT_EQ(value_of(metrics.text(), "shoal_rank_up{rank=\"1\"}"), "0");
}

TEST(MetricsTest, ReservedIsWhatTheRungInUseNeeds) {
  Metrics metrics({"m", kLimits, 2});
  RanksState ranks = ranks_after_a_restart();
  ranks.transport.rung = "shm";
  const MeasuredEngine engine(metrics, {nullptr, [&] { return ranks; }});
  EXPECT_EQ(value_of(metrics.text(), "shoal_shm_reserved_bytes"), "4160");
}

TEST(MetricsTest, NoClientChoosesARoute) {
  Metrics metrics({"m", kLimits, 1});
  for (const char* path : {"/v1/models", "/v1/models/a", "/v1/models/b", "/metrics", "/etc/passwd",
                           "/metrics\"} 1\n", "", "/v1/completions/"})
    metrics.count_http(path, 200);
  metrics.count_http("/metrics", 401);
  metrics.count_http("/metrics", 7);
  metrics.count_http("/metrics", -1);
  const std::string text = metrics.text();
  const auto count = [&](const std::string& route, const std::string& code) {
    return value_of(text,
                    "shoal_http_requests_total{route=\"" + route + "\",code=\"" + code + "\"}");
  };
  EXPECT_EQ(count("/v1/models", "200"), "1");
  EXPECT_EQ(count("/v1/models/NAME", "200"), "2");
  EXPECT_EQ(count("/metrics", "200"), "1");
  EXPECT_EQ(count("/metrics", "401"), "1");
  EXPECT_EQ(count("/metrics", "0"), "2");
  EXPECT_EQ(count("other", "200"), "4");
}

TEST(MetricsTest, AModelsNameIsEscaped) {
  const Metrics metrics({"a\"b\\c\nd", kLimits, 1});
  EXPECT_EQ(value_of(metrics.text(),
                     "vllm:generation_tokens_total{model_name=\"a\\\"b\\\\c\\nd\","
                     "engine=\"0\"}"),
            "0");
  const Metrics broken({"caf\xe9", kLimits, 1});
  EXPECT_EQ(value_of(broken.text(),
                     "vllm:generation_tokens_total{model_name=\"caf\xef\xbf\xbd\","
                     "engine=\"0\"}"),
            "0");
}

TEST(MetricsTest, BucketsAreCumulativeAndEndWithoutALimit) {
  const Metrics metrics({"m", kLimits, 1});
  {
    const RequestBook::Lock lock(*metrics.book());
    metrics.book()->counts(lock).step(8, 0.003);
    metrics.book()->counts(lock).step(9, 60);
  }
  const std::string text = metrics.text();
  EXPECT_EQ(value_of(text, "shoal_step_seconds_bucket{le=\"0.0025\"}"), "0");
  EXPECT_EQ(value_of(text, "shoal_step_seconds_bucket{le=\"0.005\"}"), "1");
  EXPECT_EQ(value_of(text, "shoal_step_seconds_bucket{le=\"10\"}"), "1");
  EXPECT_EQ(value_of(text, "shoal_step_seconds_bucket{le=\"+Inf\"}"), "2");
  EXPECT_EQ(value_of(text, "shoal_step_seconds_count"), "2");
  EXPECT_EQ(value_of(text,
                     "vllm:iteration_tokens_total_bucket{model_name=\"m\",engine=\"0\","
                     "le=\"8\"}"),
            "1");
}

TEST(MetricsTest, MayBeReadWhileTheLoopRuns) {
  Metrics metrics({"m", kLimits, 2});
  InferenceLoop loop(test_model(), kLimits, Script{}, {}, metrics.book());
  std::atomic<bool> done = false;
  std::thread reader([&] {
    while (!done) {
      const MeasuredEngine engine(metrics, {[&] { return loop.load(); }, ranks_after_a_restart});
      metrics.count_http("/metrics", 200);
      EXPECT_NE(metrics.text().find("shoal_restarts_total 1\n"), std::string::npos);
    }
  });
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 40; ++i) {
    sinks.push_back(std::make_shared<CollectingSink>());
    ASSERT_TRUE(loop.submit(request(50), sinks.back()).ok());
  }
  for (const auto& sink : sinks) sink->wait();
  done = true;
  reader.join();
  EXPECT_EQ(value_of(metrics.text(), "vllm:generation_tokens_total{model_name=\"m\",engine=\"0\"}"),
            "2000");
}

TEST(MetricsTest, TheFrontsProcessIsAsTheKernelSaysIt) {
  const ProcessFigures before = read_process_figures();
  EXPECT_GT(*before.resident_bytes, 1 << 20);
  EXPECT_GT(*before.virtual_bytes, *before.resident_bytes);
  int64_t open = 0;
  for (int descriptor = 0; descriptor < 1024; ++descriptor)
    open += ::fcntl(descriptor, F_GETFD) >= 0 ? 1 : 0;
  EXPECT_EQ(*before.open_fds, open);
  EXPECT_GT(*before.max_fds, open);
  const int descriptor = ::dup(STDOUT_FILENO);
  EXPECT_EQ(*read_process_figures().open_fds, *before.open_fds + 1);
  ::close(descriptor);
  const double start = process_start_time_s();
  const auto now = static_cast<double>(::time(nullptr));
  EXPECT_LE(start, now + 1);
  EXPECT_GT(start, now - 600) << "this program ends within its timeout";
}

std::string kind_name(MetricKind kind) {
  return kind == MetricKind::kCounter ? "counter"
         : kind == MetricKind::kGauge ? "gauge"
                                      : "histogram";
}

std::string since_name(MetricSince since) {
  return since == MetricSince::kStart ? "start" : since == MetricSince::kReady ? "ready" : "event";
}

TEST(MetricsTest, TheDocumentListsThem) {
  std::ifstream document(SHOAL_SOURCE_DIR "/docs/metrics.md");
  std::vector<std::string> rows;
  bool inside = false;
  for (std::string line; std::getline(document, line);) {
    if (line.starts_with("<!-- metrics: ")) inside = line == "<!-- metrics: begin -->";
    if (inside && line.starts_with("| `")) rows.push_back(line);
  }
  ASSERT_EQ(rows.size(), metric_table().size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const MetricInfo& info = metric_table()[i];
    const std::string labels = info.labels[0] == '\0' ? " " : " " + std::string(info.labels) + " ";
    EXPECT_TRUE(rows[i].starts_with("| `" + std::string(info.name) + "` | " + kind_name(info.kind) +
                                    " |" + labels + "| " + since_name(info.since) + " | "))
        << rows[i];
  }
}

}  // namespace
}  // namespace shoal
