#include <algorithm>

#include "runtime/base/counted.h"
#include "runtime/base/log.h"
#include "runtime/base/number_text.h"
#include "runtime/base/quantity.h"
#include "server/cli/command_io.h"
#include "server/cli/exit_code.h"
#include "server/commands/bench_text.h"
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

constexpr int kTokensOfTurn = 8;

/// Some tokens decoded one after the other, between two measurements of the read bandwidth. All
/// figures of it follow from these.
struct DecodeTurn {
  int tokens = 0;
  double seconds = 0;        ///< of one token, on average
  int64_t weight_bytes = 0;  ///< that a token reads
  ReadRate machine;          ///< the better of the measurements before and after it

  double tokens_per_s() const { return 1 / seconds; }
  double bytes_per_s() const { return static_cast<double>(weight_bytes) / seconds; }
  double fraction() const { return bytes_per_s() / machine.bytes_per_s; }
  bool operator<(const DecodeTurn& other) const { return fraction() < other.fraction(); }
};

struct Measured {
  std::vector<double> repeats;    ///< prefill: the seconds of each
  std::vector<DecodeTurn> turns;  ///< decode
  MachineLoad load;               ///< before the start
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

/// Times turns of tokens, and measures the read bandwidth before and after each, because it changes
/// within seconds.
Result<Measured> measure_decode(const BenchModelFlags& flags, SequenceRun& run,
                                int64_t weight_bytes, ReadBandwidth& probe) {
  Measured measured;
  SHOAL_RETURN_IF_ERROR(run.step(kDecodePrompt));
  for (int i = 0; i < kWarmupSteps; ++i) SHOAL_RETURN_IF_ERROR(run.step(1));
  ReadRate before = probe.measure();
  for (int done = 0; done < flags.tokens;) {
    const int tokens = std::min(kTokensOfTurn, flags.tokens - done);
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < tokens; ++i) SHOAL_RETURN_IF_ERROR(run.step(1));
    const double seconds = seconds_since(start) / tokens;
    done += tokens;
    const ReadRate after = probe.measure();
    measured.turns.push_back({tokens, seconds, weight_bytes, std::max(before, after)});
    before = after;
  }
  return measured;
}

