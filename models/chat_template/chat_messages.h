#pragma once
#include <string>

#include "models/chat_template/content_format.h"
#include "models/chat_template/value.h"
#include "runtime/base/ordered_json.h"

namespace shoal::jinja {

/// Why messages are refused: which of their fields, and what is wrong with it.
struct MessageError {
  std::string field;  ///< for example "messages[2].content"
  std::string what;
  bool ok() const { return what.empty(); }
};

/// Checks messages as a client sends them, and makes the value that a template gets. Everything
/// in it counts as the request's, except a role that the API names itself.
///
/// - `content` is a string, a list of text parts, or null beside tool_calls or reasoning. A list
///   stays one if the template iterates over content; otherwise its texts are joined by newlines.
///   A string becomes a list of one part if the template takes only lists.
/// - Arguments of tool calls that are the text of a JSON object become that object, as in vLLM.
/// - The names for a model's reasoning are made equal, as in transformers.
Result<Value, MessageError> messages_value(const OrderedJson& messages,
                                           const ContentFormat& format);

}  // namespace shoal::jinja
