#include "models/model_config.h"

#include <algorithm>
#include <array>

#include "models/config_reader.h"
#include "models/quantization.h"
#include "models/rope.h"
#include "models/rope_config.h"
#include "runtime/base/counted.h"

namespace shoal {
namespace {

/// The defaults of transformers' configuration class of a model type, for fields that config.json
/// leaves out (models/{llama,mistral,qwen2,qwen3}/configuration_*.py).
struct Family {
  std::string_view model_type;
  std::string_view architecture;
  int vocab_size;
  int intermediate_size;
  int num_key_value_heads;  ///< 0: as many as attention heads
  int head_dim;             ///< 0: hidden_size / num_attention_heads
  int max_position_embeddings;
  std::optional<int32_t> bos_token_id;
  std::optional<int32_t> eos_token_id;
  enum class Window { kNone, kAllLayers, kUpperLayers } window;
};
constexpr auto kFamilies = std::to_array<Family>({
    {"llama", "LlamaForCausalLM", 32000, 11008, 0, 0, 2048, 1, 2, Family::Window::kNone},
    {"mistral", "MistralForCausalLM", 32000, 14336, 8, 0, 131072, 1, 2, Family::Window::kAllLayers},
    {"qwen2",
     "Qwen2ForCausalLM",
     151936,
     22016,
     32,
     0,
     32768,
     {},
     {},
     Family::Window::kUpperLayers},
    {"qwen3",
     "Qwen3ForCausalLM",
     151936,
     22016,
     32,
     128,
     32768,
     {},
     {},
     Family::Window::kUpperLayers},
});
constexpr std::string_view kSupported = "supported model types are llama, mistral, qwen2 and qwen3";

// These are far above every real model, and low enough that no product of them overflows
// (model_config.h).
constexpr int kMaxVocab = 16 << 20;
constexpr int kMaxHidden = 1 << 20;
constexpr int kMaxIntermediate = 4 << 20;
constexpr int kMaxLayers = 10'000;
constexpr int kMaxHeads = 1 << 16;
constexpr int kMaxHeadDim = 1024;
constexpr int64_t kMaxInt = std::numeric_limits<int>::max();

const Family* find_family(ConfigReader& config) {
  const std::optional<std::string> type = config.string("model_type");
  if (!type) {
    config.invalid(cat("\"model_type\" is missing; ", kSupported));
    return nullptr;
  }
  const auto family = std::find_if(kFamilies.begin(), kFamilies.end(),
                                   [&](auto& f) { return f.model_type == *type; });
  if (family == kFamilies.end()) {
    config.unimplemented(cat("model type ", in_quotes(*type), " is not supported; ", kSupported));
    return nullptr;
  }
  return &*family;
}

void check_architecture(ConfigReader& config, const Family& family) {
  if (!config.has("architectures")) return;
  const Json& names = config.object()["architectures"];
  const auto is_text = [](const Json& name) { return name.is_string(); };
  if (!names.is_array() || !std::all_of(names.begin(), names.end(), is_text)) {
    config.invalid("\"architectures\" must be a list of names");
    return;
  }
  for (const Json& name : names) {
    if (name.get_ref<const std::string&>() != family.architecture) {
      config.unimplemented(cat("architecture ", in_quotes(name.get<std::string>()),
                               " is not supported; for this type it must be ",
                               family.architecture));
    }
  }
}

/// Refuses features that well-formed files of these model types may ask for, because ignoring them
/// would change the result.
void check_features(ConfigReader& config, const Family& family) {
  for (const char* key : {"quantization_config", "compression_config"}) {
    if (!config.has(key)) continue;
    config.unimplemented(
        cat("\"", key, "\": ", quantized_not_supported(quantization_method(config.object()[key]))));
  }
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    if (config.integer(key, 0, kMaxInt, 0) > 0)
      config.unimplemented(cat("\"", key, "\": mixtures of experts are not supported"));
  }
  const std::string act = config.string("hidden_act").value_or("silu");
  if (act != "silu" && act != "swish")
    config.unimplemented(
        cat("\"hidden_act\" ", in_quotes(act), " is not supported; it must be silu"));
  if (config.boolean("attention_bias").value_or(false) && family.model_type == "mistral") {
    config.unimplemented("\"attention_bias\" is not supported in a mistral model");
  }
  if (config.boolean("mlp_bias").value_or(false) && family.model_type != "llama") {
    config.unimplemented(cat("\"mlp_bias\" is not supported in a ", family.model_type, " model"));
  }
}

void read_sizes(ConfigReader& config, const Family& family, ModelConfig& model) {
  model.vocab_size = config.integer("vocab_size", 1, kMaxVocab, family.vocab_size);
  model.hidden_size = config.integer("hidden_size", 1, kMaxHidden, 4096);
  model.intermediate_size =
      config.integer("intermediate_size", 1, kMaxIntermediate, family.intermediate_size);
  model.num_hidden_layers = config.integer("num_hidden_layers", 1, kMaxLayers, 32);
  model.num_attention_heads = config.integer("num_attention_heads", 1, kMaxHeads, 32);
  model.max_position_embeddings =
      config.integer("max_position_embeddings", 1, kMaxPositions, family.max_position_embeddings);
  model.rms_norm_eps = static_cast<float>(config.number("rms_norm_eps", 1e-30, 1).value_or(1e-6));

  const int heads = model.num_attention_heads;
  // In every family, null means one KV head per query head. If the key is absent, the family's
  // default applies.
  const bool by_family = !config.lists("num_key_value_heads") && family.num_key_value_heads != 0;
  model.num_key_value_heads = config.integer("num_key_value_heads", 1, kMaxHeads,
                                             by_family ? family.num_key_value_heads : heads);
  if (config.ok() && heads % model.num_key_value_heads != 0) {
    config.invalid(cat("\"num_attention_heads\" is ", heads,
                       "; it must be a multiple of \"num_key_value_heads\", ",
                       model.num_key_value_heads));
  }

  const std::optional<int> head_dim = config.integer("head_dim", 2, kMaxHeadDim);
  model.head_dim =
      head_dim.value_or(family.head_dim != 0 ? family.head_dim : model.hidden_size / heads);
  if (!config.ok()) return;
  if (!head_dim && family.head_dim == 0 && model.hidden_size % heads != 0) {
    config.invalid(cat("\"hidden_size\" is ", model.hidden_size,
                       "; without \"head_dim\" it must be a multiple of ",
                       "\"num_attention_heads\", ", heads));
  } else if (model.head_dim % 2 != 0 || model.head_dim < 2 || model.head_dim > kMaxHeadDim) {
    config.invalid(cat("the head dimension is ", model.head_dim,
                       "; it must be even and between 2 and ", kMaxHeadDim));
  } else if (int64_t{heads} * model.head_dim > kMaxHidden) {
    config.invalid(cat("\"num_attention_heads\" x head_dim is ", int64_t{heads} * model.head_dim,
                       "; it must be at most ", kMaxHidden));
  }
}

void read_biases_and_norms(ConfigReader& config, const Family& family, ModelConfig& model) {
  const bool attention_bias = config.boolean("attention_bias").value_or(false);
  // Qwen2 always has q, k and v biases and never an o bias, whatever the file says.
  model.qkv_bias = family.model_type == "qwen2" || attention_bias;
  model.o_bias = family.model_type != "qwen2" && attention_bias;
  model.mlp_bias = config.boolean("mlp_bias").value_or(false);
  model.qk_norm = family.model_type == "qwen3";
  model.tie_word_embeddings = config.boolean("tie_word_embeddings").value_or(false);
}

/// The window of the model's sliding layers; 0: the model has none.
int read_window(ConfigReader& config, const Family& family) {
  if (family.window == Family::Window::kNone) return 0;
  if (family.window == Family::Window::kUpperLayers &&
      !config.boolean("use_sliding_window").value_or(false))
    return 0;
  if (config.lists("sliding_window") && !config.has("sliding_window")) return 0;
  return config.integer("sliding_window", 1, kMaxInt, 4096);
}

void read_layer_types(ConfigReader& config, int window, ModelConfig& model) {
  const Json& types = config.object()["layer_types"];
  if (!types.is_array() || types.size() != model.sliding_window.size()) {
    config.invalid(cat("\"layer_types\" must list one type for each layer, of which there ",
                       model.sliding_window.size() == 1 ? "is " : "are ",
                       model.sliding_window.size()));
    return;
  }
  for (size_t layer = 0; layer < types.size(); ++layer) {
    const std::string type = types[layer].is_string() ? types[layer].get<std::string>() : "";
    if (type == "sliding_attention" && window == 0) {
      config.invalid(
          cat("layer ", layer, " is \"sliding_attention\", but no \"sliding_window\" is in force"));
    } else if (type != "sliding_attention" && type != "full_attention") {
      config.unimplemented(
          cat("layer type ", in_quotes(type),
              " is not supported; supported are full_attention and sliding_attention"));
    }
    model.sliding_window[layer] = type == "sliding_attention" ? window : 0;
  }
}

void read_windows(ConfigReader& config, const Family& family, ModelConfig& model) {
  const int window = read_window(config, family);
  model.sliding_window.assign(static_cast<size_t>(model.num_hidden_layers), 0);
  if (config.has("layer_types")) {
    read_layer_types(config, window, model);
    return;
  }
  const bool upper = family.window == Family::Window::kUpperLayers;
  const int first = upper ? config.integer("max_window_layers", 0, kMaxInt, 28) : 0;
  for (int layer = first; layer < model.num_hidden_layers; ++layer) {
    model.sliding_window[static_cast<size_t>(layer)] = window;
  }
}

void read_dtype(ConfigReader& config, ModelConfig& model) {
  const std::optional<std::string> name =
      config.string(config.has("dtype") ? "dtype" : "torch_dtype");
  if (!name) return;
  if (const std::optional<Dtype> dtype = parse_dtype(*name)) {
    model.dtype = *dtype;
  } else {
    config.unimplemented(cat("dtype ", in_quotes(*name),
                             " is not supported; supported are float32, float16 and bfloat16"));
  }
}

void read_tokens(ConfigReader& config, const Family& family, ModelConfig& model) {
  model.eos_token_ids = config.token_ids("eos_token_id");
  if (!config.lists("eos_token_id") && family.eos_token_id)
    model.eos_token_ids = {*family.eos_token_id};
  // Some files list several; a prompt starts with the first.
  const std::vector<int32_t> bos = config.token_ids("bos_token_id");
  if (!bos.empty()) model.bos_token_id = bos.front();
  if (!config.lists("bos_token_id")) model.bos_token_id = family.bos_token_id;
}

}  // namespace

