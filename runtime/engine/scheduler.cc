#include "runtime/engine/scheduler.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "runtime/base/kv_block.h"
#include "runtime/engine/check_request.h"
#include "runtime/engine/sequence_list.h"

namespace shoal {
namespace {

/// How much the last sequence counts in the mean of their output.
constexpr double kUsualWeight = 1.0 / 16;

bool contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

Scheduler::Scheduler(SchedulerKey /*key*/, const EngineLimits& limits, SchedulingPolicy policy)
    : limits_(limits),
      policy_(policy),
      longest_(static_cast<int32_t>(
          std::min<int64_t>(limits.max_model_len, int64_t{limits.kv_blocks} * kBlockTokens))),
      pool_(limits.kv_blocks),
      seats_(policy) {
  // Every running sequence gets at least one token per step, so that a decode never waits for the
  // budget.
  limits_.max_num_seqs = std::min(limits_.max_num_seqs, limits_.max_num_batched_tokens);
}

RequestError Scheduler::check(const EngineRequest& request) const {
  SHOAL_RETURN_IF_ERROR(check_request(limits_, request));
  if (ids_.contains(request.id))
    return Status::error(Code::kAlreadyExists, cat("request id ", request.id, " is in use"));
  return {};
}

RequestError Scheduler::add(EngineRequest request) {
  SHOAL_RETURN_IF_ERROR(check(request));
  ids_.insert(request.id);
  auto sequence = std::make_unique<Sequence>();
  sequence->tokens = std::move(request.prompt);
  sequence->prompt_tokens = sequence->size();
  sequence->request = std::move(request);
  sequence->arrival = ++arrivals_;
  seats_.enter(*sequence);
  waiting_.push_back(std::move(sequence));
  return {};
}

/// Whether `a` may take the blocks of `b`. This is a total order, so that what is first in it can
/// take the blocks of all others.
bool Scheduler::precedes(const Sequence& a, const Sequence& b) const {
  const auto key = [this](const Sequence& s) {
    const bool by_priority = policy_ == SchedulingPolicy::kPriority && !has_aged(s);
    return std::tuple(by_priority, by_priority ? s.request.priority : 0, s.arrival);
  };
  return key(a) < key(b);
}

/// Prompts get their share of the budget in the order of these keys.
Scheduler::PromptKey Scheduler::prompt_key(const Sequence& s) const {
  const bool first = has_aged(s), by_priority = policy_ == SchedulingPolicy::kPriority && !first;
  const bool in_order = first || resumes(s);
  return {!first, by_priority ? s.request.priority : 0, !in_order, in_order ? 0 : s.missing(),
          s.arrival};
}

StepPlan Scheduler::plan(const PrefillBudget& budget) {
  for (const Owned& sequence : running_) sequence->scheduled = 0;
  const int64_t preemptions_before = preemptions_;
  return_unused_places();
  plan_decodes();
  const auto decodes = static_cast<int32_t>(
      std::count_if(running_.begin(), running_.end(),
                    [](const Owned& sequence) { return sequence->scheduled > 0; }));
  const int32_t wanted = decodes > 0 ? budget.beside_decodes : std::max(budget.alone, 1);
  // Blocks that were given back in this step are those that others need next.
  if (preemptions_ == preemptions_before) admit_waiting();
  plan_prompts(std::min(wanted, limits_.max_num_batched_tokens - decodes));
  return make_plan();
}

void Scheduler::plan_decodes() {
  std::vector<Sequence*> decodes;
  for (const Owned& sequence : running_) {
    if (sequence->decodes()) decodes.push_back(sequence.get());
  }
  std::sort(decodes.begin(), decodes.end(),
            [this](const Sequence* a, const Sequence* b) { return precedes(*a, *b); });
  for (Sequence* sequence : decodes) {
    if (sequence->running) grant(*sequence, 1);  // an earlier one may have preempted it
  }
}

/// A sequence that has a place and no block yet goes back to waiting, because an earlier one may
/// need the place more by now.
void Scheduler::return_unused_places() {
  for (size_t i = running_.size(); i-- > 0;) {
    if (running_[i]->blocks.empty()) requeue(*running_[i]);
  }
}

/// Gives waiting sequences seats, in their order. A sequence whose blocks are not free lets others
/// pass, unless it has been passed often enough or has lost its blocks.
void Scheduler::admit_waiting() {
  for (const Owned& sequence : waiting_) sequence->place = 0;
  if (!has_seat() || waiting_.empty()) return;
  int64_t reserved = reserved_blocks();
  int32_t place = 0;
  for (const SeatOrder::Place& next : seats_.order(waiting_)) {
    Sequence* const sequence = next.sequence;
    sequence->place = ++place;
    if (blocks_for(sequence->size()) + reserved > pool_.free_blocks()) {
      if (sequence->lost_blocks || sequence->overtaken >= kMaxOvertaken) return;
      continue;
    }
    move_over(waiting_, running_, *sequence);
    sequence->running = true;
    if (!has_seat()) return;
    reserved = reserved_blocks();
  }
}

/// Shares the budget among the running sequences whose prompts are not computed yet.
void Scheduler::plan_prompts(int32_t budget) {
  std::vector<std::pair<PromptKey, Sequence*>> prompts;
  for (const Owned& sequence : running_) {
    if (!sequence->decodes()) prompts.emplace_back(prompt_key(*sequence), sequence.get());
  }
  std::sort(prompts.begin(), prompts.end());
  int32_t left = budget;
  for (const auto& [key, sequence] : prompts) {
    if (left <= 0) break;
    if (!sequence->running) continue;  // an earlier one has taken its blocks
    if (sequence->blocks.empty() && held_back(*sequence)) continue;
    grant(*sequence, left);
    if (sequence->computed == 0 && sequence->scheduled > 0) {
      note_overtaken_by(*sequence);
      seats_.begin(*sequence);
    }
    // A prompt that is preempted gives its tokens back to the budget.
    left =
        std::accumulate(prompts.begin(), prompts.end(), budget,
                        [](int32_t sum, const auto& one) { return sum - one.second->scheduled; });
  }
  budget_spent_ = budget > 0 && left <= 0;
}

/// Schedules up to `budget` tokens of a running sequence, or fewer if there are no blocks for all
/// of them.
void Scheduler::grant(Sequence& sequence, int32_t budget) {
  const int32_t wanted = std::min(budget, sequence.missing());
  const auto room = [&] {
    const int64_t reachable = static_cast<int64_t>(sequence.blocks.size()) + pool_.free_blocks();
    return reachable * kBlockTokens - sequence.computed;
  };
  while (room() <= 0) {
    Sequence* victim = victim_for(sequence);
    if (victim == nullptr) return;
    if (!victim->blocks.empty()) {
      ++victim->preempted;
      ++preemptions_;
    }
    requeue(*victim);
  }
  sequence.scheduled = static_cast<int32_t>(std::min<int64_t>(wanted, room()));
  const auto needed = static_cast<size_t>(blocks_for(sequence.computed + sequence.scheduled));
  while (sequence.blocks.size() < needed) sequence.blocks.push_back(*pool_.allocate());
}

/// The running sequence that comes last in precedence, if that is after this one; otherwise
/// nullptr.
Sequence* Scheduler::victim_for(const Sequence& sequence) const {
  const auto last =
      std::max_element(running_.begin(), running_.end(),
                       [this](const Owned& a, const Owned& b) { return precedes(*a, *b); });
  return last != running_.end() && precedes(sequence, **last) ? last->get() : nullptr;
}

/// Whether `sequence` may not begin now, because it would overtake one that was overtaken often
/// enough.
bool Scheduler::held_back(const Sequence& sequence) const {
  const auto waits_for = [&](const Owned& other) {
    return other->overtaken >= kMaxOvertaken && seats_.overtakes(sequence, *other);
  };
  return std::any_of(running_.begin(), running_.end(), waits_for) ||
         std::any_of(waiting_.begin(), waiting_.end(), waits_for);
}

/// How many blocks a running sequence will probably have when it ends. The guess is that it
/// generates the usual number of tokens of the sequences that have ended. It is at least one block
/// more than its tokens take now.
int32_t Scheduler::expected_blocks(const Sequence& sequence) const {
  const int64_t most = std::min<int64_t>(
      int64_t{sequence.prompt_tokens} + sequence.request.max_tokens - 1, longest_);
  const int64_t usual = sequence.prompt_tokens + static_cast<int64_t>(usual_output_);
  const int64_t least = int64_t{sequence.size()} + kBlockTokens;
  return blocks_for(static_cast<int32_t>(std::min(most, std::max(usual, least))));
}

/// Blocks that the running sequences lack and will soon need. If others took them, some of these
/// would have to be preempted.
int64_t Scheduler::reserved_blocks() const {
  return std::accumulate(
      running_.begin(), running_.end(), int64_t{0}, [this](int64_t sum, const Owned& sequence) {
        return sum + expected_blocks(*sequence) - static_cast<int64_t>(sequence->blocks.size());
      });
}

void Scheduler::note_overtaken_by(const Sequence& sequence) {
  for (const auto* list : {&running_, &waiting_}) {
    for (const Owned& other : *list) {
      if (seats_.overtakes(sequence, *other)) ++other->overtaken;
    }
  }
}

void Scheduler::requeue(Sequence& sequence) {
  if (!sequence.blocks.empty()) {
    sequence.lost_blocks = true;
    seats_.enter(sequence);
  }
  release_blocks(sequence);
  sequence.computed = 0;
  sequence.scheduled = 0;
  sequence.running = false;
  move_over(running_, waiting_, sequence);
}

StepPlan Scheduler::make_plan() {
  StepPlan plan;
  planned_.clear();
  for (const bool decodes : {true, false}) {
    for (const Owned& sequence : running_) {
      if (sequence->scheduled == 0 || sequence->decodes() != decodes) continue;
      plan.sequences.push_back(step_of(*sequence));
      planned_.push_back(sequence.get());
    }
  }
  if (!plan.sequences.empty()) plan.step = ++step_;
  return plan;
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

/// A sequence that was ended by a max_tokens below the mean might have had the usual length.
void Scheduler::learn_length(const Sequence& ended) {
  const int32_t tokens = ended.output_tokens();
  const bool cut_short = tokens >= ended.request.max_tokens && tokens < usual_output_;
  if (!cut_short) usual_output_ += kUsualWeight * (tokens - usual_output_);
}

bool Scheduler::finish(uint64_t id, bool by_itself) {
  if (ids_.erase(id) == 0) return false;
  const auto has_id = [id](const Owned& sequence) { return sequence->request.id == id; };
  if (const auto it = std::find_if(running_.begin(), running_.end(), has_id);
      it != running_.end()) {
    if (by_itself) learn_length(**it);
    if ((*it)->blocks.empty()) seats_.leave(**it);
    std::replace(planned_.begin(), planned_.end(), it->get(), static_cast<Sequence*>(nullptr));
    release_blocks(**it);
    running_.erase(it);
  } else {
    const auto waits = std::find_if(waiting_.begin(), waiting_.end(), has_id);
    seats_.leave(**waits);
    waiting_.erase(waits);
  }
  return true;
}

void Scheduler::requeue_running() {
  planned_.clear();
  while (!running_.empty()) requeue(*running_.back());
}

void Scheduler::release_blocks(Sequence& sequence) {
  for (const int32_t block : sequence.blocks) pool_.free(block);
  sequence.blocks.clear();
}

Backlog Scheduler::ahead_of(const Prospect& prospect, const std::vector<uint64_t>& without) const {
  Sequence last;  // as it would be if it came now
  last.request.priority = prospect.priority;
  last.computed = -prospect.prompt_tokens;  // so that it lacks them
  last.arrival = arrivals_ + 1;
  const PromptKey key = prompt_key(last);
  const std::vector<SeatOrder::Place> places = seats_.places(waiting_);
  const SeatKey seat = seats_.key_of_new(prospect.client, prospect.priority, last.arrival, places);
  Backlog ahead{.begins = 1};
  int64_t blocks = blocks_for(prospect.prompt_tokens);
  const auto count_prompt = [&](const Sequence& other) {
    if (!other.decodes() && prompt_key(other) < key) ahead.prompt_tokens += other.missing();
  };
  for (const Owned& other : running_) count_prompt(*other);
  for (const SeatOrder::Place& place : places) {
    const Sequence& other = *place.sequence;
    const uint64_t id = other.request.id;
    if (seat < place.key || std::find(without.begin(), without.end(), id) != without.end())
      continue;
    count_prompt(other);
    ++ahead.begins;
    blocks += blocks_for(other.size());
  }
  const int64_t free = std::max<int64_t>(pool_.free_blocks() - reserved_blocks(), 0);
  const int64_t seats = limits_.max_num_seqs - static_cast<int64_t>(running_.size());
  const int64_t fitting = blocks <= free ? ahead.begins : ahead.begins * free / blocks;
  ahead.begins -= std::min({ahead.begins, seats, fitting});
  return ahead;
}

bool Scheduler::held_up() const {
  if (!has_seat() || waiting_.empty()) return !waiting_.empty();
  const int64_t room = pool_.free_blocks() - reserved_blocks();
  const auto fits = [room](const Owned& one) { return blocks_for(one->size()) <= room; };
  return std::none_of(waiting_.begin(), waiting_.end(), fits);
}

EngineLoad Scheduler::load() const {
  EngineLoad load;
  load.running = static_cast<int32_t>(running_.size());
  load.waiting = static_cast<int32_t>(waiting_.size());
  load.total_kv_blocks = pool_.total_blocks();
  load.used_kv_blocks = pool_.total_blocks() - pool_.free_blocks();
  load.running_tokens = total_tokens(running_);
  load.waiting_tokens = total_tokens(waiting_);
  for (const auto* list : {&running_, &waiting_}) {
    for (const Owned& one : *list) load.prompt_tokens += one->decodes() ? 0 : one->missing();
  }
  load.preemptions = preemptions_;
  return load;
}

}  // namespace shoal
