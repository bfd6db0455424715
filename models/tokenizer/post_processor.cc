#include "models/tokenizer/post_processor.h"

#include <utility>

#include "runtime/base/cat.h"

namespace shoal {
namespace {

// Real templates have three parts with one id each. These limits bound how many ids a template can
// add to a request.
constexpr size_t kMaxParts = 64;
constexpr size_t kMaxIdsPerToken = 64;
constexpr int kMaxTexts = 2;

Result<int32_t> template_id(const Json& json, int32_t max_id, const std::string& what) {
  if (!json.is_number_integer() || json < 0 || json > max_id) {
    return Status::error(Code::kInvalidArgument,
                         cat(what, ": the id ", json.dump(-1, ' ', true).substr(0, 40),
                             " is not in the vocabulary (0 to ", max_id, ")"));
  }
  return json.get<int32_t>();
}

/// Reads the ids of special_tokens[name].
Result<std::vector<int32_t>> special_ids(const Component& component, const std::string& name,
                                         int32_t max_id) {
  const auto damaged = [&](std::string_view why) {
    return Status::error(Code::kInvalidArgument, cat(component.what, ": ", why));
  };
  const auto tokens = component.json->find("special_tokens");
  if (tokens == component.json->end() || !tokens->is_object())
    return damaged("the object \"special_tokens\" is missing");
  const auto token = tokens->find(name);
  if (token == tokens->end() || !token->is_object()) {
    return damaged(cat("special_tokens has no \"", name.substr(0, 64), "\""));
  }
  const auto list = token->find("ids");
  if (list == token->end() || !list->is_array() || list->size() > kMaxIdsPerToken) {
    return damaged(cat("the special token \"", name.substr(0, 64),
                       "\" needs a list \"ids\" of at most ", kMaxIdsPerToken));
  }
  std::vector<int32_t> ids;
  for (const Json& id : *list) {
    SHOAL_ASSIGN_OR_RETURN(const int32_t value, template_id(id, max_id, component.what));
    ids.push_back(value);
  }
  return ids;
}

}  // namespace

Result<PostProcessor> PostProcessor::parse(const Json& tokenizer, int32_t max_id,
                                           std::string_view what) {
  SHOAL_ASSIGN_OR_RETURN(const auto components,
                         flatten_components(tokenizer, "post_processor", "processors", what));
  PostProcessor processor;
  for (const Component& component : components) {
    if (component.type == "ByteLevel") continue;
    const bool is_template = component.type == "TemplateProcessing";
    if (!is_template && component.type != "BertProcessing" &&
        component.type != "RobertaProcessing") {
      return unsupported_component(component);
    }
    if (processor.present_) {
      return Status::error(Code::kUnimplemented,
                           cat(component.what, ": a second template is not supported"));
    }
    processor.present_ = true;
    SHOAL_RETURN_IF_ERROR(is_template ? processor.parse_template(component, max_id)
                                      : processor.parse_cls_sep(component, max_id));
  }
  return processor;
}

Status PostProcessor::parse_template(const Component& component, int32_t max_id) {
  const auto damaged = [&](std::string_view why) {
    return Status::error(Code::kInvalidArgument, cat(component.what, ": ", why));
  };
  const auto single = component.json->find("single");
  if (single == component.json->end() || !single->is_array())
    return damaged("the list \"single\" is missing");
  if (single->size() > kMaxParts)
    return damaged(cat("\"single\" has more than ", kMaxParts, " parts"));
  int texts = 0;
  for (const Json& part : *single) {
    const bool is_text = part.is_object() && part.size() == 1 && part.contains("Sequence");
    const bool is_token = part.is_object() && part.size() == 1 && part.contains("SpecialToken");
    if (!is_text && !is_token)
      return damaged(R"(a part of "single" must be {"Sequence": ...} or {"SpecialToken": ...})");
    const Json& body = part.front();
    if (!body.is_object()) return damaged("a part of \"single\" must hold an object");
    SHOAL_ASSIGN_OR_RETURN(const auto id, json_string(body, "id", component.what));
    if (!id) return damaged("a part of \"single\" has no \"id\"");
    if (is_token) {
      SHOAL_ASSIGN_OR_RETURN(auto ids, special_ids(component, *id, max_id));
      parts_.push_back({false, std::move(ids)});
    } else {
      if (*id != "A") return damaged("\"single\" can only use the sequence A");
      if (++texts > kMaxTexts)
        return damaged(cat("\"single\" uses the text more than ", kMaxTexts, " times"));
      parts_.push_back({true, {}});
    }
  }
  return {};
}

Status PostProcessor::parse_cls_sep(const Component& component, int32_t max_id) {
  std::vector<int32_t> ids;
  for (const char* key : {"cls", "sep"}) {
    const auto pair = component.json->find(key);
    if (pair == component.json->end() || !pair->is_array() || pair->size() != 2) {
      return Status::error(Code::kInvalidArgument,
                           cat(component.what, ": \"", key, "\" must be [token, id]"));
    }
    SHOAL_ASSIGN_OR_RETURN(const int32_t id, template_id((*pair)[1], max_id, component.what));
    ids.push_back(id);
  }
  parts_ = {{false, {ids[0]}}, {true, {}}, {false, {ids[1]}}};
  return {};
}

std::vector<int32_t> PostProcessor::apply(std::vector<int32_t> ids, bool add_special) const {
  if (!present_) return ids;
  std::vector<int32_t> out;
  out.reserve(ids.size() + 2);
  for (const Part& part : parts_) {
    if (part.is_text) {
      out.insert(out.end(), ids.begin(), ids.end());
    } else if (add_special) {
      out.insert(out.end(), part.ids.begin(), part.ids.end());
    }
  }
  return out;
}

}  // namespace shoal
