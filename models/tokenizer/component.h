#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/json.h"

namespace shoal {

/// One normalizer, pre-tokenizer, decoder or post-processor of tokenizer.json, with Sequences taken
/// apart: a Sequence of Sequences means the same as the flat list.
struct Component {
  const Json* json = nullptr;
  std::string type;
  std::string what;  ///< for messages: `tokenizer.json: decoder[2] "Strip"`
};

/// The components of a member (null or absent: none). list_key is where a Sequence keeps its parts.
/// INVALID_ARGUMENT for another shape, UNIMPLEMENTED beyond 64 components.
Result<std::vector<Component>> flatten_components(const Json& root, const char* member,
                                                  const char* list_key, std::string_view what);

/// UNIMPLEMENTED, naming the component.
Status unsupported_component(const Component& component);

/// Fields that must be there, or have a default. INVALID_ARGUMENT naming the component and the key.
Result<std::string> required_string(const Component& component, const char* key);
Result<bool> bool_or(const Component& component, const char* key, bool fallback);
/// A string of exactly one character.
Result<std::string> required_character(const Component& component, const char* key);

}  // namespace shoal
