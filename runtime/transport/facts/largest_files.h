#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/transport/facts/host_facts.h"

namespace shoal {

/// The regular files at and below `directory` that take most room there, at most `count`, the
/// largest first. Other file systems that are mounted below it are left out. Looks at a few
/// thousand entries at most, so that it stays fast in a directory that is misused. Empty if the
/// directory cannot be read.
std::vector<ShmFile> largest_files(const std::string& directory, size_t count);

/// The user's name in the text of an /etc/passwd; empty if it is not there.
std::string user_name(std::string_view passwd, uint32_t uid);

}  // namespace shoal
