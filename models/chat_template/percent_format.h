#pragma once
#include "models/chat_template/run.h"

namespace shoal::jinja {

/// format % argument, with a tuple of arguments, a dict of them, or a single one.
Value percent_format(Run& run, const Value& format, const Value& argument);

/// str.format(...): fields by position, by number or by name, with .attribute and [item].
Value format_method(Run& run, const Value& format, const Arguments& arguments);

}  // namespace shoal::jinja
