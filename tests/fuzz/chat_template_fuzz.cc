// Feeds arbitrary bytes as a chat template and as messages. The input is the template, a line with
// four bars, the messages, another such line, and the kwargs. Besides not crashing and not taking
// long: the text is UTF-8, and the spans of the request are sorted, inside it and end at
// characters.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "models/chat_template.h"
#include "models/tokenizer/unicode.h"

namespace {

constexpr std::string_view kBar = "\n||||\n";

void require(bool condition) {
  if (!condition) std::abort();
}

/// The part up to the next bar, which is taken out of the rest.
std::string_view take(std::string_view& rest) {
  const size_t bar = rest.find(kBar);
  const std::string_view part = rest.substr(0, bar);
  rest = bar == std::string_view::npos ? std::string_view() : rest.substr(bar + kBar.size());
  return part;
}

bool begins_character(const std::string& text, size_t at) {
  return at == text.size() || (static_cast<uint8_t>(text[at]) & 0xC0) != 0x80;
}

void check(const shoal::RenderedPrompt& prompt) {
  require(shoal::to_valid_utf8(prompt.text) == prompt.text);
  size_t done = 0;
  for (const shoal::ByteSpan& span : prompt.from_request) {
    require(span.begin >= done && span.begin < span.end && span.end <= prompt.text.size());
    require(begins_character(prompt.text, span.begin) && begins_character(prompt.text, span.end));
    done = span.end;
  }
}

shoal::OrderedJson json_or_null(std::string_view text) {
  const auto json = shoal::parse_ordered_json(text, "input");
  return json.ok() ? *json : shoal::OrderedJson();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const std::string source = shoal::to_valid_utf8(take(rest));
  shoal::ChatRequest request;
  request.messages = json_or_null(take(rest));
  request.kwargs = json_or_null(take(rest));
  const auto chat = shoal::ChatTemplate::parse(source, "template");
  if (!chat.ok()) return 0;
  if (request.messages.is_null()) {
    request.messages = {{{"role", "user"}, {"content", "a <|b|> \xC3\xA9"}}};
  }
  const auto prompt = chat->render(request, {nullptr, 1'700'000'000});
  if (prompt.ok()) check(*prompt);
  return 0;
}
