#include "models/chat_template/json_reader.h"

#include "runtime/base/cat.h"

namespace shoal::jinja {
namespace {

Value string_of_json(const std::string& bytes, bool from_request) {
  Value value = constant_string(Text(bytes, from_request));
  value.from_request = from_request;
  return value;
}

}  // namespace

Value value_of_json(const OrderedJson& json, bool from_request) {
  switch (json.type()) {
    case OrderedJson::value_t::boolean:
      return bool_value(json.get<bool>(), from_request);
    case OrderedJson::value_t::number_integer:
    case OrderedJson::value_t::number_unsigned:
      return int_value(json.get<int64_t>(), from_request);
    case OrderedJson::value_t::number_float:
      return float_value(json.get<double>(), from_request);
    case OrderedJson::value_t::string:
      return string_of_json(json.get_ref<const std::string&>(), from_request);
    case OrderedJson::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const OrderedJson& item : json) items.push_back(value_of_json(item, from_request));
      return sequence_value(Type::kList, std::move(items), from_request);
    }
    case OrderedJson::value_t::object: {
      DictObject dict;
      for (const auto& [key, item] : json.items())
        dict.set(string_of_json(key, from_request), value_of_json(item, from_request));
      return dict_value(std::move(dict), from_request);
    }
    default: {
      Value none = none_value();
      none.from_request = from_request;
      return none;
    }
  }
}

Value value_from_json_text(Run& run, const Text& text) {
  if (!run.step(1 + text.size() / 16)) return {};
  const Result<OrderedJson> json = parse_ordered_json(text.view(), "from_json");
  if (!json.ok()) return run.error(std::string(json.status().message()));
  return value_of_json(*json, !text.from_request().empty());
}

}  // namespace shoal::jinja
