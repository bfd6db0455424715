#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "runtime/base/counted.h"
#include "runtime/base/log.h"
#include "server/cli/command_io.h"
#include "server/cli/exit_code.h"
#include "server/commands/cache_size.h"
#include "server/commands/commands.h"
#include "server/commands/read_bandwidth.h"
#include "server/host/device_plan.h"
#include "server/host/engine_host.h"

namespace shoal {
namespace {

constexpr int kWarmupSteps = 8;
constexpr int kDecodePrompt = 16;  // tokens processed before the first timed decode step
constexpr int kPrefillRepeats = 5;

constexpr int kStepsBetweenProbes = 8;

/// kStepsBetweenProbes steps of decoding.
struct Block {
  double rate = 0;   ///< bytes per second at which it read the weights
  ReadRate machine;  ///< the better of the measurements before and after it
  /// What "fraction" means wherever the bench prints it.
  double fraction() const { return rate / machine.bytes_per_s; }
  bool operator<(const Block& other) const { return fraction() < other.fraction(); }
};

struct Measured {
  std::vector<double> seconds;  ///< of each repeat or step
  int64_t tokens = 0;           ///< tokens per repeat or step
  std::vector<Block> blocks;    ///< decode only
  double load = 0;              ///< load average of a minute, before the start
};

template <typename Value>
Value median(std::vector<Value> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Runs one sequence through the ranks, step by step.
class SequenceRun {
 public:
  SequenceRun(EngineHost& host, int vocab_size) : host_(host), vocab_size_(vocab_size) {}

  /// Processes `count` tokens at the sequence's end and samples greedily.
  Status step(int64_t count) {
    SequenceStep sequence;
    sequence.id = 1;
    sequence.first_position = static_cast<int32_t>(position_);
    for (int64_t i = 0; i < count; ++i) {
      // Any token ids will do, because the time does not depend on them.
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
    SHOAL_ASSIGN_OR_RETURN(const StepOutcome outcome, host_.step(plan_));
    return outcome.result ? Status() : outcome.lost;
  }
  void restart() { position_ = 0; }

 private:
  EngineHost& host_;
  const int64_t vocab_size_;
  StepPlan plan_;
  int64_t position_ = 0;
};

/// Times blocks of steps, and measures the read bandwidth before and after each, because it changes
/// within seconds.
Result<Measured> measure_decode(const BenchModelFlags& flags, SequenceRun& run, size_t weight_bytes,
                                ReadBandwidth& probe) {
  Measured measured;
  measured.tokens = 1;
  SHOAL_RETURN_IF_ERROR(run.step(kDecodePrompt));
  for (int i = 0; i < kWarmupSteps; ++i) SHOAL_RETURN_IF_ERROR(run.step(1));
  ReadRate before = probe.measure();
  for (int done = 0; done < flags.tokens;) {
    const int steps = std::min(kStepsBetweenProbes, flags.tokens - done);
    double total = 0;
    for (int i = 0; i < steps; ++i) {
      const Clock::time_point start = Clock::now();
      SHOAL_RETURN_IF_ERROR(run.step(1));
      measured.seconds.push_back(seconds_since(start));
      total += measured.seconds.back();
    }
    done += steps;
    const ReadRate after = probe.measure();
    measured.blocks.push_back(
        {static_cast<double>(weight_bytes) * steps / total, std::max(before, after)});
    before = after;
  }
  return measured;
}

Result<Measured> measure_prefill(const BenchModelFlags& flags, SequenceRun& run) {
  const int64_t chunk = flags.engine.max_num_batched_tokens;
  Measured measured;
  measured.tokens = flags.tokens;
  for (int repeat = -1; repeat < kPrefillRepeats; ++repeat) {  // the first repeat only warms up
    run.restart();
    const Clock::time_point start = Clock::now();
    for (int64_t done = 0; done < flags.tokens; done += chunk) {
      SHOAL_RETURN_IF_ERROR(run.step(std::min<int64_t>(chunk, flags.tokens - done)));
    }
    if (repeat >= 0) measured.seconds.push_back(seconds_since(start));
  }
  return measured;
}

/// Floating-point operations of the layers' matrix products over `tokens` tokens: two per weight
/// and token. Attention and the vocabulary product (one row) are left out, so a rate computed from
/// it is slightly too low.
double product_flops(const ModelConfig& config, int64_t tokens) {
  const double hidden = config.hidden_size;
  const double head = config.head_dim;
  const double attention =
      hidden * head * (2.0 * config.num_attention_heads + 2.0 * config.num_key_value_heads);
  const double mlp = 3.0 * hidden * config.intermediate_size;
  return 2.0 * static_cast<double>(tokens) * config.num_hidden_layers * (attention + mlp);
}

std::string report_prefill(const BenchModelFlags& flags, const ModelFiles& files,
                           const EnginePlan& plan, const EngineHost& host,
                           const Measured& measured) {
  const double seconds = median(measured.seconds);
  const double flops = product_flops(files.config, measured.tokens);
  char text[1024];
  std::snprintf(
      text, sizeof text,
      flags.json
          ? "{\"bench\":\"prefill\",\"tp\":%d,\"threads_per_rank\":%d,\"transport\":\"%s\","
            "\"kernels\":\"%s\",\"tokens\":%d,\"tokens_per_s\":%.2f,\"seconds\":%.6f,"
            "\"product_flops\":%.0f,\"flops_per_s\":%.0f,\"load_average\":%.2f,\"model\":"
          : "prefill: tp %d, threads per rank %d, transport %s, kernels %s, %d tokens\n"
            "  %.2f tokens/s (median %.6f s)\n"
            "  the layers' products: %.4g FLOP at %.4g FLOP/s (bench/engine.py has the GEMM beside)\n"
            "  load average before the start: %.2f\n",
      plan.world_size, plan.model.threads, host.transport().c_str(), host.kernels().c_str(),
      flags.tokens, static_cast<double>(measured.tokens) / seconds, seconds, flops, flops / seconds,
      measured.load);
  return flags.json ? cat(text, '"', json_escape(files.name), "\"}\n") : text;
}

/// What the blocks of a decode say, as text or JSON. All figures of the median are of one block,
/// because a quotient of medians is not a median of quotients.
std::string report_blocks(const std::vector<Block>& blocks, bool json) {
  const Block block = median(blocks);
  const auto [least, most] = std::minmax_element(blocks.begin(), blocks.end());
  char text[512];
  std::snprintf(text, sizeof text,
                json ? "\"bytes_per_s\":%.0f,\"read_bandwidth_bytes_per_s\":%.0f,"
                       "\"read_loop\":\"%s\",\"fraction\":%.4f,\"fraction_least\":%.4f,"
                       "\"fraction_most\":%.4f,"
                     : "in the median block of steps read at %.4g B/s, where this machine reads "
                       "%.4g B/s (%s):\n  fraction %.3f (%.3f to %.3f)\n",
                block.rate, block.machine.bytes_per_s, block.machine.loop.name(), block.fraction(),
                least->fraction(), most->fraction());
  return text;
}

std::string report_decode(const BenchModelFlags& flags, const ModelFiles& files,
                          const EnginePlan& plan, const EngineHost& host,
                          const Measured& measured) {
  const double seconds = median(measured.seconds);
  char text[1024];
  std::snprintf(
      text, sizeof text,
      flags.json ? "{\"bench\":\"decode\",\"tp\":%d,\"threads_per_rank\":%d,"
                   "\"transport\":\"%s\",\"kernels\":\"%s\",\"tokens\":%d,"
                   "\"tokens_per_s\":%.2f,\"seconds\":%.6f,\"load_average\":%.2f,"
                   "\"weight_bytes\":%.0f,"
                 : "decode: tp %d, threads per rank %d, transport %s, kernels %s, %d tokens\n"
                   "  %.2f tokens/s (median %.6f s); load average before the start: %.2f\n"
                   "  weights %.0f B; ",
      plan.world_size, plan.model.threads, host.transport().c_str(), host.kernels().c_str(),
      flags.tokens, static_cast<double>(measured.tokens) / seconds, seconds, measured.load,
      static_cast<double>(host.weight_bytes()));
  const std::string report = text + report_blocks(measured.blocks, flags.json);
  const uint64_t cache = cache_bytes();
  if (flags.json) {
    return cat(report, "\"model\":\"", json_escape(files.name), "\",\"cache_bytes\":", cache,
               "}\n");
  }
  if (static_cast<uint64_t>(host.weight_bytes()) > cache) return report;
  return cat(report, "  the weights fit into the processor's caches (", cache,
             " B), so this is not the speed of memory, and the fraction can exceed 1\n");
}

/// Plans the model for the bench, with room for exactly its tokens.
Result<EnginePlan> plan_bench(BenchModelFlags& flags, const ModelFiles& files,
                              const HostFacts& facts) {
  SHOAL_ASSIGN_OR_RETURN(EnginePlan plan, plan_on_device(&flags.engine, files, facts.gpu));
  const int64_t positions = flags.tokens + (flags.prefill ? 0 : kDecodePrompt + kWarmupSteps);
  if (positions > plan.model.limits.max_model_len) {
    return Status::error(
        Code::kInvalidArgument,
        cat("--tokens must be in [1, ",
            plan.model.limits.max_model_len - (positions - flags.tokens),
            "] within the model length of ", counted(plan.model.limits.max_model_len, "token"),
            ", not ", flags.tokens));
  }
  plan.limit_kv_blocks(blocks_for_tokens(positions));
  plan.model.limits.max_num_batched_tokens =
      std::max(plan.model.limits.max_num_batched_tokens, kDecodePrompt);
  SHOAL_RETURN_IF_ERROR(plan.estimate_memory(files.config));
  return plan;
}

Result<Measured> measure(const BenchModelFlags& flags, const ModelFiles& files,
                         const EnginePlan& plan, EngineHost& host) {
  SequenceRun run(host, files.config.vocab_size);
  if (flags.prefill) return measure_prefill(flags, run);
  SHOAL_ASSIGN_OR_RETURN(ReadBandwidth probe,
                         ReadBandwidth::create(plan.world_size * plan.model.threads, plan.cpus,
                                               static_cast<size_t>(cache_bytes())));
  return measure_decode(flags, run, host.weight_bytes(), probe);
}

Ending bench(BenchModelFlags flags) {
  double load = 0;  // stays 0 where the kernel does not tell
  (void)::getloadavg(&load, 1);
  SHOAL_ASSIGN_OR_RETURN(
      HostFacts facts,
      at(Stage::kStart, facts_for(&flags.engine.transport, flags.engine.tensor_parallel_size)));
  SHOAL_ASSIGN_OR_RETURN(const ModelFiles files, at(Stage::kModel, open_model(flags.engine.model)));
  SHOAL_ASSIGN_OR_RETURN(EnginePlan plan, at(Stage::kRequest, plan_bench(flags, files, facts)));
  SHOAL_ASSIGN_OR_RETURN(
      std::unique_ptr<EngineHost> host,
      at(Stage::kStart, EngineHost::start(plan, flags.engine, std::move(facts))));
  SHOAL_ASSIGN_OR_RETURN(Measured measured, at(Stage::kRun, measure(flags, files, plan, *host)));
  measured.load = load;
  return at(Stage::kRequest,
            write_stdout(flags.prefill ? report_prefill(flags, files, plan, *host, measured)
                                       : report_decode(flags, files, plan, *host, measured)));
}

}  // namespace

int run_bench_model(const BenchModelFlags& flags) {
  return report_failure(bench(flags));
}

}  // namespace shoal
