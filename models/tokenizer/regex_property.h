#pragma once
#include <string>
#include <string_view>

namespace shoal {

/// Translates an Oniguruma property name to PCRE2's name for the same property. A bare script name
/// means the Script property in Oniguruma, but Script_Extensions in PCRE2.
std::string oniguruma_property(std::string_view name);

}  // namespace shoal
