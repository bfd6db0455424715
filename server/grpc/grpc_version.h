#pragma once
#include <string_view>

namespace shoal {

/// Whether gRPC of this version bounds the headers of a request that has no end (CVE-2023-33953,
/// mended in 1.53.2, 1.54.3, 1.55.2, 1.56.2 and 1.57).
bool bounds_headers(std::string_view version);

/// Says in the log that the gRPC of this program does not, if it does not.
void warn_of_endless_headers(std::string_view host);

}  // namespace shoal
