#include "models/model_config.h"

#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <string>
#include <sys/stat.h>

namespace shoal {
namespace {

Result<ModelConfig> parse(const std::string& fields) {
  return parse_model_config("{" + fields + "}", "some/config.json");
}

ModelConfig parsed(const std::string& fields) {
  const Result<ModelConfig> model = parse(fields);
  EXPECT_TRUE(model.ok()) << fields << "\n" << model.status().to_string();
  return model.ok() ? *model : ModelConfig();
}

TEST(ModelConfigTest, Llama31AsPublished) {
  const ModelConfig model = parsed(R"(
    "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1,
    "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 128256)");
  EXPECT_EQ(model.model_type, "llama");
  EXPECT_EQ(model.dtype, Dtype::kBf16);
  EXPECT_EQ(model.vocab_size, 128256);
  EXPECT_EQ(model.hidden_size, 4096);
  EXPECT_EQ(model.intermediate_size, 14336);
  EXPECT_EQ(model.num_hidden_layers, 32);
  EXPECT_EQ(model.num_attention_heads, 32);
  EXPECT_EQ(model.num_key_value_heads, 8);
  EXPECT_EQ(model.head_dim, 128);
  EXPECT_EQ(model.max_position_embeddings, 131072);
  EXPECT_EQ(model.rms_norm_eps, 1e-5f);
  EXPECT_FALSE(model.tie_word_embeddings || model.qkv_bias || model.o_bias || model.mlp_bias ||
               model.qk_norm);
  EXPECT_EQ(model.sliding_window, std::vector<int>(32, 0));
  EXPECT_EQ(model.eos_token_ids, (std::vector<int32_t>{128001, 128008, 128009}));
  EXPECT_EQ(model.bos_token_id, 128000);
  EXPECT_EQ(model.rope.type, RopeConfig::Type::kLlama3);
  EXPECT_EQ(model.rope.theta, 500000);
  EXPECT_EQ(model.rope.factor, 8);
  EXPECT_EQ(model.rope.original_max_position_embeddings, 8192);
}

TEST(ModelConfigTest, AbsentFieldsAreTheFamilysDefaults) {
  const ModelConfig llama = parsed(R"("model_type": "llama")");
  EXPECT_EQ(llama.vocab_size, 32000);
  EXPECT_EQ(llama.intermediate_size, 11008);
  EXPECT_EQ(llama.num_key_value_heads, 32);
  EXPECT_EQ(llama.head_dim, 128);
  EXPECT_EQ(llama.max_position_embeddings, 2048);
  EXPECT_EQ(llama.rms_norm_eps, 1e-6f);
  EXPECT_EQ(llama.rope.theta, 10000);
  EXPECT_EQ(llama.eos_token_ids, std::vector<int32_t>{2});
  EXPECT_EQ(llama.bos_token_id, 1);
  EXPECT_FALSE(llama.tie_word_embeddings);

  const ModelConfig mistral = parsed(R"("model_type": "mistral")");
  EXPECT_EQ(mistral.intermediate_size, 14336);
  EXPECT_EQ(mistral.num_key_value_heads, 8);
  EXPECT_EQ(mistral.max_position_embeddings, 131072);
  EXPECT_EQ(mistral.sliding_window, std::vector<int>(32, 4096));

  const ModelConfig qwen2 = parsed(R"("model_type": "qwen2")");
  EXPECT_EQ(qwen2.vocab_size, 151936);
  EXPECT_EQ(qwen2.intermediate_size, 22016);
  EXPECT_EQ(qwen2.num_key_value_heads, 32);
  EXPECT_EQ(qwen2.max_position_embeddings, 32768);
  EXPECT_TRUE(qwen2.eos_token_ids.empty());
  EXPECT_FALSE(qwen2.bos_token_id.has_value());

  EXPECT_EQ(
      parsed(
          R"("model_type": "qwen3", "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8)")
          .head_dim,
      128);
}

TEST(ModelConfigTest, NullIsNotAbsent) {
  EXPECT_EQ(parsed(R"("model_type": "mistral", "num_key_value_heads": null)").num_key_value_heads,
            32);
  EXPECT_EQ(parsed(R"("model_type": "mistral", "sliding_window": null)").sliding_window,
            std::vector<int>(32, 0));
  const ModelConfig silent =
      parsed(R"("model_type": "llama", "eos_token_id": null, "bos_token_id": null)");
  EXPECT_TRUE(silent.eos_token_ids.empty());
  EXPECT_FALSE(silent.bos_token_id.has_value());
  EXPECT_EQ(parsed(R"("model_type": "llama", "eos_token_id": [-1, 7])").eos_token_ids,
            std::vector<int32_t>{7});
}

TEST(ModelConfigTest, BiasesAndNormsOfEachFamily) {
  const auto biases = [](const std::string& fields) {
    const ModelConfig model = parsed(fields);
    return std::vector<bool>{model.qkv_bias, model.o_bias, model.mlp_bias, model.qk_norm};
  };
  using Flags = std::vector<bool>;
  EXPECT_EQ(biases(R"("model_type": "llama")"), (Flags{false, false, false, false}));
  EXPECT_EQ(biases(R"("model_type": "llama", "attention_bias": true)"),
            (Flags{true, true, false, false}));
  EXPECT_EQ(biases(R"("model_type": "llama", "mlp_bias": true)"),
            (Flags{false, false, true, false}));
  EXPECT_EQ(biases(R"("model_type": "mistral")"), (Flags{false, false, false, false}));
  EXPECT_EQ(biases(R"("model_type": "qwen2")"), (Flags{true, false, false, false}));
  EXPECT_EQ(biases(R"("model_type": "qwen2", "attention_bias": false)"),
            (Flags{true, false, false, false}));
  EXPECT_EQ(biases(R"("model_type": "qwen3")"), (Flags{false, false, false, true}));
  EXPECT_EQ(biases(R"("model_type": "qwen3", "attention_bias": true)"),
            (Flags{true, true, false, true}));
}

TEST(ModelConfigTest, WindowsPerLayer) {
  const std::string four = R"(, "num_hidden_layers": 4)";
  const auto windows = [&](const std::string& fields) {
    return parsed(fields + four).sliding_window;
  };
  using Windows = std::vector<int>;
  EXPECT_EQ(windows(R"("model_type": "llama", "sliding_window": 128)"), (Windows{0, 0, 0, 0}));
  EXPECT_EQ(windows(R"("model_type": "mistral", "sliding_window": 128)"),
            (Windows{128, 128, 128, 128}));
  EXPECT_EQ(windows(R"("model_type": "qwen2", "sliding_window": 128, "max_window_layers": 0)"),
            (Windows{0, 0, 0, 0}));
  EXPECT_EQ(windows(R"("model_type": "qwen2", "use_sliding_window": true, "sliding_window": 128)"),
            (Windows{0, 0, 0, 0}));  // max_window_layers is 28
  EXPECT_EQ(windows(R"("model_type": "qwen2", "use_sliding_window": true, "sliding_window": 128,
                       "max_window_layers": 3)"),
            (Windows{0, 0, 0, 128}));
  EXPECT_EQ(windows(R"("model_type": "qwen3", "use_sliding_window": true, "max_window_layers": 0,
                       "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"])"),
            (Windows{4096, 0, 4096, 0}));
}

TEST(ModelConfigTest, NewSpelling) {
  const ModelConfig model = parsed(R"("model_type": "qwen3", "dtype": "float16", "rope_parameters":
      {"rope_theta": 1000000, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768})");
  EXPECT_EQ(model.dtype, Dtype::kF16);
  EXPECT_EQ(model.rope.theta, 1e6);
  EXPECT_EQ(model.rope.type, RopeConfig::Type::kYarn);
  EXPECT_EQ(model.rope.factor, 4);
}

struct Bad {
  std::string fields;
  Code code;
  std::string says;
};

void expect_refused(const std::vector<Bad>& cases) {
  for (const Bad& test : cases) {
    SCOPED_TRACE(test.fields);
    const Result<ModelConfig> model = parse(test.fields);
    ASSERT_FALSE(model.ok());
    EXPECT_EQ(model.status().code(), test.code) << model.status().to_string();
    EXPECT_NE(model.status().message().find(test.says), std::string_view::npos)
        << model.status().to_string();
    EXPECT_TRUE(model.status().message().starts_with("some/config.json: "))
        << model.status().to_string();
    EXPECT_EQ(model.status().message().find("not supported") != std::string_view::npos,
              test.code == Code::kUnimplemented)
        << model.status().to_string();
  }
}

TEST(ModelConfigTest, AGitLfsPointerIsNamed) {
  const auto model =
      parse_model_config("version https://git-lfs.github.com/spec/v1\n", "config.json");
  ASSERT_FALSE(model.ok());
  const std::string said = model.status().to_string();
  EXPECT_NE(said.find("Git LFS pointer"), std::string::npos) << said;
  EXPECT_NE(said.find("hf download OWNER/NAME --exclude \"*/*\" --local-dir DIR"),
            std::string::npos)
      << said;
}

TEST(ModelConfigTest, UnsupportedIsRefusedByName) {
  expect_refused({
      {R"("model_type": "gemma2")", Code::kUnimplemented,
       "model type \"gemma2\" is not supported; supported model types are llama"},
      {R"("model_type": "llama", "architectures": ["LlamaForSequenceClassification"])",
       Code::kUnimplemented, "\"LlamaForSequenceClassification\""},
      {R"("model_type": "llama", "hidden_act": "gelu")", Code::kUnimplemented,
       "\"hidden_act\" \"gelu\""},
      {R"("model_type": "llama", "quantization_config": {"quant_method": "awq"})",
       Code::kUnimplemented,
       "\"quantization_config\": a quantized checkpoint (\"awq\") is not supported; take the one in "
       "bfloat16, float16 or float32 that it was made from: hf download OWNER/NAME --exclude "
       "\"*/*\" --local-dir DIR"},
      {R"("model_type": "llama", "quantization_config": {"load_in_4bit": true})",
       Code::kUnimplemented,
       "\"quantization_config\": a quantized checkpoint (\"bitsandbytes\") is not supported; take"},
      {R"("model_type": "qwen2", "num_experts": 60)", Code::kUnimplemented, "num_experts"},
      {R"("model_type": "mistral", "attention_bias": true)", Code::kUnimplemented,
       "attention_bias"},
      {R"("model_type": "qwen3", "mlp_bias": true)", Code::kUnimplemented, "mlp_bias"},
      {R"("model_type": "llama", "torch_dtype": "float8_e4m3fn")", Code::kUnimplemented,
       "float8_e4m3fn"},
      {R"("model_type": "llama", "rope_scaling": {"rope_type": "dynamic", "factor": 2})",
       Code::kUnimplemented, "dynamic"},
      {R"("model_type": "qwen3", "num_hidden_layers": 1, "layer_types": ["linear_attention"])",
       Code::kUnimplemented, "linear_attention"},
  });
}

TEST(ModelConfigTest, ImpossibleValuesNameFieldValueAndBounds) {
  const std::string llama = R"("model_type": "llama", )";
  expect_refused({
      {"", Code::kInvalidArgument, "\"model_type\" is missing"},
      {R"("model_type": 5)", Code::kInvalidArgument, "\"model_type\" must be a string, not 5"},
      {llama + R"("architectures": "LlamaForCausalLM")", Code::kInvalidArgument, "architectures"},
      {llama + R"("vocab_size": 0)", Code::kInvalidArgument,
       "\"vocab_size\" is 0; it must be between 1 and 16777216"},
      {llama + R"("vocab_size": 16777217)", Code::kInvalidArgument, "\"vocab_size\" is 16777217"},
      {llama + R"("hidden_size": -1)", Code::kInvalidArgument, "\"hidden_size\" is -1"},
      {llama + R"("hidden_size": 4294967297)", Code::kInvalidArgument,
       "\"hidden_size\" is 4294967297"},
      {llama + R"("hidden_size": 18446744073709551615)", Code::kInvalidArgument, "hidden_size"},
      {llama + R"("hidden_size": 1e300)", Code::kInvalidArgument, "hidden_size"},
      {llama + R"("hidden_size": 4096.5)", Code::kInvalidArgument, "hidden_size"},
      {llama + R"("hidden_size": "4096")", Code::kInvalidArgument, "hidden_size"},
      {llama + R"("hidden_size": [4096])", Code::kInvalidArgument, "hidden_size"},
      {llama + R"("num_hidden_layers": 10001)", Code::kInvalidArgument,
       "\"num_hidden_layers\" is 10001"},
      {llama + R"("num_attention_heads": 0)", Code::kInvalidArgument,
       "\"num_attention_heads\" is 0"},
      {llama + R"("num_attention_heads": 9, "hidden_size": 576, "num_key_value_heads": 2)",
       Code::kInvalidArgument,
       "\"num_attention_heads\" is 9; it must be a multiple of \"num_key_value_heads\", 2"},
      {llama + R"("num_attention_heads": 3, "hidden_size": 64)", Code::kInvalidArgument,
       "\"hidden_size\" is 64"},
      {llama + R"("head_dim": 63)", Code::kInvalidArgument,
       "the head dimension is 63; it must be even"},
      {llama + R"("head_dim": 0)", Code::kInvalidArgument, "\"head_dim\" is 0"},
      {llama + R"("head_dim": 1000000)", Code::kInvalidArgument, "\"head_dim\" is 1000000"},
      {llama + R"("num_attention_heads": 32, "hidden_size": 32)", Code::kInvalidArgument,
       "the head dimension is 1"},
      {llama + R"("num_attention_heads": 65536, "head_dim": 128)", Code::kInvalidArgument,
       "x head_dim is 8388608"},
      {llama + R"("max_position_embeddings": 0)", Code::kInvalidArgument,
       "max_position_embeddings"},
      {llama + R"("max_position_embeddings": 1000000000)", Code::kInvalidArgument,
       "between 1 and 67108864"},
      {llama + R"("rms_norm_eps": 0)", Code::kInvalidArgument, "rms_norm_eps"},
      {llama + R"("rms_norm_eps": 1e-60)", Code::kInvalidArgument, "rms_norm_eps"},
      {llama + R"("tie_word_embeddings": 1)", Code::kInvalidArgument, "tie_word_embeddings"},
      {llama + R"("eos_token_id": -2)", Code::kInvalidArgument, "eos_token_id"},
      {llama + R"("eos_token_id": [1, null])", Code::kInvalidArgument, "eos_token_id"},
      {llama + R"("eos_token_id": [1, "2"])", Code::kInvalidArgument, "eos_token_id"},
      {llama + R"("eos_token_id": 2147483648)", Code::kInvalidArgument, "eos_token_id"},
      {llama + R"("layer_types": ["full_attention"])", Code::kInvalidArgument,
       "one type for each layer, of which there are 32"},
      {llama + R"("num_hidden_layers": 1, "layer_types": ["sliding_attention"])",
       Code::kInvalidArgument, "no \"sliding_window\" is in force"},
      {R"("model_type": "mistral", "sliding_window": 0)", Code::kInvalidArgument,
       "\"sliding_window\" is 0"},
      {R"("model_type": "mistral", "sliding_window": -4096)", Code::kInvalidArgument,
       "\"sliding_window\" is -4096"},
  });
}

TEST(ModelConfigTest, HostileText) {
  const std::string deep(100'000, '[');
  for (const std::string& text :
       {std::string(), std::string("null"), std::string("[]"), std::string("{"), deep,
        std::string("{\"model_type\": \"llama\\ud800\"}"), std::string("\xff\xfe{}"),
        std::string("{\"model_type\": NaN}"), std::string(1000, '\0')}) {
    const Result<ModelConfig> model = parse_model_config(text, "some/config.json");
    ASSERT_FALSE(model.ok());
    EXPECT_EQ(model.status().code(), Code::kInvalidArgument) << model.status().to_string();
  }
  // Text from the file is escaped and shortened before it is printed to a terminal.
  const Result<ModelConfig> model =
      parse_model_config("{\"model_type\": \"\\u001b[31m" + std::string(100'000, 'x') + "\"}", "c");
  ASSERT_FALSE(model.ok());
  EXPECT_LT(model.status().message().size(), 400u);
  EXPECT_EQ(model.status().message().find('\x1b'), std::string_view::npos);
}

class ModelConfigFileTest : public testing::Test {
 protected:
  ModelConfigFileTest() : dir_(testing::TempDir() + "/shoal-config-" + std::to_string(getpid())) {
    std::filesystem::create_directories(dir_);
  }
  ~ModelConfigFileTest() override { std::filesystem::remove_all(dir_); }
  const std::string dir_;
};

TEST_F(ModelConfigFileTest, Loads) {
  std::ofstream(dir_ + "/config.json") << R"({"model_type": "llama", "vocab_size": 77})";
  const Result<ModelConfig> model = load_model_config(dir_);
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  EXPECT_EQ(model->vocab_size, 77);
}

TEST_F(ModelConfigFileTest, MissingFileSaysWhatToGive) {
  const Result<ModelConfig> model = load_model_config(dir_);
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), Code::kNotFound);
  EXPECT_NE(model.status().to_string().find("directory of a Hugging Face checkpoint"),
            std::string::npos);
}

TEST_F(ModelConfigFileTest, FifoDoesNotBlock) {
  ASSERT_EQ(mkfifo((dir_ + "/config.json").c_str(), 0600), 0);
  const Result<ModelConfig> model = load_model_config(dir_);
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), Code::kInvalidArgument);
}

TEST_F(ModelConfigFileTest, LargeFileIsNotRead) {
  std::ofstream(dir_ + "/config.json").close();
  std::filesystem::resize_file(dir_ + "/config.json", uint64_t{1} << 40);
  const Result<ModelConfig> model = load_model_config(dir_);
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), Code::kResourceExhausted);
}

}  // namespace
}  // namespace shoal