Result<ModelConfig> parse_model_config(std::string_view text, std::string_view what) {
  SHOAL_ASSIGN_OR_RETURN(const Json object, parse_config_object(text, what));
  ConfigReader config(object, what);
  const Family* family = find_family(config);
  if (family == nullptr) return config.status();
  check_architecture(config, *family);
  check_features(config, *family);

  ModelConfig model;
  model.model_type = family->model_type;
  model.architecture = family->architecture;
  read_sizes(config, *family, model);
  if (!config.ok()) return config.status();
  read_biases_and_norms(config, *family, model);
  read_windows(config, *family, model);
  read_dtype(config, model);
  read_tokens(config, *family, model);
  if (!config.ok()) return config.status();
  SHOAL_ASSIGN_OR_RETURN(model.rope,
                         parse_rope_config(object, model.max_position_embeddings, what));
  return model;
}

Result<std::string> read_model_config(const std::string& model_dir) {
  Result<std::string> text = read_config_file(model_dir, "config.json");
  if (!text.ok() && text.status().code() == Code::kNotFound) {
    return text.status().while_doing(
        cat("no model in ", model_dir,
            "; give the directory of a Hugging Face checkpoint, with its config.json"));
  }
  return text;
}

Result<ModelConfig> load_model_config(const std::string& model_dir) {
  SHOAL_ASSIGN_OR_RETURN(const std::string text, read_model_config(model_dir));
  return parse_model_config(text, cat(model_dir, "/config.json"));
}

}  // namespace shoal
