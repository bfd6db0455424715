#pragma once
#include <dlfcn.h>
#include <string>

namespace shoal {

/// The dynamic loader's own message about this thread's latest failure.
inline std::string loader_words() {
  const char* const words = ::dlerror();
  return words == nullptr ? "the loader says nothing" : words;
}

}  // namespace shoal
