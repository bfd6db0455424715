#include "models/quantization.h"

#include <algorithm>
#include <array>

#include "models/config_reader.h"
#include "models/hub.h"
#include "runtime/base/cat.h"

namespace shoal {
namespace {

/// The text of a member; empty if it is none.
std::string string_member(const Json& object, const char* key) {
  if (!object.is_object()) return "";
  const auto member = object.find(key);
  return member == object.end() || !member->is_string() ? "" : member->get<std::string>();
}

bool is_set(const Json& object, const char* key) {
  const auto member = object.find(key);
  return member != object.end() && member->is_boolean() && member->get<bool>();
}

}  // namespace

std::string quantized_not_supported(std::string_view method) {
  return cat("a quantized checkpoint", method.empty() ? "" : cat(" (", in_quotes(method), ")"),
             " is not supported; take the one in bfloat16, float16 or float32 that it was made ",
             "from: ", download_line("OWNER/NAME", "DIR"));
}

std::string quantization_method(const Json& config) {
  for (const char* key : {"quant_method", "quant_algo"}) {
    if (std::string method = string_member(config, key); !method.empty()) return method;
  }
  // Before it wrote its name, bitsandbytes only wrote what it had done.
  return is_set(config, "load_in_4bit") || is_set(config, "load_in_8bit") ? "bitsandbytes" : "";
}

std::string quantization_method_beside(const std::string& model_dir) {
  const char* const name = "hf_quant_config.json";
  const Result<std::string> text = read_config_file(model_dir, name);
  if (!text.ok()) return "";
  const Result<Json> file = parse_config_object(*text, name);
  if (!file.ok()) return "";
  const auto quantization = file->find("quantization");
  return quantization == file->end() ? "" : string_member(*quantization, "quant_algo");
}

bool is_quantized_dtype(std::string_view dtype) {
  constexpr auto kWhole = std::to_array<std::string_view>({"I8", "U8", "I32", "U32", "F4"});
  return dtype.starts_with("F8_") || dtype.starts_with("F6_") ||
         std::find(kWhole.begin(), kWhole.end(), dtype) != kWhole.end();
}

}  // namespace shoal
