#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/json.h"

namespace shoal {

/// One normalizer, pre-tokenizer, decoder or post-processor of tokenizer.json. Sequences are
/// flattened, because a Sequence of Sequences means the same as the flat list.
struct Component {
  const Json* json = nullptr;
  std::string type;
  std::string what;  ///< for messages: `tokenizer.json: decoder[2] "Strip"`
};

/// Returns the components of a member (none if it is null or absent). list_key is the key under
/// which a Sequence keeps its parts. INVALID_ARGUMENT if the member has another structure,
/// UNIMPLEMENTED for more than 64 components.
Result<std::vector<Component>> flatten_components(const Json& root, const char* member,
                                                  const char* list_key, std::string_view what);

/// Returns UNIMPLEMENTED with a message that names the component.
Status unsupported_component(const Component& component);

/// Read a field that is required or has a default. INVALID_ARGUMENT naming the component and the
/// key.
Result<std::string> required_string(const Component& component, const char* key);
Result<bool> bool_or(const Component& component, const char* key, bool fallback);
/// Reads a string of exactly one character.
Result<std::string> required_character(const Component& component, const char* key);

}  // namespace shoal
