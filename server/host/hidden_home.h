#pragma once
#include <span>
#include <string>
#include <string_view>

namespace shoal {

/// The folders that systemd's ProtectHome= hides.
inline constexpr std::string_view kHomes[] = {"/home", "/root", "/run/user"};

/// For the message about a model that is not there: "; ..." if it should lie in one of these
/// folders and nothing at all can be seen in that folder, as in a service that systemd keeps out of
/// them. Otherwise empty.
std::string hidden_home(const std::string& model, std::span<const std::string_view> homes = kHomes);

}  // namespace shoal