Result<Measured> measure_prefill(const BenchModelFlags& flags, SequenceRun& run) {
  const int64_t chunk = flags.engine.max_num_batched_tokens;
  Measured measured;
  for (int repeat = -1; repeat < kPrefillRepeats; ++repeat) {  // the first repeat only warms up
    run.restart();
    const Clock::time_point start = Clock::now();
    for (int64_t done = 0; done < flags.tokens; done += chunk) {
      SHOAL_RETURN_IF_ERROR(run.step(std::min<int64_t>(chunk, flags.tokens - done)));
    }
    if (repeat >= 0) measured.repeats.push_back(seconds_since(start));
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

/// The time that a rate is of, and what it says beside the rate in a text.
struct Timed {
  int64_t tokens = 0;
  double seconds = 0;
  std::string beside;
};

/// What every report begins with, as text or JSON: what was run, and how long it took.
std::string report_head(const BenchModelFlags& flags, const EnginePlan& plan,
                        const EngineHost& host, const MachineLoad& load, const Timed& timed) {
  const char* bench = flags.prefill ? "prefill" : "decode";
  const double rate = static_cast<double>(timed.tokens) / timed.seconds;
  if (flags.json) {
    return cat("{\"bench\":\"", bench, "\",\"tp\":", plan.world_size,
               ",\"threads_per_rank\":", plan.model.threads, ",\"transport\":\"", host.transport(),
               "\",\"kernels\":\"", host.kernels(), "\",\"tokens\":", flags.tokens,
               ",\"tokens_per_s\":", with_decimals(rate, 4),
               ",\"seconds\":", with_decimals(timed.seconds, 9),
               ",\"load_average\":", with_decimals(load.average, 2), ",");
  }
  return cat(bench, ": tp ", plan.world_size, ", threads per rank ", plan.model.threads,
             ", transport ", host.transport(), ", kernels ", host.kernels(), ", ",
             counted(flags.tokens, "token"), "\n  ", four_digits(rate), " tokens/s (", timed.beside,
             "); ", load.text(), "\n");
}

/// The seconds of each run, as the items of a JSON array.
std::string runs_json(const std::vector<double>& seconds) {
  std::string list;
  for (const double run : seconds) list += cat(list.empty() ? "" : ",", with_decimals(run, 9));
  return list;
}

std::string report_prefill(const BenchModelFlags& flags, const ModelFiles& files,
                           const EnginePlan& plan, const EngineHost& host,
                           const Measured& measured) {
  const double seconds = median(measured.repeats);
  const double flops = product_flops(files.config, flags.tokens);
  const double rate = flops / seconds;
  const std::string head = report_head(
      flags, plan, host, measured.load,
      {flags.tokens, seconds,
       cat("median ", four_digits(seconds), " s; ", spread_text(measured.repeats, "s", "runs"))});
  if (flags.json) {
    return cat(head, "\"product_flops\":", with_decimals(flops, 0),
               ",\"flops_per_s\":", with_decimals(rate, 0), ",\"model\":\"",
               json_escape(files.name), "\",\"runs\":[", runs_json(measured.repeats), "]}\n");
  }
  return cat(head, "  the layers' products: ", metric_text(flops, "FLOP"), " at ",
             metric_text(rate, "FLOP/s"),
             " (attention and the vocabulary's product are not counted)\n");
}

/// The rates of a turn and their quotient, as members of a JSON object.
std::string rates_json(const DecodeTurn& turn) {
  return cat("\"bytes_per_s\":", with_decimals(turn.bytes_per_s(), 0),
             ",\"read_bandwidth_bytes_per_s\":", with_decimals(turn.machine.bytes_per_s, 0),
             ",\"read_loop\":\"", turn.machine.loop.name(),
             "\",\"fraction\":", with_decimals(turn.fraction(), 4));
}

std::string turns_json(const std::vector<DecodeTurn>& turns) {
  std::string list;
  for (const DecodeTurn& turn : turns) {
    list += cat(list.empty() ? "" : ",", "{\"tokens\":", turn.tokens,
                ",\"seconds\":", with_decimals(turn.seconds, 9), ",", rates_json(turn), "}");
  }
  return cat("\"turns\":[", list, "]");
}

/// "0.1961 ms a token; 4012 to 5300 tokens/s in 3 turns"
std::string pace_text(const DecodeTurn& turn, const std::vector<DecodeTurn>& turns) {
  std::vector<double> rates;
  for (const DecodeTurn& one : turns) rates.push_back(one.tokens_per_s());
  const std::string spread = spread_text(rates, "tokens/s", "turns");
  return cat(four_digits(1e3 * turn.seconds), " ms a token", spread.empty() ? "" : "; ", spread);
}

/// What stands behind the fraction. A single turn has no median and no range.
std::string range_text(const std::vector<DecodeTurn>& turns) {
  constexpr int kUsefulTurns = 8;
  if (turns.size() < 2) {
    return cat(" (one turn of ", counted(turns[0].tokens, "token"), " only; --tokens ",
               kUsefulTurns * kTokensOfTurn, " runs ", kUsefulTurns, " turns and gives a range)");
  }
  const auto [least, most] = std::minmax_element(turns.begin(), turns.end());
  return cat(" (", with_decimals(least->fraction(), 3), " to ", with_decimals(most->fraction(), 3),
             " in ", counted(turns.size(), "turn"), " of at most ", kTokensOfTurn,
             " tokens)\n  all figures but the ranges are of the turn that has the median fraction");
}

/// All of decode's text below its head.
std::string decode_text(const DecodeTurn& turn, const std::vector<DecodeTurn>& turns,
                        uint64_t cache) {
  const std::string caches =
      fit_in_caches(static_cast<uint64_t>(turn.weight_bytes), cache)
          ? cat("  the weights fit into the processor's caches (",
                bytes_text(static_cast<int64_t>(cache)),
                "), so this is not the speed of memory, and the fraction can exceed 1\n")
          : "";
  return cat("  a token reads the weights, ", bytes_text(turn.weight_bytes), ": read at ",
             metric_text(turn.bytes_per_s(), "B/s"), ", where this machine reads ",
             metric_text(turn.machine.bytes_per_s, "B/s"), " (", turn.machine.loop.name(), ")\n",
             caches, "  fraction of that bandwidth ", with_decimals(turn.fraction(), 3),
             range_text(turns), "\n");
}

/// All figures but the spread are those of one turn. Medians of each figure would contradict each
/// other: a quotient of medians is not a median of quotients.
std::string report_decode(const BenchModelFlags& flags, const ModelFiles& files,
                          const EnginePlan& plan, const EngineHost& host,
                          const Measured& measured) {
  const DecodeTurn turn = median(measured.turns);
  const auto [least, most] = std::minmax_element(measured.turns.begin(), measured.turns.end());
  const std::string head = report_head(flags, plan, host, measured.load,
                                       {1, turn.seconds, pace_text(turn, measured.turns)});
  const uint64_t cache = cache_bytes();
  if (!flags.json) return head + decode_text(turn, measured.turns, cache);
  return cat(head, "\"weight_bytes\":", turn.weight_bytes, ",", rates_json(turn),
             ",\"fraction_least\":", with_decimals(least->fraction(), 4),
             ",\"fraction_most\":", with_decimals(most->fraction(), 4), ",\"model\":\"",
             json_escape(files.name), "\",\"cache_bytes\":", cache, ",", turns_json(measured.turns),
             "}\n");
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
  const MachineLoad load = MachineLoad::now();
  SHOAL_ASSIGN_OR_RETURN(
      HostFacts facts,
      at(Stage::kStart, facts_for(&flags.engine.transport, flags.engine.tensor_parallel_size)));
  SHOAL_ASSIGN_OR_RETURN(const ModelFiles files, at(Stage::kModel, open_model(flags.engine)));
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
