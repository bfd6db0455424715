#pragma once
#include <string>

#include "models/chat_template/run.h"

namespace shoal::jinja {

/// Python's repr() of a float: the shortest digits that give the same number.
std::string float_text(double number);

/// Python's str() and repr(). The characters of strings keep their origin; the others have that of
/// the value which they spell. Fails for functions and the like, which Python spells with an
/// address.
Text str_text(Run& run, const Value& value);
Text repr_text(Run& run, const Value& value);

}  // namespace shoal::jinja
