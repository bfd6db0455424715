#include "server/cli/configuration.h"

#include <algorithm>
#include <cctype>

#include "runtime/base/text_values.h"
#include "server/cli/config_file.h"
#include "server/cli/flag_setters.h"
#include "server/cli/foreign_flags.h"

extern char** environ;

namespace shoal {

namespace {

using Several = ValueForm::Several;

constexpr std::string_view kConfig = "--config";

/// The flags of the parser that may be set elsewhere, and its word without a flag.
std::vector<FlagEntry> settable(const FlagParser& parser) {
  std::vector<FlagEntry> all;
  if (!parser.positional().empty())
    all.push_back({.names = {parser.positional()}, .help = {}, .takes_value = true});
  for (const FlagGroup& group : parser.groups()) {
    for (const FlagEntry& flag : group.flags)
      if (!of_one_run(flag.names.back())) all.push_back(flag);
  }
  return all;
}

/// A word of the environment or the file as the parser takes it.
Result<Setting> make_setting(const FlagEntry& flag, const std::string& text, Source source,
                             const std::string& where) {
  Setting setting{flag.names[0], text, source, where};
  if (flag.takes_value) return setting;
  setting.text = key_of(text);
  if (setting.text == "1") setting.text = "true";
  if (setting.text == "0") setting.text = "false";
  if (setting.text == "true" || setting.text == "false") return setting;
  return Status::error(Code::kInvalidArgument,
                       cat(name_of(setting), " must be true, false, 1 or 0, not ", shown(text)));
}

Status add_environment(const std::vector<FlagEntry>& flags, const Environment& environment,
                       std::vector<Setting>* settings) {
  for (const FlagEntry& flag : flags) {
    // The server reads its keys itself, and adds them up.
    if (flag.value.is_secret) continue;
    const auto name =
        std::find_if(flag.names.begin(), flag.names.end(), [&](const std::string& one) {
          const auto found = environment.find(variable_of(one));
          const bool is_long = one.starts_with("--") || !one.starts_with('-');
          return is_long && found != environment.end() && !found->second.empty();
        });
    if (name == flag.names.end()) continue;
    const std::string variable = variable_of(*name);
    SHOAL_ASSIGN_OR_RETURN(Setting setting, make_setting(flag, environment.at(variable),
                                                         Source::kEnvironment, variable));
    settings->push_back(std::move(setting));
  }
  return {};
}

Result<const FlagEntry*> flag_of(const ConfigEntry& entry, const std::vector<FlagEntry>& flags) {
  std::string key = entry.key;
  std::replace(key.begin(), key.end(), '_', '-');
  std::vector<std::string> known;
  for (const FlagEntry& flag : flags) {
    for (const std::string& name : flag.names) {
      if (name == kConfig) continue;
      if (key_of(name) == key) return &flag;
      known.push_back(key_of(name));
    }
  }
  if ("--" + key == kConfig || of_one_run("--" + key))
    return Status::error(
        Code::kInvalidArgument,
        cat(entry.where, ": ", key, " belongs on the command line, not into a file"));
  const auto has = [&known](std::string_view flag) {
    return std::find(known.begin(), known.end(), key_of(flag)) != known.end();
  };
  const std::optional<std::string> foreign = foreign_flag_hint("--" + key, has);
  const std::string nearest = foreign ? "" : nearest_word(key, known);
  std::string hint = foreign.value_or("");
  if (hint.empty())
    hint = nearest.empty() ? "the keys are the flags of shoal serve --help without their dashes"
                           : cat("did you mean ", nearest, "?");
  return Status::error(Code::kInvalidArgument,
                       cat(entry.where, ": unknown key ",
                           shown(entry.key.substr(0, entry.key.find(':'))), "; ", hint));
}

/// Each value of an entry is a setting, or all are one between commas.
Status add_entry(const ConfigEntry& entry, const FlagEntry& flag, std::vector<Setting>* settings) {
  const Several several = flag.value.several;
  std::vector<std::string> values = entry.values;
  if (entry.is_list && several == Several::kNo)
    return Status::error(Code::kInvalidArgument, cat(entry.where, ": ", key_of(flag.names[0]),
                                                     " takes one value, not a list"));
  if (several == Several::kCommas && !values.empty()) values = {*flag_text(values)};
  for (const std::string& value : values) {
    SHOAL_ASSIGN_OR_RETURN(Setting setting, make_setting(flag, value, Source::kFile, entry.where));
    settings->push_back(std::move(setting));
  }
  return {};
}

Status add_file(const std::vector<FlagEntry>& flags, const Setting& file,
                std::vector<Setting>* settings) {
  SHOAL_ASSIGN_OR_RETURN(const std::vector<ConfigEntry> entries,
                         read_config(file.text, name_of(file)));
  std::map<std::string, std::string> seen;  // flag -> where
  for (const ConfigEntry& entry : entries) {
    SHOAL_ASSIGN_OR_RETURN(const FlagEntry* flag, flag_of(entry, flags));
    const auto [first, is_new] = seen.emplace(flag->names[0], entry.where);
    if (!is_new)
      return Status::error(Code::kInvalidArgument,
                           cat(entry.where, ": ", key_of(flag->names[0]), " is set at ",
                               first->second, " already; remove one of the two"));
    SHOAL_RETURN_IF_ERROR(add_entry(entry, *flag, settings));
  }
  return {};
}

}  // namespace

Environment shoal_environment() {
  Environment found;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (text.starts_with(kVariablePrefix) && equals != std::string_view::npos)
      found.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return found;
}

void add_config_flag(FlagParser& parser, std::string* file) {
  parser.group("Configuration");
  parser.add_value("--config", path("FILE"),
                   "A YAML file (max-num-seqs: 16). Variables (SHOAL_MAX_NUM_SEQS) win over it, "
                   "flags over both. --host, --port, --grpc-port and --health-port have no "
                   "variable: Kubernetes sets SHOAL_PORT itself",
                   words_as_they_are(file));
}

void add_configuration_flags(FlagParser& parser, ConfigurationFlags* flags) {
  add_config_flag(parser, &flags->file);
  parser.add_switch("--print-config",
                    "Print every flag's value and who gave it, as a file for --config, and exit",
                    &flags->print);
  parser.add_switch("--json", "With --print-config: print one JSON object", &flags->json);
}

Status check_configuration_flags(const ConfigurationFlags& flags) {
  if (flags.print || !flags.json) return {};
  return Status::error(Code::kInvalidArgument, "--json needs --print-config");
}

Result<std::vector<Setting>> settings_elsewhere(const FlagParser& parser,
                                                const Environment& environment,
                                                const std::vector<Setting>& given) {
  const std::vector<FlagEntry> flags = settable(parser);
  std::vector<Setting> settings;
  SHOAL_RETURN_IF_ERROR(add_environment(flags, environment, &settings));
  const auto names_file = [](const Setting& setting) { return setting.flag == kConfig; };
  auto file = std::find_if(given.rbegin(), given.rend(), names_file);  // the last one counts
  const auto variable = std::find_if(settings.begin(), settings.end(), names_file);
  if (file != given.rend()) {
    SHOAL_RETURN_IF_ERROR(add_file(flags, *file, &settings));
  } else if (variable != settings.end()) {
    SHOAL_RETURN_IF_ERROR(add_file(flags, Setting(*variable), &settings));
  }
  return settings;
}

std::string list_of_settings(const std::vector<Setting>& settings) {
  std::string list;
  for (const Setting& setting : settings) {
    if (setting.source == Source::kCommandLine) continue;
    const std::string entry = cat(key_of(setting.flag), " (", setting.where, ")");
    if (!list.ends_with(entry)) list += (list.empty() ? "" : ", ") + entry;
  }
  return list;
}

Status with_settings(const Status& status, const std::vector<Setting>& settings) {
  constexpr size_t kMost = 300;
  std::string list = list_of_settings(settings);
  if (status.ok() || list.empty()) return status;
  if (list.size() > kMost) list = list.substr(0, kMost) + "...";
  return Status::error(status.code(),
                       cat(status.message(), "; set elsewhere than on the command line: ", list));
}

}  // namespace shoal
