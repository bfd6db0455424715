#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/dtype.h"
#include "runtime/base/status.h"

namespace shoal {

/// Rotary position embedding. transformers' modeling_rope_utils defines the four types.
struct RopeConfig {
  enum class Type { kDefault, kLinear, kLlama3, kYarn };
  Type type = Type::kDefault;
  double theta = 10000;
  double factor = 1;
  // llama3
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int original_max_position_embeddings = 0;  ///< llama3 and yarn
  // yarn
  double beta_fast = 32;
  double beta_slow = 1;
  bool truncate = true;
  std::optional<double> attention_factor;
  std::optional<double> mscale;
  std::optional<double> mscale_all_dim;
};

/// A decoder-only model as config.json describes it, in the old spelling or the new. The parser
/// bounds every number, so that each product of them (the bytes of a tensor, or of the KV cache for
/// max_position_embeddings) stays below 2^63.
struct ModelConfig {
  std::string model_type;    ///< llama, mistral, qwen2, qwen3
  std::string architecture;  ///< LlamaForCausalLM, ...
  /// torch_dtype / dtype of the file. The checkpoint decides which type the tensors really have.
  Dtype dtype = Dtype::kF32;
  int vocab_size = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_hidden_layers = 0;
  int num_attention_heads = 0;
  int num_key_value_heads = 0;
  int head_dim = 0;
  int max_position_embeddings = 0;
  float rms_norm_eps = 1e-6f;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;
  /// Per layer: the number of latest positions that a query sees, including its own. 0: all of them
  /// (full attention).
  std::vector<int> sliding_window;
  RopeConfig rope;
  std::vector<int32_t> eos_token_ids;
  std::optional<int32_t> bos_token_id;
};

/// generation_config.json: the sampling parameters for requests that do not set their own. Absent
/// fields stay unset.
struct GenerationConfig {
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<int32_t> top_k;  ///< 0: off (files write 0 or -1)
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::vector<int32_t> eos_token_ids;  ///< if not empty, replaces config.json's
};

/// Parse text (this function is fuzzed) or MODEL/config.json. NOT_FOUND: no such directory or file;
/// UNIMPLEMENTED: well-formed but not supported, and the message names the feature;
/// INVALID_ARGUMENT: malformed or impossible. `what` names the file in messages.
Result<ModelConfig> parse_model_config(std::string_view text, std::string_view what);
Result<ModelConfig> load_model_config(const std::string& model_dir);
/// The text of MODEL/config.json, for somebody who parses it more than once.
Result<std::string> read_model_config(const std::string& model_dir);

}  // namespace shoal
