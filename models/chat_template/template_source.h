#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/ordered_json.h"
#include "runtime/base/status.h"

namespace shoal::jinja {

/// The chat templates of a model's folder, and the variables that its tokenizer gives to them.
struct TemplateSource {
  /// Name and text: "default" first, then perhaps "tool_use". Empty: the model has none.
  std::vector<std::pair<std::string, std::string>> templates;
  std::string where;  ///< the file that they come from
  /// bos_token, eos_token and so on, those that are set.
  std::vector<std::pair<std::string, OrderedJson>> special_tokens;
};

/// The largest template that is read, in bytes.
inline constexpr size_t kMaxTemplateBytes = size_t{1} << 20;

/// Reads tokenizer_config.json, chat_template.jinja and `file`; the later of these that has a
/// template wins, as in transformers. `model` is the folder, or a file in it. INVALID_ARGUMENT: a
/// file is damaged, or a template is not UTF-8. RESOURCE_EXHAUSTED: a file is too large. NOT_FOUND:
/// there is no such model. Other errors are those of read_file().
Result<TemplateSource> read_template_source(const std::string& model,
                                            const std::optional<std::string>& file);

}  // namespace shoal::jinja
