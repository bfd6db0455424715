#include "models/chat_template/template_source.h"

#include <filesystem>
#include <string_view>
#include <system_error>

#include "models/tokenizer/unicode.h"
#include "runtime/base/cat.h"
#include "runtime/base/json.h"

namespace shoal::jinja {
namespace {

constexpr size_t kMaxConfigBytes = size_t{64} << 20;
// A tokenizer_config.json lists every added token under its id.
constexpr JsonLimits kConfigLimits{
    .max_depth = 64, .max_values = 4'000'000, .max_members = 200'000};
constexpr const char* kTokenNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                       "pad_token", "cls_token", "mask_token"};

/// The text of a file, or nothing if it is not there.
Result<std::optional<std::string>> read_if_there(const std::string& path, size_t max_bytes) {
  Result<std::string> text = read_file(path, max_bytes);
  if (text.ok()) return std::optional(std::move(text).value());
  if (text.status().code() == Code::kNotFound) return std::optional<std::string>();
  return text.status();
}

Status bad(const std::string& where, std::string_view what) {
  return Status::error(Code::kInvalidArgument, cat(where, ": ", what));
}

Status check_text(const std::string& text, const std::string& where) {
  if (text.size() > kMaxTemplateBytes) {
    return Status::error(Code::kResourceExhausted,
                         cat(where, ": the chat template has ", text.size(), " B; at most ",
                             kMaxTemplateBytes, " B are read"));
  }
  if (to_valid_utf8(text) != text) return bad(where, "the chat template is not UTF-8");
  return {};
}

/// The templates of tokenizer_config.json: one text, or a list of {"name", "template"}.
Status add_templates(const Json& config, const std::string& where, TemplateSource& source) {
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return {};
  source.where = where;
  if (found->is_string()) {
    source.templates.emplace_back("default", found->get<std::string>());
  } else if (found->is_array()) {
    for (const Json& entry : *found) {
      SHOAL_ASSIGN_OR_RETURN(const auto name, json_string(entry, "name", where));
      SHOAL_ASSIGN_OR_RETURN(const auto text, json_string(entry, "template", where));
      if (!name || !text)
        return bad(where, "each entry of \"chat_template\" needs \"name\" and \"template\"");
      if (*name == "default")
        source.templates.insert(source.templates.begin(), {*name, *text});
      else if (*name == "tool_use")
        source.templates.emplace_back(*name, *text);
    }
    if (source.templates.empty() || source.templates[0].first != "default")
      return bad(where, "the list \"chat_template\" has no template named \"default\"");
  } else {
    return bad(where, "\"chat_template\" must be a text or a list of named templates");
  }
  for (const auto& [name, text] : source.templates) SHOAL_RETURN_IF_ERROR(check_text(text, where));
  return {};
}

/// The text of a special token: a string, or an object that has it as "content".
const Json* token_text(const Json& value) {
  if (value.is_string()) return &value;
  if (!value.is_object()) return nullptr;
  const auto content = value.find("content");
  return content != value.end() && content->is_string() ? &*content : nullptr;
}

void add_token(const std::string& name, const Json& value, TemplateSource& source) {
  for (const auto& [known, text] : source.special_tokens)
    if (known == name) return;
  if (const Json* text = token_text(value))
    source.special_tokens.emplace_back(name, OrderedJson(text->get_ref<const std::string&>()));
}

void add_special_tokens(const Json& config, TemplateSource& source) {
  for (const char* name : kTokenNames) {
    const auto found = config.find(name);
    if (found != config.end()) add_token(name, *found, source);
  }
  for (const char* name : {"additional_special_tokens", "extra_special_tokens"}) {
    const auto found = config.find(name);
    if (found == config.end()) continue;
    if (found->is_object()) {
      for (const auto& [key, value] : found->items()) add_token(key, value, source);
    } else if (found->is_array() && std::string_view(name) == "additional_special_tokens") {
      OrderedJson list = OrderedJson::array();
      for (const Json& value : *found)
        if (const Json* text = token_text(value)) list.push_back(text->get<std::string>());
      source.special_tokens.emplace_back(name, std::move(list));
    }
  }
}

Status read_config(const std::string& path, bool has_templates, TemplateSource& source) {
  SHOAL_ASSIGN_OR_RETURN(const auto text, read_if_there(path, kMaxConfigBytes));
  if (!text) return {};
  SHOAL_ASSIGN_OR_RETURN(const Json config, parse_json(*text, path, kConfigLimits));
  if (!config.is_object()) return bad(path, "not a JSON object");
  add_special_tokens(config, source);
  return has_templates ? add_templates(config, path, source) : Status();
}

Status replace_templates(std::string text, const std::string& where, TemplateSource& source) {
  SHOAL_RETURN_IF_ERROR(check_text(text, where));
  source.templates = {{"default", std::move(text)}};
  source.where = where;
  return {};
}

}  // namespace

Result<TemplateSource> read_template_source(const std::string& model,
                                            const std::optional<std::string>& file) {
  std::error_code ignored;
  std::string folder = model;
  if (!std::filesystem::exists(folder, ignored))
    return Status::error(Code::kNotFound, cat("there is no ", model));
  if (!std::filesystem::is_directory(folder, ignored))
    folder = std::filesystem::path(model).parent_path().string();
  if (folder.empty()) folder = ".";
  TemplateSource source;
  SHOAL_RETURN_IF_ERROR(read_config(folder + "/tokenizer_config.json", true, source));
  SHOAL_RETURN_IF_ERROR(read_config(folder + "/special_tokens_map.json", false, source));
  const std::string own = folder + "/chat_template.jinja";
  SHOAL_ASSIGN_OR_RETURN(auto text, read_if_there(own, kMaxTemplateBytes));
  if (text) SHOAL_RETURN_IF_ERROR(replace_templates(std::move(*text), own, source));
  if (file) {
    SHOAL_ASSIGN_OR_RETURN(std::string given, read_file(*file, kMaxTemplateBytes));
    SHOAL_RETURN_IF_ERROR(replace_templates(std::move(given), *file, source));
  }
  return source;
}

}  // namespace shoal::jinja
