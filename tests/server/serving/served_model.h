#pragma once
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "server/serving/generation_request.h"

namespace shoal {

/// A model to check requests against and to write text with: the configuration and byte-level
/// tokenizer of an oracle checkpoint. It has 892 ids, of which 0 to 2 are <|begin|>, <|end|> and
/// <|role|>; the post-processor puts 0 in front.
inline const ServedModel& test_model() {
  static const ServedModel& model = *new ServedModel([] {
    const std::string folder = SHOAL_TEST_DATA "/oracle/llama3-gqa-tied-sharded";
    Result<Tokenizer> tokenizer = Tokenizer::load(folder);
    Result<ModelConfig> config = load_model_config(folder);
    if (!tokenizer.ok() || !config.ok()) {
      ADD_FAILURE() << tokenizer.status().to_string() << "\n" << config.status().to_string();
      std::abort();
    }
    ServedModel made{.name = "oracle",
                     .config = std::move(config).value(),
                     .generation = {},
                     .tokenizer = std::move(tokenizer).value(),
                     .max_model_len = 200,
                     .default_seed = 77};
    return made;
  }());
  return model;
}

/// The ids of the text, without those that the post-processor adds.
inline std::vector<int32_t> ids_of_text(std::string_view text) {
  return test_model().tokenizer.encode(text, /*add_special=*/false).value();
}

/// One id per byte, so that the text is cut as finely as possible, even inside characters.
inline std::vector<int32_t> byte_ids_of_text(std::string_view text) {
  static const std::vector<int32_t> id_of_byte = [] {
    // GPT-2's printable replacements of bytes: printable bytes stay as they are, and the others are
    // counted up from U+0100.
    std::vector<int32_t> ids(256, -1);
    int next = 256;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable =
          (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
      const int code_point = printable ? byte : next++;
      std::string piece;
      if (code_point < 0x80) {
        piece += static_cast<char>(code_point);
      } else {
        piece += static_cast<char>(0xc0 | code_point >> 6);
        piece += static_cast<char>(0x80 | (code_point & 0x3f));
      }
      const Tokenizer& tokenizer = test_model().tokenizer;
      for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
        if (tokenizer.piece(id) == piece) ids[static_cast<size_t>(byte)] = id;
      }
      if (ids[static_cast<size_t>(byte)] < 0) ADD_FAILURE() << "no id for byte " << byte;
    }
    return ids;
  }();
  std::vector<int32_t> ids;
  for (const char byte : text) ids.push_back(id_of_byte[static_cast<unsigned char>(byte)]);
  return ids;
}

}  // namespace shoal
