#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/ordered_json.h"
#include "server/http/api_fields.h"
#include "server/http/http_error.h"
#include "server/serving/generation_request.h"

namespace shoal {

/// The body of a request to /v1/completions or /v1/chat/completions.
struct ApiRequest {
  ApiRoute route = ApiRoute::kCompletions;
  std::string model = {};
  std::string id = {};  ///< the client's; empty: none
  /// One for each choice. A chat has one, whose prompt is not set yet.
  std::vector<GenerationRequest> prompts = {};
  bool stream = false;
  bool include_usage = false;     ///< the last event of a stream has the usage
  bool continuous_usage = false;  ///< every event has
  bool token_ids = false;
  std::vector<std::string> ignored = {};  ///< fields that nobody knows
  OrderedJson messages = {};              ///< of a chat
  OrderedJson template_kwargs = {};       ///< an object or null
  bool generation_prompt = true;
};

/// The most entries that a list of prompts may have.
inline constexpr size_t kMaxPrompts = 1024;

/// Reads a body. The error is a 400 that names the field if it is about one. It is given for a body
/// that is not a JSON object, for a field of the wrong type, for what check_fields() refuses, and
/// if there is no prompt or too many. resolve_request() checks the values later.
Result<ApiRequest, HttpError> read_api_request(std::string_view body, ApiRoute route);

}  // namespace shoal
