// Feeds arbitrary bytes as the body of /v1/completions and of /v1/chat/completions. Besides not
// crashing and not taking long: a refusal has a status, a message and one line of JSON, and a
// request that was read has what its route needs.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "runtime/base/json.h"
#include "server/http/api_request.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void check(std::string_view body, shoal::ApiRoute route) {
  const shoal::Result<shoal::ApiRequest, shoal::HttpError> read =
      shoal::read_api_request(body, route);
  if (!read.ok()) {
    require(read.error().status == 400 && !read.error().message.empty());
    const std::string json = shoal::error_json(read.error());
    require(json.find('\n') == std::string::npos && shoal::parse_json(json, "error").ok());
    return;
  }
  require(!read->prompts.empty() && read->prompts.size() <= shoal::kMaxPrompts);
  if (route == shoal::ApiRoute::kChat) require(read->messages.is_array());
  for (const shoal::GenerationRequest& one : read->prompts)
    require(route == shoal::ApiRoute::kChat ||
            one.prompt.has_value() != one.prompt_ids.has_value());
  for (const char c : shoal::ignored_fields_header(read->ignored)) require(c >= ' ' && c < 0x7F);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  check(body, shoal::ApiRoute::kCompletions);
  check(body, shoal::ApiRoute::kChat);
  return 0;
}
