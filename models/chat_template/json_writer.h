#pragma once
#include "models/chat_template/run.h"

namespace shoal::jinja {

/// How tojson writes: the arguments of Python's json.dumps.
struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool has_indent = false;
  Text indent;
  Text item_separator{", ", false};
  Text key_separator{": ", false};
};

/// json.dumps(value). Keys keep their order unless they are sorted. Fails for values that JSON does
/// not have.
Value json_value(Run& run, const Value& value, const JsonStyle& style);

/// The filter tojson, as transformers defines it.
Value filter_tojson(Run& run, const Value& value, const Arguments& arguments);

}  // namespace shoal::jinja
