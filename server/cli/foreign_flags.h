#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace shoal {

// The flags of other servers, for those who come from vLLM, SGLang, TGI or
// llama.cpp.

/// A flag that another server has and Shoal has not.
struct ForeignFlag {
  std::string_view name;  ///< with hyphens, such as "--mem-fraction-static" or "-ngl"
  std::string_view use;   ///< the flag of Shoal that does it; empty: none does
  std::string_view hint;  ///< half a sentence: what to do instead; may be empty if `use` says it
};

/// The flags of other servers that are known by their names. A family whose names have a part in
/// common, such as "lora", is known by that part and not named here.
std::span<const ForeignFlag> foreign_flags();

/// What to do instead of this flag of another server, as half a sentence; nullopt if it is not one,
/// and empty if the flag to use is not one of this command, and no field of a request does it
/// either. `has`: whether the command has a flag.
std::optional<std::string> foreign_flag_hint(std::string_view name,
                                             const std::function<bool(std::string_view flag)>& has);

/// Whether other servers name the model by this flag: --model, --model-path, --model-id or -m.
bool is_model_flag(std::string_view name);

}  // namespace shoal
