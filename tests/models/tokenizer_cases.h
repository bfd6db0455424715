#pragma once
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <string>
#include <vector>

#include "models/tokenizer.h"
#include "runtime/base/json.h"

namespace shoal {

/// What the tokenizer tests share: the files of tests/data and the answers of Hugging Face to them.

inline Json read_json(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  auto json = parse_json(text, path);
  EXPECT_TRUE(json.ok()) << json.status().to_string();
  return json.ok() ? *json : Json();
}

/// The names of the oracle cases that have a tokenizer.json.
inline std::vector<std::string> oracle_cases() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(SHOAL_TEST_DATA "/oracle")) {
    if (std::filesystem::exists(entry.path() / "tokenizer.json"))
      names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

inline std::string oracle_dir(const std::string& name) {
  return SHOAL_TEST_DATA "/oracle/" + name;
}

inline Tokenizer load_oracle(const std::string& name) {
  auto tokenizer = Tokenizer::load(oracle_dir(name));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  return std::move(tokenizer).value();
}

/// The tokenizer.json of one entry of tests/data/tokenizer/cases.json.
inline Json case_tokenizer(const Json& file, const Json& variant) {
  Json tokenizer = variant["parts"];
  tokenizer["version"] = "1.0";
  tokenizer["model"] = file["models"][variant["model"].get<std::string>()];
  tokenizer["model"].update(variant["options"]);
  return tokenizer;
}

/// Decodes through a StreamDecoder, and checks that each part ends at the end of a character.
inline std::string stream_decode(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                                 bool skip_special) {
  StreamDecoder stream(tokenizer, skip_special);
  std::string all;
  const auto add = [&](const std::string& part) {
    // Converting to Json throws if the text is not UTF-8, even if only half a character is missing.
    EXPECT_NO_THROW((void)Json(part).dump()) << "half a character";
    all += part;
  };
  for (const int32_t id : ids) add(stream.push(id));
  add(stream.finish());
  return all;
}

}  // namespace shoal
