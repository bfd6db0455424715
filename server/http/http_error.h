#pragma once
#include <string>
#include <string_view>

#include "models/chat_template.h"
#include "server/http/http_message.h"
#include "server/serving/inference_loop.h"
#include "server/serving/refused_request.h"

namespace shoal {

/// An error as OpenAI's API writes it: {"error": {"message", "type", "param", "code"}}, with its
/// status.
struct HttpError {
  bool ok() const { return status == 0; }

  int status = 0;            ///< 400 to 504; 0: no error
  std::string message = {};  ///< what is wrong, and what to do
  std::string param = {};    ///< the field of the body that is to blame; empty: null
  std::string code = {};     ///< OpenAI's code if it has one, otherwise gRPC's reason; empty: null
  int retry_ms = 0;          ///< in how many milliseconds to try again; 0: not known
};

/// The status 400 about a field of the body.
HttpError bad_field(std::string param, std::string message);
/// Why a request was not taken.
HttpError to_http_error(const RefusedRequest& refused);
/// Why a request that ran has failed, or was ended by an abort. `draining`: the server ends it.
HttpError to_http_error(const OutputEnd& end, bool draining);

/// Why a conversation was not made a prompt of.
HttpError to_http_error(const RenderError& error);

/// Whether what failed with this code may be asked for again, because its status is 429 or 503.
bool is_retryable(std::string_view code);

/// {"error": {...}} on one line.
std::string error_json(const HttpError& error);
/// The answer, with Retry-After (1 to 60 s) if its status is 429 or 503.
HttpResponse error_response(const HttpError& error);

/// The name of a field in the JSON of the HTTP routes; "" for kNone.
const char* http_field_name(RequestField field);

}  // namespace shoal
