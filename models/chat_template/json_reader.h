#pragma once
#include <string>

#include "models/chat_template/run.h"
#include "runtime/base/ordered_json.h"

namespace shoal::jinja {

/// The value that a document describes. With from_request every character and number of it counts
/// as the request's.
Value value_of_json(const OrderedJson& json, bool from_request);

/// The filter from_json: the value that a text describes. If any of the text came from the request,
/// all of the value did.
Value value_from_json_text(Run& run, const Text& text);

}  // namespace shoal::jinja
