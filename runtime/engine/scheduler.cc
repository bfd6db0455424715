#include "runtime/engine/scheduler.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "runtime/base/kv_block.h"

namespace shoal {
namespace {

int32_t blocks_for(int32_t tokens) {
  return tokens / kBlockTokens + (tokens % kBlockTokens != 0 ? 1 : 0);
}

bool contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

template <typename Sequences>
int64_t total_tokens(const Sequences& sequences) {
  return std::accumulate(sequences.begin(), sequences.end(), int64_t{0},
                         [](int64_t sum, const auto& sequence) { return sum + sequence->size(); });
}

}  // namespace

Scheduler::Scheduler(const EngineLimits& limits)
    : limits_(limits),
      longest_(static_cast<int32_t>(
          std::min<int64_t>(limits.max_model_len, int64_t{limits.kv_blocks} * kBlockTokens))),
      pool_(limits.kv_blocks) {
  // Every running sequence gets at least one token per step, so that a decode never waits for the
  // budget.
  limits_.max_num_seqs = std::min(limits_.max_num_seqs, limits_.max_num_batched_tokens);
}

RequestError Scheduler::add(EngineRequest request) {
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  if (prompt_tokens == 0) return invalid_field(RequestField::kPrompt, "the prompt has no tokens");
  if (request.max_tokens < 1) {
    return invalid_field(RequestField::kMaxTokens,
                         cat("max_tokens must be at least 1, not ", request.max_tokens));
  }
  if (prompt_tokens + 1 > limits_.max_model_len) {
    return invalid_field(RequestField::kPrompt,
                         cat("the prompt has ", prompt_tokens, " tokens; with one to generate, ",
                             "the model length is ", limits_.max_model_len));
  }
  if (prompt_tokens + 1 > longest_) {
    return invalid_field(RequestField::kPrompt,
                         cat("the prompt has ", prompt_tokens,
                             " tokens; with one to generate, the whole KV cache holds ", longest_,
                             " (give --kv-cache-memory more)"));
  }
  const int64_t here = static_cast<int64_t>(running_.size() + waiting_.size());
  if (here >= int64_t{limits_.max_num_seqs} + limits_.max_waiting) {
    return Status::error(Code::kResourceExhausted,
                         cat("the queue is full: ", running_.size(), " requests run and ",
                             waiting_.size(), " wait"));
  }
  if (!ids_.insert(request.id).second) {
    return Status::error(Code::kAlreadyExists, cat("request id ", request.id, " is in use"));
  }
  auto sequence = std::make_unique<Sequence>();
  sequence->tokens = std::move(request.prompt);
  sequence->prompt_tokens = sequence->size();
  sequence->request = std::move(request);
  waiting_.push_back(std::move(sequence));
  return {};
}

StepPlan Scheduler::plan() {
  for (const Owned& sequence : running_) sequence->scheduled = 0;
  const int64_t preemptions_before = preemptions_;
  // A preempted sequence gives its tokens back to the budget, so count what is left again for each
  // sequence.
  const auto left = [this] {
    return std::accumulate(
        running_.begin(), running_.end(), limits_.max_num_batched_tokens,
        [](int32_t budget, const Owned& sequence) { return budget - sequence->scheduled; });
  };
  // grant() may remove the youngest sequences from the end of running_, but never the one it is
  // called for or an older one.
  for (size_t i = 0; i < running_.size(); ++i) {
    if (running_[i]->missing() == 1) grant(i, 1);
  }
  for (size_t i = 0; i < running_.size(); ++i) {
    if (running_[i]->missing() > 1) grant(i, left());
  }
  // A sequence that has just been preempted must not take back the blocks that older ones need
  // next.
  if (preemptions_ == preemptions_before) admit(left());

  StepPlan plan;
  planned_.clear();
  for (const bool decodes : {true, false}) {
    for (const Owned& sequence : running_) {
      if (sequence->scheduled == 0 || (sequence->missing() == 1) != decodes) continue;
      plan.sequences.push_back(step_of(*sequence));
      planned_.push_back(sequence.get());
    }
  }
  if (!plan.sequences.empty()) plan.step = ++step_;
  return plan;
}

/// Schedules up to `budget` tokens of a running sequence, as many as there are blocks for. Returns
/// their number; 0 if the sequence gets none in this step.
int32_t Scheduler::grant(size_t index, int32_t budget) {
  Sequence& sequence = *running_[index];
  const int32_t wanted = std::min(budget, sequence.missing());
  if (wanted <= 0) return 0;
  const auto room = [&] {
    const int64_t reachable = static_cast<int64_t>(sequence.blocks.size()) + pool_.free_blocks();
    return reachable * kBlockTokens - sequence.computed;
  };
  while (room() <= 0) {
    if (index + 1 == running_.size()) return 0;
    requeue_youngest();
    ++preemptions_;
  }
  sequence.scheduled = static_cast<int32_t>(std::min<int64_t>(wanted, room()));
  const auto needed = static_cast<size_t>(blocks_for(sequence.computed + sequence.scheduled));
  while (sequence.blocks.size() < needed) sequence.blocks.push_back(*pool_.allocate());
  return sequence.scheduled;
}

/// Starts waiting sequences in order, as long as there is budget and there are enough free blocks
/// for the first chunk of the next one.
void Scheduler::admit(int32_t budget) {
  while (budget > 0 && !waiting_.empty() &&
         running_.size() < static_cast<size_t>(limits_.max_num_seqs)) {
    const int32_t chunk = std::min(budget, waiting_.front()->missing());
    if (blocks_for(chunk) > pool_.free_blocks()) return;
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    budget -= grant(running_.size() - 1, budget);
  }
}

void Scheduler::requeue_youngest() {
  Sequence& youngest = *running_.back();
  release_blocks(youngest);
  youngest.computed = 0;
  youngest.scheduled = 0;
  waiting_.push_front(std::move(running_.back()));
  running_.pop_back();
}

SequenceStep Scheduler::step_of(const Sequence& sequence) const {
  SequenceStep step;
  step.id = sequence.request.id;
  step.first_position = sequence.computed;
  const auto first = sequence.tokens.begin() + sequence.computed;
  step.token_ids.assign(first, first + sequence.scheduled);
  step.block_table = sequence.blocks;
  step.sample = sequence.scheduled == sequence.missing();
  step.sampling = sequence.request.sampling;
  if (step.sample && step.sampling.has_penalty()) {
    step.history = sequence.tokens;
    step.history_prompt_tokens = sequence.prompt_tokens;
  }
  return step;
}

std::vector<TokenEvent> Scheduler::complete(const StepResult& result) {
  std::vector<TokenEvent> events;
  auto token = result.tokens.begin();
  for (Sequence* sequence : std::exchange(planned_, {})) {
    if (sequence == nullptr) continue;
    sequence->computed += std::exchange(sequence->scheduled, 0);
    if (sequence->missing() > 0) continue;  // a chunk that was not the prompt's last
    const uint64_t id = sequence->request.id;
    token = std::find_if(token, result.tokens.end(),
                         [id](const SampledToken& t) { return t.id == id; });
    if (token == result.tokens.end()) break;
    sequence->tokens.push_back(token->token_id);
    events.push_back({*token, finish_of(*sequence)});
  }
  return events;
}

/// Why the token just taken is the sequence's last one; nullopt if it is not.
std::optional<Finish> Scheduler::finish_of(const Sequence& sequence) const {
  const int32_t token = sequence.tokens.back();
  const bool by_eos = contains(sequence.request.eos_token_ids, token);
  if (by_eos || contains(sequence.request.stop_token_ids, token))
    return Finish{FinishReason::kStop, token, by_eos};
  const bool full =
      sequence.output_tokens() >= sequence.request.max_tokens || sequence.size() >= longest_;
  if (full) return Finish{FinishReason::kLength};
  return std::nullopt;
}

bool Scheduler::finish(uint64_t id) {
  if (ids_.erase(id) == 0) return false;
  const auto has_id = [id](const Owned& sequence) { return sequence->request.id == id; };
  if (const auto it = std::find_if(running_.begin(), running_.end(), has_id);
      it != running_.end()) {
    std::replace(planned_.begin(), planned_.end(), it->get(), static_cast<Sequence*>(nullptr));
    release_blocks(**it);
    running_.erase(it);
  } else {
    waiting_.erase(std::find_if(waiting_.begin(), waiting_.end(), has_id));
  }
  return true;
}

void Scheduler::requeue_running() {
  planned_.clear();
  while (!running_.empty()) requeue_youngest();
}

void Scheduler::release_blocks(Sequence& sequence) {
  for (const int32_t block : sequence.blocks) pool_.free(block);
  sequence.blocks.clear();
}

EngineLoad Scheduler::load() const {
  EngineLoad load;
  load.running = static_cast<int32_t>(running_.size());
  load.waiting = static_cast<int32_t>(waiting_.size());
  load.total_kv_blocks = pool_.total_blocks();
  load.used_kv_blocks = pool_.total_blocks() - pool_.free_blocks();
  load.running_tokens = total_tokens(running_);
  load.waiting_tokens = total_tokens(waiting_);
  load.preemptions = preemptions_;
  return load;
}

}  // namespace shoal
