#pragma once
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "runtime/base/device_kind.h"
#include "runtime/base/dtype.h"
#include "runtime/base/status.h"

// What the front and a worker say to each other: plain values. wire.cc alone knows how they look as
// bytes.

namespace shoal {

/// How one token is chosen. Defaults: plain sampling from the model's distribution.
struct SamplingParams {
  float temperature = 1;  ///< 0: greedy
  float top_p = 1;
  int32_t top_k = 0;  ///< 0: off
  float min_p = 0;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  uint64_t seed = 0;
  int32_t logprobs = -1;  ///< -1: none; K >= 0: the token's own and the K best
  bool has_penalty() const {
    return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0;
  }
  friend bool operator==(const SamplingParams&, const SamplingParams&) = default;
};

/// One sequence's part of a step. Self-contained: a worker that has just started can continue any
/// sequence from it, once its earlier tokens have been prefilled again.
struct SequenceStep {
  uint64_t id = 0;
  std::vector<int32_t> token_ids;  ///< to process in this step
  int32_t first_position = 0;      ///< absolute position of token_ids[0]
  std::vector<int32_t>
      block_table;          ///< KV blocks of positions [0, first_position + token_ids.size())
  bool sample = false;      ///< choose a token after the last one
  bool all_logits = false;  ///< return the logits of every token (shoal logits)
  SamplingParams sampling;
  /// For the penalties, where any is set: every token so far, and how many of them are the
  /// prompt's.
  std::vector<int32_t> history;
  int32_t history_prompt_tokens = 0;
};

struct StepPlan {
  uint64_t step = 0;
  std::vector<SequenceStep> sequences;
};

struct TokenLogprob {
  int32_t token_id = 0;
  float logprob = 0;
};

/// The token chosen for a sequence with sample set, from rank 0.
struct SampledToken {
  uint64_t id = 0;
  int32_t token_id = 0;
  float logprob = 0;              ///< of the raw logits; 0 unless asked for
  int32_t rank = 0;               ///< 1: the most likely; 0 unless asked for
  std::vector<TokenLogprob> top;  ///< the K best, best first
};

struct StepResult {
  uint64_t step = 0;
  std::vector<SampledToken> tokens;  ///< in the plan's order
  std::vector<float> logits;  ///< of sequences with all_logits: [tokens, vocab] one after the other
};

/// What a rank does from its birth on, in this order.
enum class WorkerPhase : int32_t { kSpawn, kOpen, kSelfTest, kLoad, kServe };
const char* phase_name(WorkerPhase phase);

/// Front to worker, first message: all that a rank needs to load its part.
struct WorkerInit {
  int32_t rank = 0;
  int32_t world_size = 1;
  std::string model_dir;
  Dtype dtype = Dtype::kBf16;  ///< to which weights are widened where it is wider
  int32_t max_model_len = 0;
  int32_t max_num_batched_tokens = 0;
  int32_t max_num_seqs = 0;
  int32_t kv_blocks = 0;
  int32_t threads = 1;
  std::vector<int32_t> cpus;  ///< to bind the threads to; empty: not bound
  std::string kernels;
  std::string transport;
  std::vector<int32_t> tcp_ports;  ///< where each rank listens on loopback (rank order)
  int64_t shm_bytes = 0;
  int64_t collective_timeout_ms = 0;
  uint64_t group_key =
      0;  ///< names the group on tcp, so that a stranger's connection is told apart
  int32_t log_level = 1;
  bool log_json = false;
  int32_t start_number = 0;     ///< 0 at first, one more each time the front starts its ranks anew
  bool transport_only = false;  ///< prove the transport, load nothing (shoal doctor)
  uint64_t self_test_seed = 0;  ///< the same on every rank, new at every start
  int64_t step_heartbeat_ms =
      0;  ///< a step that takes longer says after a layer that it moves; 0: never
  DeviceKind device = DeviceKind::kCpu;
  int32_t ranks_per_gpu = 1;  ///< rank r uses device r / ranks_per_gpu
  std::string cuda_module;    ///< as --cuda-module; empty: beside the program
  std::string nccl_library;
  bool reproducible = true;
};

struct LoadProgress {
  int64_t bytes_done = 0;
  int64_t bytes_total = 0;
};

/// The rank has loaded, its communicator works, its KV cache is there.
struct WorkerReady {
  std::string transport;
  std::string kernels;
  int64_t weight_bytes = 0;
  int64_t kv_bytes = 0;
};

/// A worker has entered a phase, or is still moving in it. kSpawn is never sent: it ends with the
/// first of these.
struct PhaseBegun {
  WorkerPhase phase = WorkerPhase::kOpen;
};

/// What a rank brings to the exchange before it has a transport, and what all of them brought, in
/// rank order.
struct ExchangePart {
  std::string part;
};
struct ExchangeAll {
  std::vector<std::string> parts;
};

/// The transport has passed its self-test on this rank.
struct TransportVerified {
  double latency_us = 0;   ///< all_reduce of 8 KiB
  double bytes_per_s = 0;  ///< all_reduce of 1 MiB
  double seconds = 0;
};

/// A long step has got a layer further.
struct StepProgress {
  uint64_t step = 0;
};

/// Where a rank stood in its collectives; collective 0: in none.
struct RankWait {
  uint64_t collective = 0;
  std::string what;
  std::vector<int32_t> waits_for;
};

/// The rank gives up: its own reason. It exits right after.
struct WorkerFailure {
  Status status;
  RankWait wait;
};

struct Shutdown {};

/// The front has lost patience with the group: who still can says where it stands, as a
/// WorkerFailure.
struct Explain {};

using FrontMessage = std::variant<WorkerInit, StepPlan, Shutdown, ExchangeAll, Explain>;
using WorkerMessage = std::variant<LoadProgress, WorkerReady, StepResult, WorkerFailure, PhaseBegun,
                                   ExchangePart, TransportVerified, StepProgress>;

}  // namespace shoal
