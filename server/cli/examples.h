#pragma once
#include <string_view>
#include <vector>

#include "server/cli/command_table.h"

namespace shoal {

/// Lines that show how a command is used, for its help; empty if there are none. Readers replace
/// MODEL by a model's folder, and the files by ones of their own.
std::vector<Example> examples_of(std::string_view command);

}  // namespace shoal
