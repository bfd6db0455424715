#pragma once
#include <string>

#include "models/chat_template/run.h"

namespace shoal::jinja {

/// Python's repr() of a float: the shortest digits that give the same number.
std::string float_text(double number);

/// Python's str() and repr(). The characters of strings keep their origin. All other characters get
/// the origin of the value that they spell. Fails for values such as functions, because Python
/// spells these with an address.
Text str_text(Run& run, const Value& value);
Text repr_text(Run& run, const Value& value);

}  // namespace shoal::jinja
