#include "models/quantization.h"

#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <string>
#include <unistd.h>

#include "models/safetensors.h"
#include "models/weights.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRemedy =
    " is not supported; take the one in bfloat16, float16 or float32 that it was made from: hf "
    "download OWNER/NAME --exclude \"*/*\" --local-dir DIR";

std::string method_of(const std::string& config) {
  const Result<Json> parsed = parse_json(config, "config");
  EXPECT_TRUE(parsed.ok()) << config;
  return quantization_method(*parsed);
}

TEST(QuantizationTest, AConfigNamesItsMethodOrSaysWhatWasDone) {
  EXPECT_EQ(method_of(R"({"quant_method": "gptq", "load_in_4bit": true})"), "gptq");
  EXPECT_EQ(method_of(R"({"quant_algo": "FP8"})"), "FP8");
  EXPECT_EQ(method_of(R"({"load_in_4bit": true, "load_in_8bit": false})"), "bitsandbytes");
  EXPECT_EQ(method_of(R"({"load_in_4bit": false, "load_in_8bit": true})"), "bitsandbytes");
  for (const char* none : {R"({"load_in_4bit": false})", R"({"load_in_4bit": 1})", "{}", "[]",
                           "true", R"({"quant_method": 3})"})
    EXPECT_EQ(method_of(none), "") << none;
}

class QuantizedWeightsTest : public testing::Test {
 protected:
  QuantizedWeightsTest()
      : dir_(testing::TempDir() + "/shoal-quantization-" + std::to_string(getpid())) {
    fs::create_directories(dir_);
  }
  ~QuantizedWeightsTest() override { fs::remove_all(dir_); }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(dir_ + "/" + name, std::ios::binary) << content;
  }
  /// The error of finding out the type of weights that are of this type in the file.
  Status refusal(const std::string& dtype, int bytes_of_four) const {
    const std::string header = "{\"model.layers.0.self_attn.q_proj.weight\":{\"dtype\":\"" + dtype +
                               "\",\"shape\":[2,2],\"data_offsets\":[0," +
                               std::to_string(bytes_of_four) + "]}}";
    std::string file(8, '\0');
    file[0] = static_cast<char>(header.size());
    write("model.safetensors", file + header + std::string(size_t(bytes_of_four), 'x'));
    const Result<Checkpoint> checkpoint = Checkpoint::open(dir_);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
    return resolve_dtype(*checkpoint, std::nullopt).status();
  }
  std::string of_type(const std::string& dtype) const {
    return "tensor \"model.layers.0.self_attn.q_proj.weight\" in " + dir_ +
           "/model.safetensors has dtype " + dtype;
  }

  const std::string dir_;
};

TEST_F(QuantizedWeightsTest, AreRefusedByTheirType) {
  for (const auto& [dtype, bytes] : std::vector<std::pair<std::string, int>>{
           {"F8_E4M3", 4}, {"F8_E5M2", 4}, {"I8", 4}, {"U8", 4}, {"I32", 16}, {"F4", 2}}) {
    const Status why = refusal(dtype, bytes);
    EXPECT_EQ(why.code(), Code::kUnimplemented) << dtype;
    EXPECT_EQ(why.message(), of_type(dtype) + "; a quantized checkpoint" + kRemedy);
  }
  for (const auto& [dtype, bytes] :
       std::vector<std::pair<std::string, int>>{{"F64", 32}, {"BOOL", 4}}) {
    EXPECT_EQ(refusal(dtype, bytes).message(),
              of_type(dtype) + "; supported are F32, F16 and BF16");
  }
}

TEST_F(QuantizedWeightsTest, AreNamedAsTheFileBesideThemNamesThem) {
  write("hf_quant_config.json",
        R"({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}})");
  EXPECT_EQ(refusal("F8_E4M3", 4).message(),
            of_type("F8_E4M3") + "; a quantized checkpoint (\"FP8\")" + kRemedy);
  for (const char* odd : {"", "[]", R"({"quantization": 3})", R"({"quantization": {}})",
                          R"({"quantization": {"quant_algo": null}})"}) {
    write("hf_quant_config.json", odd);
    EXPECT_EQ(refusal("F8_E4M3", 4).message(),
              of_type("F8_E4M3") + "; a quantized checkpoint" + kRemedy)
        << odd;
  }
}

}  // namespace
}  // namespace shoal
