#include <algorithm>
#include <cstdio>

#include "runtime/base/log.h"
#include "server/command_io.h"
#include "server/commands.h"
#include "server/engine_host.h"
#include "server/exit_code.h"
#include "server/read_bandwidth.h"

namespace shoal {
namespace {

constexpr int kWarmupSteps = 8;
constexpr int kDecodePrompt = 16;  // tokens before the first decoded one
constexpr int kPrefillRepeats = 5;

struct Measured {
  std::vector<double> seconds;  ///< of each repeat
  int64_t tokens = 0;           ///< per repeat
  int64_t steps = 0;            ///< per repeat: each reads all weights once
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Drives one sequence through the ranks, step by step.
class SequenceRun {
 public:
  SequenceRun(EngineHost& host, int vocab_size) : host_(host), vocab_size_(vocab_size) {}

  /// Processes `count` tokens at the sequence's end and samples greedily.
  Status step(int64_t count) {
    SequenceStep sequence;
    sequence.id = 1;
    sequence.first_position = static_cast<int32_t>(position_);
    for (int64_t i = 0; i < count; ++i) {
      // Any ids do: time does not depend on them.
      sequence.token_ids.push_back(static_cast<int32_t>((position_ + i) * 7919 % vocab_size_));
    }
    position_ += count;
    for (int64_t block = 0; block < blocks_for_tokens(position_); ++block) {
      sequence.block_table.push_back(static_cast<int32_t>(block));
    }
    sequence.sample = true;
    sequence.sampling.temperature = 0;
    plan_.sequences = {std::move(sequence)};
    ++plan_.step;
    return host_.step(plan_).status();
  }
  void restart() { position_ = 0; }

 private:
  EngineHost& host_;
  const int64_t vocab_size_;
  StepPlan plan_;
  int64_t position_ = 0;
};

Result<Measured> measure_decode(const BenchModelFlags& flags, SequenceRun& run) {
  Measured measured{{}, 1, 1};
  SHOAL_RETURN_IF_ERROR(run.step(kDecodePrompt));
  for (int i = -kWarmupSteps; i < flags.tokens; ++i) {
    const Clock::time_point start = Clock::now();
    SHOAL_RETURN_IF_ERROR(run.step(1));
    if (i >= 0) measured.seconds.push_back(seconds_since(start));
  }
  return measured;
}

Result<Measured> measure_prefill(const BenchModelFlags& flags, SequenceRun& run) {
  const int64_t chunk = flags.engine.max_num_batched_tokens;
  Measured measured{{}, flags.tokens, (flags.tokens + chunk - 1) / chunk};
  for (int repeat = -1; repeat < kPrefillRepeats; ++repeat) {  // the first one warms up
    run.restart();
    const Clock::time_point start = Clock::now();
    for (int64_t done = 0; done < flags.tokens; done += chunk) {
      SHOAL_RETURN_IF_ERROR(run.step(std::min<int64_t>(chunk, flags.tokens - done)));
    }
    if (repeat >= 0) measured.seconds.push_back(seconds_since(start));
  }
  return measured;
}

std::string report(const BenchModelFlags& flags, const ModelFiles& files, const EnginePlan& plan,
                   const EngineHost& host, const Measured& measured, double bandwidth) {
  const double seconds = median(measured.seconds);
  const double tokens_per_s = static_cast<double>(measured.tokens) / seconds;
  const double bytes_per_s = static_cast<double>(host.weight_bytes() * measured.steps) / seconds;
  const char* what = flags.prefill ? "prefill" : "decode";
  char text[1024];
  std::snprintf(text, sizeof text,
                flags.json ? "{\"bench\":\"%s\",\"tp\":%d,\"threads_per_rank\":%d,\"transport\":\"%s\","
                             "\"kernels\":\"%s\",\"tokens\":%d,\"tokens_per_s\":%.2f,\"seconds\":%.6f,"
                             "\"weight_bytes\":%.0f,\"bytes_per_s\":%.0f,\"read_bandwidth_bytes_per_s\":%.0f,"
                             "\"fraction\":%.4f,\"model\":"
                           : "%s: %d ranks x %d threads, transport %s, kernels %s, %d tokens\n"
                             "  %.2f tokens/s (median %.6f s)\n"
                             "  weights %.0f B read at %.3g B/s; this machine reads %.3g B/s; fraction %.3f\n",
                what, plan.world_size, plan.init.threads, host.transport().c_str(), host.kernels().c_str(),
                flags.tokens, tokens_per_s, seconds, static_cast<double>(host.weight_bytes()), bytes_per_s, bandwidth,
                bytes_per_s / bandwidth);
  return flags.json ? cat(text, '"', json_escape(files.name), "\"}\n") : text;
}

Status bench(const BenchModelFlags& flags, Stage* stage) {
  *stage = Stage::kModel;
  SHOAL_ASSIGN_OR_RETURN(const ModelFiles files, open_model(flags.engine.model));
  *stage = Stage::kRequest;
  SHOAL_ASSIGN_OR_RETURN(EnginePlan plan, plan_engine(flags.engine, files, host_resources()));
  const int64_t positions = flags.tokens + (flags.prefill ? 0 : kDecodePrompt + kWarmupSteps);
  if (positions > plan.limits.max_model_len) {
    return Status::error(
        Code::kInvalidArgument,
        cat("--tokens must be in [1, ", plan.limits.max_model_len - (positions - flags.tokens),
            "] within the model length of ", plan.limits.max_model_len, " tokens, not ", flags.tokens));
  }
  plan.limit_kv_blocks(blocks_for_tokens(positions));
  plan.init.max_num_batched_tokens = std::max(plan.init.max_num_batched_tokens, kDecodePrompt);
  const int threads = plan.world_size * plan.init.threads;
  *stage = Stage::kStart;
  // Before and after, the better counts: a yardstick that another program disturbed would flatter us.
  SHOAL_ASSIGN_OR_RETURN(const double before, measure_read_bandwidth(threads, plan.init.cpus));
  SHOAL_ASSIGN_OR_RETURN(std::unique_ptr<EngineHost> host,
                         EngineHost::start(plan, flags.engine.transport, ProgressStyle::kTerminalOnly));
  *stage = Stage::kRun;
  SequenceRun run(*host, files.config.vocab_size);
  SHOAL_ASSIGN_OR_RETURN(const Measured measured,
                         flags.prefill ? measure_prefill(flags, run) : measure_decode(flags, run));
  SHOAL_ASSIGN_OR_RETURN(const double after, measure_read_bandwidth(threads, plan.init.cpus));
  *stage = Stage::kRequest;
  return write_stdout(report(flags, files, plan, *host, measured, std::max(before, after)));
}

}  // namespace

int run_bench_model(const BenchModelFlags& flags) {
  Stage stage;
  const Status status = bench(flags, &stage);
  return report_failure(status, stage);
}

}  // namespace shoal
