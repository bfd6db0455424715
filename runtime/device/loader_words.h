#pragma once
#include <string>

namespace shoal {

/// The dynamic loader's own message about this thread's latest failure.
std::string loader_words();

/// The same about a library that was to be opened, and where the loader has looked for it if it was
/// given by name, without a path.
std::string loader_words(const std::string& library);

}  // namespace shoal
