#include "runtime/worker/model_runner.h"

#include <algorithm>
#include <span>

#include "models/cpu_layers.h"
#include "models/cuda_layers.h"
#include "models/decoder.h"
#include "runtime/base/counted.h"

namespace shoal {
namespace {

/// True if each rank's best token is enough to choose from, so that the whole row is not needed.
bool argmax_suffices(const SequenceStep& sequence) {
  const SamplingParams& s = sequence.sampling;
  return sequence.sample && !sequence.all_logits && s.temperature == 0 && s.logprobs < 0 &&
         !s.has_penalty();
}

}  // namespace

ModelRunner::ModelRunner() = default;
ModelRunner::~ModelRunner() = default;

Result<std::unique_ptr<ModelRunner>> ModelRunner::load(
    const ModelStart& start, const KernelTable& kernels, const RankPlace& place,
    const std::function<void(const LoadProgress&)>& progress) {
  std::unique_ptr<ModelRunner> runner(new ModelRunner());
  SHOAL_ASSIGN_OR_RETURN(runner->config_, parse_model_config(start.config_json, start.config_path));
  SHOAL_ASSIGN_OR_RETURN(runner->plan_,
                         make_shard_plan(runner->config_, place.world, start.device));
  runner->kernels_ = &kernels;
  SHOAL_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::map(start.checkpoint));
  runner->checkpoint_ = std::make_unique<Checkpoint>(std::move(checkpoint));
  SHOAL_ASSIGN_OR_RETURN(runner->pool_,
                         ThreadPool::start(start.threads, {place.cpus.begin(), place.cpus.end()}));
  runner->limits_ = start.limits;
  runner->on_device_ = start.device == DeviceKind::kCuda;
  runner->max_logit_rows_ = start.max_logit_rows();
  const LoadCallback report = [&](int64_t done, int64_t total) { progress({done, total}); };
  if (runner->on_device_) {
    SHOAL_ASSIGN_OR_RETURN(
        runner->layers_,
        CudaLayers::load({runner->config_, runner->plan_, place.device, *runner->pool_, kernels,
                          place.collective_timeout_ms, start.library},
                         *runner->checkpoint_, start.dtype, report));
  } else {
    SHOAL_ASSIGN_OR_RETURN(
        runner->layers_, CpuLayers::load({runner->config_, runner->plan_, kernels, *runner->pool_},
                                         *runner->checkpoint_, start.dtype, report));
  }
  return runner;
}

Status ModelRunner::take_memory(Communicator& communicator) {
  communicator_ = &communicator;
  const StepRoom room{.rows = limits_.max_num_batched_tokens,
                      .sequences = limits_.max_num_seqs,
                      .positions = limits_.max_model_len,
                      .logit_rows = max_logit_rows_};
  SHOAL_RETURN_IF_ERROR(layers_->take_memory(room, communicator));
  SHOAL_RETURN_IF_ERROR(take_kv_cache(on_device_ ? 1 : limits_.kv_blocks));
  own_best_.resize(static_cast<size_t>(max_logit_rows_));
  SHOAL_ASSIGN_OR_RETURN(logits_, LogitRows::allocate(plan_, max_logit_rows_));
  if (plan_.world.rank == 0) sampler_ = SamplerMemory(static_cast<size_t>(config_.vocab_size));
  return {};
}

Status ModelRunner::take_kv_cache(int32_t blocks) {
  SHOAL_RETURN_IF_ERROR(layers_->take_kv_cache(blocks));
  kv_blocks_ = blocks;
  return {};
}

void ModelRunner::set_signs(StepSigns signs) {
  moved_ = signs.moved;
  layers_->set_signs(std::move(signs));
}

int64_t ModelRunner::logit_bytes(const ShardPlan& plan, int64_t rows) {
  const int64_t sampler = plan.world.rank == 0 ? SamplerMemory::bytes(plan.vocab_size) : 0;
  return LogitRows::bytes(plan, rows) + sampler;
}

Status ModelRunner::warm_up() {
  SequenceStep token;
  token.token_ids = {0};
  token.block_table = {0};
  token.sample = true;
  token.sampling.temperature = 0;
  SHOAL_RETURN_IF_ERROR(run({0, {token}}).status());
  return layers_->launch_shapes();
}

Status ModelRunner::build_batch(const StepPlan& plan) {
  batch_ = {};
  wanted_.clear();
  for (const SequenceStep& sequence : plan.sequences) {
    const auto rows = static_cast<int>(sequence.token_ids.size());
    const int row_begin = static_cast<int>(batch_.token_ids.size());
    const int64_t end = int64_t{sequence.first_position} + rows;
    const bool in_range =
        std::all_of(sequence.block_table.begin(), sequence.block_table.end(),
                    [&](int32_t block) { return block >= 0 && block < kv_blocks_; });
    if (rows == 0 || static_cast<int64_t>(sequence.block_table.size()) * kBlockTokens < end ||
        !in_range) {
      return Status::error(
          Code::kInternal,
          cat("step ", plan.step, ": sequence ", sequence.id, " has ", counted(rows, "token"), ", ",
              counted(sequence.block_table.size(), "block"), ", ends at position ", end));
    }
    batch_.token_ids.insert(batch_.token_ids.end(), sequence.token_ids.begin(),
                            sequence.token_ids.end());
    for (int i = 0; i < rows; ++i) batch_.positions.push_back(sequence.first_position + i);
    batch_.sequences.push_back(
        {sequence.block_table.data(), sequence.first_position, row_begin, rows});
    const int logits_of = sequence.all_logits ? rows : sequence.sample ? 1 : 0;
    if (logits_of == 0) continue;
    wanted_.push_back({&sequence, static_cast<int>(batch_.logit_rows.size()), logits_of});
    for (int i = rows - logits_of; i < rows; ++i) batch_.logit_rows.push_back(row_begin + i);
    batch_.whole.resize(batch_.logit_rows.size(), argmax_suffices(sequence) ? 0 : 1);
  }
  const auto logit_rows = static_cast<int64_t>(batch_.logit_rows.size());
  if (logit_rows > logits_.capacity()) {
    return Status::error(Code::kInternal,
                         cat("step ", plan.step, " wants ", logit_rows,
                             " rows of logits; there is room for ", logits_.capacity()));
  }
  for (const int32_t id : batch_.token_ids) {
    if (id < 0 || id >= config_.vocab_size)
      return Status::error(Code::kInternal, cat("token id ", id, " in a step"));
  }
  return {};
}

