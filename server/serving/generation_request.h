#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/chat_template.h"
#include "models/model_config.h"
#include "models/tokenizer.h"
#include "runtime/engine/request.h"
#include "runtime/engine/request_error.h"
#include "server/serving/tokenizer_archive.h"

namespace shoal {

/// A request as a client wrote it, over gRPC, the command line or JSON lines. An absent field is
/// not the same as zero.
struct GenerationRequest {
  std::optional<std::string> prompt;  ///< exactly one of prompt and prompt_ids
  std::optional<std::vector<int64_t>> prompt_ids;
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<int64_t> top_k;  ///< 0 and -1: off
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<double> presence_penalty;
  std::optional<double> frequency_penalty;
  std::optional<uint64_t> seed;
  std::optional<int64_t> max_tokens;  ///< absent: up to the model length
  std::vector<std::string> stop;
  std::vector<int64_t> stop_token_ids;
  bool ignore_eos = false;
  bool include_stop_in_output = false;
  std::optional<int64_t> logprobs;  ///< the K best tokens of each position; absent: none
  std::optional<int64_t> priority;  ///< lower goes first, if the server looks at it; absent: 0
};

/// The model and the limits that requests are checked against. Immutable after the start.
struct ServedModel {
  std::string name;      ///< MODEL's own (ModelFiles::name)
  std::string dir = {};  ///< MODEL
  ModelConfig config = {};
  GenerationConfig generation;
  Tokenizer tokenizer;
  int32_t max_model_len = 0;
  /// The seed for requests that give none. If it is absent, each such request gets a random seed.
  std::optional<uint64_t> default_seed;
  /// Makes prompts of conversations. Null: there is none, and `no_chat` says why and what to do.
  std::shared_ptr<const ChatTemplate> chat = nullptr;
  std::string no_chat = {};
  bool trust_message_tokens = false;  ///< text of clients may become special tokens
  /// What `tokenizer` was made from, for gateways. Null: there is none to give.
  std::shared_ptr<const TokenizerArchive> tokenizer_files = nullptr;
};

/// A checked request: what the engine gets, and how its output text is cut.
struct ResolvedRequest {
  EngineRequest engine;  ///< id still 0
  std::vector<std::string> stop;
  bool include_stop_in_output = false;
};

/// The most logprobs a request may ask for, the most stop strings, and the longest of them.
inline constexpr int kMaxLogprobs = 64;
inline constexpr size_t kMaxStopStrings = 16;
inline constexpr size_t kMaxStopBytes = 4096;

/// Tokenizes the prompt, fills in defaults (generation_config.json, otherwise temperature 1, top_p
/// 1) and checks everything. INVALID_ARGUMENT: a value out of bounds, a prompt longer than
/// max_model_len - 1 tokens, or an id not below vocab_size. The error holds the field, and its
/// message has the value and the bounds: "temperature must be in [0, 100], not -1". INTERNAL: the
/// kernel gave no random seed. CANCELLED: *given_up (which may be null) has become true while the
/// prompt was tokenized.
Result<ResolvedRequest, RequestError> resolve_request(GenerationRequest request,
                                                      const ServedModel& model,
                                                      const std::atomic<bool>* given_up = nullptr);

/// About how many bytes the answer may have at most.
size_t most_answer_bytes(const GenerationRequest& request, const ServedModel& model);
/// The longest answer that a front keeps until it is whole.
inline constexpr size_t kMaxAnswerBytes = size_t{64} << 20;

/// About how many bytes a request holds until it ends.
size_t kept_bytes(const ResolvedRequest& request);

}  // namespace shoal
