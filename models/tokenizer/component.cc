#include "models/tokenizer/component.h"

#include <utility>

#include "models/tokenizer/unicode.h"
#include "runtime/base/cat.h"

namespace shoal {
namespace {

constexpr size_t kMaxComponents = 64;  // real files have fewer than 8

Status append_components(const Json& json, const char* list_key, const std::string& what,
                         std::vector<Component>& components) {
  if (!json.is_object())
    return Status::error(Code::kInvalidArgument, cat(what, " must be an object or null"));
  SHOAL_ASSIGN_OR_RETURN(const auto type, json_string(json, "type", what));
  if (!type) return Status::error(Code::kInvalidArgument, cat(what, " has no \"type\""));
  if (*type == "Sequence") {
    const auto list = json.find(list_key);
    if (list == json.end() || !list->is_array()) {
      return Status::error(Code::kInvalidArgument,
                           cat(what, ": a Sequence needs the list \"", list_key, "\""));
    }
    for (size_t i = 0; i < list->size(); ++i) {
      SHOAL_RETURN_IF_ERROR(
          append_components((*list)[i], list_key, cat(what, "[", i, "]"), components));
    }
    return {};
  }
  if (components.size() == kMaxComponents) {
    return Status::error(Code::kUnimplemented,
                         cat(what, ": more than ", kMaxComponents, " components"));
  }
  components.push_back({&json, *type, cat(what, " \"", type->substr(0, 64), "\"")});
  return {};
}

}  // namespace

Result<std::vector<Component>> flatten_components(const Json& root, const char* member,
                                                  const char* list_key, std::string_view what) {
  std::vector<Component> components;
  const auto found = root.find(member);
  if (found == root.end() || found->is_null()) return components;
  SHOAL_RETURN_IF_ERROR(append_components(*found, list_key, cat(what, ": ", member), components));
  return components;
}

Status unsupported_component(const Component& component) {
  return Status::error(Code::kUnimplemented, cat(component.what, " is not supported"));
}

Result<std::string> required_string(const Component& component, const char* key) {
  SHOAL_ASSIGN_OR_RETURN(auto value, json_string(*component.json, key, component.what));
  if (!value)
    return Status::error(Code::kInvalidArgument, cat(component.what, ": \"", key, "\" is missing"));
  return std::move(*value);
}

Result<bool> bool_or(const Component& component, const char* key, bool fallback) {
  SHOAL_ASSIGN_OR_RETURN(const auto value, json_bool(*component.json, key, component.what));
  return value.value_or(fallback);
}

Result<std::string> required_character(const Component& component, const char* key) {
  SHOAL_ASSIGN_OR_RETURN(auto value, required_string(component, key));
  if (!is_one_character(value)) {
    return Status::error(Code::kInvalidArgument,
                         cat(component.what, ": \"", key, "\" must be one character"));
  }
  return value;
}

}  // namespace shoal