Result<StepResult> ModelRunner::run(const StepPlan& plan) {
  SHOAL_RETURN_IF_ERROR(build_batch(plan));
  SHOAL_RETURN_IF_ERROR(forward(*layers_, config_.num_hidden_layers, batch_,
                                {.rows = logits_.own(), .best = own_best_.data()}));
  StepResult result;
  result.step = plan.step;
  SHOAL_RETURN_IF_ERROR(collect(&result));
  return result;
}

Status ModelRunner::collect(StepResult* result) {
  const bool any_rows = std::any_of(wanted_.begin(), wanted_.end(),
                                    [](const Wanted& w) { return !argmax_suffices(*w.sequence); });
  const bool any_greedy = std::any_of(wanted_.begin(), wanted_.end(),
                                      [](const Wanted& w) { return argmax_suffices(*w.sequence); });
  if (any_greedy) SHOAL_RETURN_IF_ERROR(gather_best());
  if (any_rows) SHOAL_RETURN_IF_ERROR(gather_rows());
  if (plan_.world.rank != 0) return {};
  size_t greedy = 0;
  int64_t row = 0;
  for (const Wanted& wanted : wanted_) {
    if (argmax_suffices(*wanted.sequence)) {
      SampledToken token;
      token.id = wanted.sequence->id;
      token.token_id = best_[greedy++];
      result->tokens.push_back(std::move(token));
      continue;
    }
    take_rows(wanted, row, result);
    row += wanted.rows;
    if (wanted.sequence->sample && moved_) SHOAL_RETURN_IF_ERROR(moved_());
  }
  return {};
}

/// Answers a sequence whose whole rows begin with the gathered row `first`.
void ModelRunner::take_rows(const Wanted& wanted, int64_t first, StepResult* result) {
  const SequenceStep& sequence = *wanted.sequence;
  const int64_t last = first + wanted.rows - 1;
  for (int64_t row = first; sequence.all_logits && row <= last; ++row) {
    const std::span<const float> logits = logits_.whole(row);
    result->logits.insert(result->logits.end(), logits.begin(), logits.end());
  }
  if (!sequence.sample) return;
  const int position = sequence.first_position + static_cast<int>(sequence.token_ids.size());
  SampledToken token = sample_token(logits_.whole(last), sequence.sampling, sequence.history,
                                    sequence.history_prompt_tokens, position, *kernels_, sampler_);
  token.id = sequence.id;
  result->tokens.push_back(std::move(token));
}

Status ModelRunner::gather_best() {
  std::vector<ArgmaxResult> mine;
  for (const Wanted& wanted : wanted_) {
    if (!argmax_suffices(*wanted.sequence)) continue;
    ArgmaxResult best = own_best_[static_cast<size_t>(wanted.row_begin)];
    if (best.column >= 0) best.column += plan_.vocab.begin;
    mine.push_back(best);
  }
  const auto ranks = static_cast<size_t>(plan_.world.size);
  std::vector<ArgmaxResult> all(plan_.world.rank == 0 ? mine.size() * ranks : 0);
  const std::vector<size_t> sizes(ranks, mine.size() * sizeof(ArgmaxResult));
  SHOAL_RETURN_IF_ERROR(communicator_->gather(0, std::as_bytes(std::span(mine)), sizes,
                                              reinterpret_cast<std::byte*>(all.data())));
  if (plan_.world.rank != 0) return {};
  best_.clear();
  for (size_t i = 0; i < mine.size(); ++i) {
    ArgmaxResult best = all[i];
    // Ids ascend with the ranks, so that the lowest id of equals stays.
    for (size_t rank = 1; rank < ranks; ++rank) {
      const ArgmaxResult& other = all[rank * mine.size() + i];
      if (other.column >= 0 && (best.column < 0 || other.value > best.value)) best = other;
    }
    best_.push_back(std::max(best.column, 0));
  }
  return {};
}

/// Runs after gather_best(), because the rows that are gathered move to the front, where those of
/// greedy sequences may be.
Status ModelRunner::gather_rows() {
  int64_t count = 0;
  for (const Wanted& wanted : wanted_) {
    if (argmax_suffices(*wanted.sequence)) continue;
    logits_.move_own(wanted.row_begin, wanted.rows, count);
    count += wanted.rows;
  }
  return logits_.gather(*communicator_, count);
}

}  // namespace shoal
