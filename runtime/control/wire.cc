#include "runtime/control/wire.h"

#include "control.pb.h"

namespace shoal {
namespace {

namespace pb = shoal::control;

template <typename T, typename Repeated>
void put(const std::vector<T>& from, Repeated* to) {
  to->Add(from.begin(), from.end());
}
template <typename Repeated, typename T>
void get(const Repeated& from, std::vector<T>* to) {
  to->assign(from.begin(), from.end());
}

void put(const WorkerInit& m, pb::Init* out) {
  out->set_rank(m.rank);
  out->set_world_size(m.world_size);
  out->set_model_dir(m.model_dir);
  out->set_dtype(static_cast<int>(m.dtype));
  out->set_max_model_len(m.max_model_len);
  out->set_max_num_batched_tokens(m.max_num_batched_tokens);
  out->set_max_num_seqs(m.max_num_seqs);
  out->set_kv_blocks(m.kv_blocks);
  out->set_threads(m.threads);
  put(m.cpus, out->mutable_cpus());
  out->set_kernels(m.kernels);
  out->set_transport(m.transport);
  put(m.tcp_ports, out->mutable_tcp_ports());
  out->set_shm_bytes(m.shm_bytes);
  out->set_collective_timeout_ms(m.collective_timeout_ms);
  out->set_group_key(m.group_key);
  out->set_log_level(m.log_level);
  out->set_log_json(m.log_json);
  out->set_start_number(m.start_number);
  out->set_transport_only(m.transport_only);
  out->set_self_test_seed(m.self_test_seed);
  out->set_step_heartbeat_ms(m.step_heartbeat_ms);
  out->set_device(static_cast<int>(m.device));
  out->set_ranks_per_gpu(m.ranks_per_gpu);
  out->set_cuda_module(m.cuda_module);
  out->set_nccl_library(m.nccl_library);
  out->set_reproducible(m.reproducible);
}

WorkerInit get(const pb::Init& m) {
  WorkerInit out;
  out.rank = m.rank();
  out.world_size = m.world_size();
  out.model_dir = m.model_dir();
  out.dtype = static_cast<Dtype>(m.dtype());
  out.max_model_len = m.max_model_len();
  out.max_num_batched_tokens = m.max_num_batched_tokens();
  out.max_num_seqs = m.max_num_seqs();
  out.kv_blocks = m.kv_blocks();
  out.threads = m.threads();
  get(m.cpus(), &out.cpus);
  out.kernels = m.kernels();
  out.transport = m.transport();
  get(m.tcp_ports(), &out.tcp_ports);
  out.shm_bytes = m.shm_bytes();
  out.collective_timeout_ms = m.collective_timeout_ms();
  out.group_key = m.group_key();
  out.log_level = m.log_level();
  out.log_json = m.log_json();
  out.start_number = m.start_number();
  out.transport_only = m.transport_only();
  out.self_test_seed = m.self_test_seed();
  out.step_heartbeat_ms = m.step_heartbeat_ms();
  out.device = static_cast<DeviceKind>(m.device());
  out.ranks_per_gpu = m.ranks_per_gpu();
  out.cuda_module = m.cuda_module();
  out.nccl_library = m.nccl_library();
  out.reproducible = m.reproducible();
  return out;
}

void put(const SamplingParams& m, pb::Sampling* out) {
  out->set_temperature(m.temperature);
  out->set_top_p(m.top_p);
  out->set_top_k(m.top_k);
  out->set_min_p(m.min_p);
  out->set_repetition_penalty(m.repetition_penalty);
  out->set_presence_penalty(m.presence_penalty);
  out->set_frequency_penalty(m.frequency_penalty);
  out->set_seed(m.seed);
  out->set_logprobs(m.logprobs);
}

SamplingParams get(const pb::Sampling& m) {
  return {.temperature = m.temperature(),
          .top_p = m.top_p(),
          .top_k = m.top_k(),
          .min_p = m.min_p(),
          .repetition_penalty = m.repetition_penalty(),
          .presence_penalty = m.presence_penalty(),
          .frequency_penalty = m.frequency_penalty(),
          .seed = m.seed(),
          .logprobs = m.logprobs()};
}

void put(const StepPlan& m, pb::Plan* out) {
  out->set_step(m.step);
  for (const SequenceStep& s : m.sequences) {
    pb::Sequence* sequence = out->add_sequences();
    sequence->set_id(s.id);
    put(s.token_ids, sequence->mutable_token_ids());
    sequence->set_first_position(s.first_position);
    put(s.block_table, sequence->mutable_block_table());
    sequence->set_sample(s.sample);
    sequence->set_all_logits(s.all_logits);
    put(s.sampling, sequence->mutable_sampling());
    put(s.history, sequence->mutable_history());
    sequence->set_history_prompt_tokens(s.history_prompt_tokens);
  }
}

StepPlan get(const pb::Plan& m) {
  StepPlan out;
  out.step = m.step();
  out.sequences.reserve(static_cast<size_t>(m.sequences_size()));
  for (const pb::Sequence& s : m.sequences()) {
    SequenceStep& sequence = out.sequences.emplace_back();
    sequence.id = s.id();
    get(s.token_ids(), &sequence.token_ids);
    sequence.first_position = s.first_position();
    get(s.block_table(), &sequence.block_table);
    sequence.sample = s.sample();
    sequence.all_logits = s.all_logits();
    sequence.sampling = get(s.sampling());
    get(s.history(), &sequence.history);
    sequence.history_prompt_tokens = s.history_prompt_tokens();
  }
  return out;
}

void put(const StepResult& m, pb::StepResult* out) {
  out->set_step(m.step);
  for (const SampledToken& t : m.tokens) {
    pb::Sampled* token = out->add_tokens();
    token->set_id(t.id);
    token->set_token_id(t.token_id);
    token->set_logprob(t.logprob);
    token->set_rank(t.rank);
    for (const TokenLogprob& top : t.top) {
      token->add_top_ids(top.token_id);
      token->add_top_logprobs(top.logprob);
    }
  }
  put(m.logits, out->mutable_logits());
}

Result<StepResult> get(const pb::StepResult& m) {
  StepResult out;
  out.step = m.step();
  for (const pb::Sampled& t : m.tokens()) {
    if (t.top_ids_size() != t.top_logprobs_size()) {
      return Status::error(Code::kInternal, "step result: unequal lists of ids and logprobs");
    }
    SampledToken& token = out.tokens.emplace_back();
    token.id = t.id();
    token.token_id = t.token_id();
    token.logprob = t.logprob();
    token.rank = t.rank();
    for (int i = 0; i < t.top_ids_size(); ++i)
      token.top.push_back({t.top_ids(i), t.top_logprobs(i)});
  }
  get(m.logits(), &out.logits);
  return out;
}

void put(const WorkerFailure& failure, pb::Failure* out) {
  for (const Cause& c : failure.status.causes()) {
    pb::Cause* cause = out->add_causes();
    cause->set_code(static_cast<int>(c.code));
    cause->set_rank(c.rank);
    cause->set_where(c.where);
    cause->set_what(c.what);
    cause->set_os_error(c.os_error);
  }
  out->mutable_wait()->set_collective(failure.wait.collective);
  out->mutable_wait()->set_what(failure.wait.what);
  put(failure.wait.waits_for, out->mutable_wait()->mutable_waits_for());
}

WorkerFailure get(const pb::Failure& m) {
  std::vector<Cause> causes;
  for (const pb::Cause& c : m.causes()) {
    causes.push_back({static_cast<Code>(c.code()), c.rank(), c.where(), c.what(), c.os_error()});
  }
  if (causes.empty())
    causes = Status::error(Code::kInternal, "a rank failed without a reason").causes();
  WorkerFailure out{Status(std::move(causes)), {m.wait().collective(), m.wait().what(), {}}};
  get(m.wait().waits_for(), &out.wait.waits_for);
  return out;
}

template <typename... Handlers>
struct Overloaded : Handlers... {
  using Handlers::operator()...;
};
template <typename... Handlers>
Overloaded(Handlers...) -> Overloaded<Handlers...>;

Status not_a_message() {
  return Status::error(Code::kInternal, "control channel: bytes that are no message");
}

}  // namespace

const char* phase_name(WorkerPhase phase) {
  switch (phase) {
    case WorkerPhase::kSpawn:
      return "spawn";
    case WorkerPhase::kOpen:
      return "open";
    case WorkerPhase::kSelfTest:
      return "self-test";
    case WorkerPhase::kLoad:
      return "load";
    case WorkerPhase::kServe:
      return "serve";
  }
  return "unknown";
}

std::string encode(const FrontMessage& message) {
  pb::ToWorker out;
  std::visit(Overloaded{[&](const WorkerInit& m) { put(m, out.mutable_init()); },
                        [&](const StepPlan& m) { put(m, out.mutable_plan()); },
                        [&](const Shutdown&) { out.mutable_shutdown(); },
                        [&](const ExchangeAll& m) {
                          for (const std::string& part : m.parts)
                            out.mutable_exchange_all()->add_parts(part);
                        },
                        [&](const Explain&) { out.mutable_explain(); }},
             message);
  return out.SerializeAsString();
}

std::string encode(const WorkerMessage& message) {
  pb::ToFront out;
  std::visit(
      Overloaded{
          [&](const LoadProgress& m) {
            out.mutable_progress()->set_bytes_done(m.bytes_done);
            out.mutable_progress()->set_bytes_total(m.bytes_total);
          },
          [&](const WorkerReady& m) {
            pb::Ready* ready = out.mutable_ready();
            ready->set_transport(m.transport);
            ready->set_kernels(m.kernels);
            ready->set_weight_bytes(m.weight_bytes);
            ready->set_kv_bytes(m.kv_bytes);
          },
          [&](const StepResult& m) { put(m, out.mutable_result()); },
          [&](const WorkerFailure& m) { put(m, out.mutable_failure()); },
          [&](const PhaseBegun& m) { out.mutable_phase()->set_phase(static_cast<int>(m.phase)); },
          [&](const ExchangePart& m) { out.mutable_exchange_part()->set_part(m.part); },
          [&](const TransportVerified& m) {
            pb::Verified* verified = out.mutable_verified();
            verified->set_latency_us(m.latency_us);
            verified->set_bytes_per_s(m.bytes_per_s);
            verified->set_seconds(m.seconds);
          },
          [&](const StepProgress& m) { out.mutable_step_progress()->set_step(m.step); }},
      message);
  return out.SerializeAsString();
}

Result<FrontMessage> decode_front_message(std::string_view bytes) {
  pb::ToWorker in;
  if (!in.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return not_a_message();
  switch (in.message_case()) {
    case pb::ToWorker::kInit:
      return FrontMessage(get(in.init()));
    case pb::ToWorker::kPlan:
      return FrontMessage(get(in.plan()));
    case pb::ToWorker::kShutdown:
      return FrontMessage(Shutdown{});
    case pb::ToWorker::kExchangeAll: {
      ExchangeAll all;
      get(in.exchange_all().parts(), &all.parts);
      return FrontMessage(std::move(all));
    }
    case pb::ToWorker::kExplain:
      return FrontMessage(Explain{});
    case pb::ToWorker::MESSAGE_NOT_SET:
      break;
  }
  return not_a_message();
}

Result<WorkerMessage> decode_worker_message(std::string_view bytes) {
  pb::ToFront in;
  if (!in.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return not_a_message();
  switch (in.message_case()) {
    case pb::ToFront::kProgress:
      return WorkerMessage(LoadProgress{in.progress().bytes_done(), in.progress().bytes_total()});
    case pb::ToFront::kReady: {
      const pb::Ready& m = in.ready();
      return WorkerMessage(WorkerReady{m.transport(), m.kernels(), m.weight_bytes(), m.kv_bytes()});
    }
    case pb::ToFront::kResult: {
      SHOAL_ASSIGN_OR_RETURN(StepResult result, get(in.result()));
      return WorkerMessage(std::move(result));
    }
    case pb::ToFront::kFailure:
      return WorkerMessage(get(in.failure()));
    case pb::ToFront::kPhase:
      return WorkerMessage(PhaseBegun{static_cast<WorkerPhase>(in.phase().phase())});
    case pb::ToFront::kExchangePart:
      return WorkerMessage(ExchangePart{in.exchange_part().part()});
    case pb::ToFront::kVerified:
      return WorkerMessage(TransportVerified{in.verified().latency_us(),
                                             in.verified().bytes_per_s(), in.verified().seconds()});
    case pb::ToFront::kStepProgress:
      return WorkerMessage(StepProgress{in.step_progress().step()});
    case pb::ToFront::MESSAGE_NOT_SET:
      break;
  }
  return not_a_message();
}

}  // namespace shoal
