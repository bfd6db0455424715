#pragma once
#include <span>
#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "server/http/http_error.h"

namespace shoal {

/// The routes of OpenAI's API whose bodies have these fields.
enum class ApiRoute { kCompletions, kChat };

/// What is done with a field of a body.
enum class FieldUse {
  kRead,     ///< it decides the answer
  kNeutral,  ///< this server cannot do what it asks for, so that only a value that asks for nothing
             ///< passes
  kPassed,   ///< it changes no answer, so any value passes
};

struct ApiField {
  const char* name;
  bool completions, chat;  ///< which routes have it
  FieldUse use;
  const char* meaning;  ///< kRead: a line for the documentation; kNeutral: the neutral values
                        ///< besides null, as a JSON array
};

/// All fields that the routes know. docs/http.md shows this table.
std::span<const ApiField> api_fields();

/// 400, with the field, for one that would change the answer and is not implemented, unless it has
/// a neutral value. The names of unknown fields are added to *ignored.
HttpError check_fields(const Json& body, ApiRoute route, std::vector<std::string>* ignored);

/// The names as the value of a header: printable ASCII, each cut to a length, at most a few.
std::string ignored_fields_header(const std::vector<std::string>& names);

}  // namespace shoal
