#include "server/cli/configuration_text.h"

#include <algorithm>

#include "runtime/base/ordered_json.h"

namespace shoal {

namespace {

/// What a flag is set to.
struct Settled {
  std::vector<std::string> values;
  std::string source = "default";
};

std::string source_of(const Setting& setting) {
  switch (setting.source) {
    case Source::kCommandLine:
      return "command line";
    case Source::kEnvironment:
      return "environment: " + setting.where;
    case Source::kFile:
      return "file: " + setting.where;
  }
  return "";
}

void add_source(std::string source, Settled* settled) {
  if (settled->source == "default")
    settled->source = std::move(source);
  else if (settled->source != source)
    settled->source += ", " + source;
}

Settled settled(const FlagParser& parser, const Environment& environment, const FlagEntry& flag) {
  Settled out;
  const std::string& name = flag.names[0];
  const bool several = flag.value.several != ValueForm::Several::kNo;
  for (const Setting& setting : parser.settings()) {
    if (setting.flag != name) continue;
    if (!several) out = {};  // the last one counts
    out.values.push_back(setting.text);
    add_source(source_of(setting), &out);
  }
  if (flag.value.is_secret) {
    const auto variable = environment.find(variable_of(name));
    if (variable != environment.end() && !variable->second.empty())
      add_source("environment: " + variable->first, &out);
    out.values.clear();
  } else if (out.values.empty() || flag.value.several == ValueForm::Several::kCommas) {
    // Only the setter knows whether a list that is given again adds to the first or replaces it.
    if (const std::optional<std::string> value = parser.value_of(name)) out.values = {*value};
  }
  return out;
}

/// The word as YAML reads it: as it is, or as JSON, of which YAML is a superset.
std::string yaml_word(const std::string& text) {
  constexpr std::string_view kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./+";
  std::string rest = text;
  std::erase(rest, '-');
  const bool plain = !rest.empty() && text != "-" && !text.starts_with("--") &&
                     rest.find_first_not_of(kPlain) == std::string::npos && key_of(text) != "null";
  return plain ? text : json_text(Json(text));
}

std::string yaml_value(const Settled& settled) {
  if (settled.values.size() == 1) return yaml_word(settled.values[0]);
  std::string list;
  for (const std::string& value : settled.values)
    list += (list.empty() ? "" : ", ") + yaml_word(value);
  return "[" + list + "]";
}

/// A comment must stay on its line.
std::string one_line(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20) c = '?';
  return text;
}

std::string yaml_line(const FlagEntry& flag, const Settled& settled) {
  const std::string key = key_of(flag.names[0]);
  const std::string source = one_line(settled.source);
  if (!settled.values.empty()) return cat(key, ": ", yaml_value(settled), "  # ", source, "\n");
  if (flag.value.is_secret && settled.source != "default")
    return cat("# ", key, " is set, and not shown (", source, ")\n");
  return cat("# ", key, " is not set (", source, ")\n");
}

OrderedJson json_value(const FlagEntry& flag, const Settled& settled) {
  if (settled.values.empty()) return nullptr;
  if (!flag.takes_value) return settled.values[0] == "true";
  if (flag.value.several != ValueForm::Several::kNo) return settled.values;
  return settled.values[0];
}

FlagEntry operand_of(const FlagParser& parser) {
  return {.names = {parser.positional()}, .help = {}, .takes_value = true};
}

}  // namespace

std::string configuration_yaml(const FlagParser& parser, const Environment& environment) {
  std::string text =
      "# The flags of shoal serve, with who gave each of them. --config reads this.\n";
  const auto add = [&](const FlagEntry& flag) {
    text += yaml_line(flag, settled(parser, environment, flag));
  };
  if (!parser.positional().empty()) add(operand_of(parser));
  for (const FlagGroup& group : parser.groups()) {
    const size_t before = text.size();
    for (const FlagEntry& flag : group.flags) {
      if (of_one_run(flag.names.back()) || flag.names[0] == "--config") continue;
      if (text.size() == before) text += cat("\n# ", group.heading, "\n");
      add(flag);
    }
  }
  return text;
}

std::string configuration_json(const FlagParser& parser, const Environment& environment) {
  OrderedJson all = OrderedJson::object();
  const auto add = [&](const FlagEntry& flag) {
    const Settled value = settled(parser, environment, flag);
    all[key_of(flag.names[0])] = {{"value", json_value(flag, value)}, {"source", value.source}};
  };
  if (!parser.positional().empty()) add(operand_of(parser));
  for (const FlagGroup& group : parser.groups()) {
    for (const FlagEntry& flag : group.flags)
      if (!of_one_run(flag.names.back())) add(flag);
  }
  return all.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace shoal
