// Feeds arbitrary bytes as a tokenizer.json and, if it is accepted, arbitrary bytes as text to it.
// The input is the file, a line with four bars, and the text. Besides not crashing: encoded ids are
// in the vocabulary, decoded texts are UTF-8, and a stream gives the same text as decoding
// everything at once.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizer.h"
#include "models/tokenizer/unicode.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void check_decoding(const shoal::Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  for (const bool skip_special : {false, true}) {
    const std::string whole = tokenizer.decode(ids, skip_special);
    require(shoal::to_valid_utf8(whole) == whole);
    shoal::StreamDecoder stream(tokenizer, skip_special);
    std::string parts;
    for (const int32_t id : ids) {
      const std::string part = stream.push(id);
      require(shoal::to_valid_utf8(part) == part);
      parts += part;
    }
    require(parts + stream.finish() == whole);
  }
}

void check(const shoal::Tokenizer& tokenizer, std::string_view text) {
  for (const bool add_special : {false, true}) {
    const auto ids = tokenizer.encode(text, add_special);
    if (!ids.ok()) continue;
    for (const int32_t id : *ids) require(id >= 0 && id < tokenizer.vocab_size());
    check_decoding(tokenizer, *ids);
  }
  std::vector<int32_t> any;
  for (const char c : text) any.push_back(static_cast<uint8_t>(c));
  check_decoding(tokenizer, any);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr std::string_view kBar = "\n||||\n";
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t bar = input.find(kBar);
  const auto tokenizer = shoal::Tokenizer::parse(input.substr(0, bar), "tokenizer.json");
  if (tokenizer.ok())
    check(*tokenizer, bar == std::string_view::npos ? "" : input.substr(bar + kBar.size()));
  return 0;
}
