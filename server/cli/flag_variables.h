#pragma once
#include <string>
#include <string_view>

namespace shoal {

/// What the names of the variables that set flags begin with.
inline constexpr std::string_view kVariablePrefix = "SHOAL_";

/// The variable that sets a flag, such as SHOAL_MAX_NUM_SEQS, or SHOAL_MODEL for MODEL. Empty if
/// there is none: a flag that ends in -port or -host has none, because Kubernetes sets variables
/// such as SHOAL_PORT beside a Service named shoal, and not to a number.
std::string variable_of(std::string_view flag);

/// Whether a flag says what one run does, such as --print-config, so that it can neither have a
/// variable nor stand in a file.
bool of_one_run(std::string_view flag);

}  // namespace shoal
