#pragma once
#include <string>
#include <string_view>

namespace shoal::shmtest {

/// Escapes text for XML content and attributes. Characters that XML 1.0 cannot represent (control
/// characters, broken UTF-8) become U+FFFD.
std::string xml_escape(std::string_view text);

}  // namespace shoal::shmtest
