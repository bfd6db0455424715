#include "server/cli/flag_parser.h"

#include <algorithm>
#include <cctype>

#include "runtime/base/split.h"
#include "runtime/base/text_values.h"
#include "server/cli/foreign_flags.h"

namespace shoal {

namespace {

bool one_command = false;

FlagParser::Setter switch_setter(bool* target) {
  return {[target](std::string_view, std::string_view text) -> Status {
            *target = text == "true";
            return {};
          },
          [target] { return std::optional<std::string>(*target ? "true" : "false"); }};
}

}  // namespace

void be_one_command() {
  one_command = true;
}

std::string as_typed(std::string_view command) {
  return cat("shoal", one_command ? "-" : " ", command);
}

std::string key_of(std::string_view flag) {
  std::string key(flag.starts_with("--") ? flag.substr(2) : flag);
  for (char& c : key) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return key;
}

std::string name_of(const Setting& setting) {
  switch (setting.source) {
    case Source::kCommandLine:
      return setting.flag;
    case Source::kEnvironment:
      return setting.where;
    case Source::kFile:
      return cat(setting.where, ": ", key_of(setting.flag));
  }
  return setting.flag;
}

struct FlagParser::Impl {
  Impl(std::string command_name, std::string summary)
      : command(std::move(command_name)), description(std::move(summary)) {
    note({.names = {"-h", "--help"}, .help = "This text"});
  }

  /// A flag as the parser knows it.
  struct Known {
    std::vector<std::string> names;
    std::optional<std::string> value_label;  ///< absent: it is a switch
    FlagParser::Setter setter;
  };
  /// What the words say.
  struct Words {
    std::vector<Setting> settings;
    std::vector<std::string> positionals;
    bool help = false;
  };
  void note(FlagEntry entry);
  const Known* find(std::string_view name) const;
  Result<Words> read(std::span<const std::string> words) const;
  Result<Setting> read_flag(std::span<const std::string> words, size_t* at,
                            const std::vector<std::string>& positionals) const;
  Result<std::string> switch_value(const std::string& name, const std::string& word) const;
  bool names_positional(std::string_view name) const;
  Status unknown_flag(const std::string& name) const;
  /// How many words without a flag there may be.
  size_t most_positionals() const { return positional.empty() ? 0 : 1; }
  Status stray_word(const std::vector<std::string>& words) const;
  Status take_positionals(const std::vector<std::string>& words);
  Status add_elsewhere();
  Status apply();

  std::string command;
  std::string description;
  std::vector<FlagGroup> groups = {{"Options", {}}};
  size_t group = 0;  // of the flags that are registered now
  std::vector<Known> known;
  std::string positional;  // the name of the positional, if there is one
  std::string positional_help;
  std::string* positional_target = nullptr;
  Operand operand = Operand::kNone;  // what the positional is
  StrayHint stray_hint;
  Elsewhere elsewhere;
  std::vector<Setting> settings;
};

FlagParser::FlagParser(const std::string& command, const std::string& summary)
    : impl_(std::make_unique<Impl>(command, summary)) {}
FlagParser::~FlagParser() = default;

/// Keeps a flag for groups(), under the heading of group().
void FlagParser::Impl::note(FlagEntry entry) {
  groups[group].flags.push_back(std::move(entry));
}

void FlagParser::group(const std::string& heading) {
  std::vector<FlagGroup>& groups = impl_->groups;
  const auto found = std::find_if(groups.begin(), groups.end(),
                                  [&](const FlagGroup& one) { return one.heading == heading; });
  impl_->group = static_cast<size_t>(found - groups.begin());
  if (found == groups.end()) groups.push_back({heading, {}});
}

void FlagParser::add_value(const std::string& names, const ValueForm& form, const std::string& help,
                           Setter set) {
  std::vector<std::string> spellings;
  for (const std::string_view name : split(names, ',')) spellings.emplace_back(name);
  impl_->note({.names = spellings,
               .help = help,
               .takes_value = true,
               .value = form,
               .initial = set.show ? set.show() : std::nullopt});
  impl_->known.push_back({std::move(spellings), form.label, std::move(set)});
}

void FlagParser::add_switch(const std::string& name, const std::string& help, bool* target) {
  impl_->note({.names = {name}, .help = help, .initial = *target ? "true" : "false"});
  impl_->known.push_back({{name}, std::nullopt, switch_setter(target)});
}

void FlagParser::add_positional(const std::string& name, const std::string& help,
                                std::string* target) {
  impl_->positional = name;
  impl_->positional_help = help;
  impl_->positional_target = target;
  impl_->operand = Operand::kModel;
}

void FlagParser::make_positional_optional() {
  impl_->operand = Operand::kModelOrNone;
}

void FlagParser::explain_stray_words(StrayHint hint) {
  impl_->stray_hint = std::move(hint);
}

void FlagParser::look_elsewhere(Elsewhere elsewhere) {
  impl_->elsewhere = std::move(elsewhere);
}

const FlagParser::Impl::Known* FlagParser::Impl::find(std::string_view name) const {
  const auto found = std::find_if(known.begin(), known.end(), [name](const Known& one) {
    return std::find(one.names.begin(), one.names.end(), name) != one.names.end();
  });
  return found == known.end() ? nullptr : &*found;
}

/// Whether this is how other servers' flags give what is a word without a flag here.
bool FlagParser::Impl::names_positional(std::string_view name) const {
  return positional == "MODEL" && find(name) == nullptr && is_model_flag(name);
}

Status FlagParser::Impl::unknown_flag(const std::string& name) const {
  const auto has = [this](std::string_view flag) { return find(flag) != nullptr; };
  std::vector<std::string> names = {"--help"};
  for (const Known& one : known) names.insert(names.end(), one.names.begin(), one.names.end());
  const std::optional<std::string> foreign = foreign_flag_hint(name, has);
  // A flag of another server is no misspelt one of this.
  const std::string nearest = foreign ? "" : nearest_word(name, names);
  std::string hint = foreign.value_or("");
  if (hint.empty())
    hint = nearest.empty() ? cat("see ", as_typed(command), " --help")
                           : cat("did you mean ", nearest, "?");
  return Status::error(Code::kInvalidArgument,
                       cat("unknown flag ", shown(name), " for ", command, "; ", hint));
}

/// The value of a switch, as it is written in this word.
Result<std::string> FlagParser::Impl::switch_value(const std::string& name,
                                                   const std::string& word) const {
  const size_t equals = word.find('=');
  if (equals == std::string::npos) return std::string("true");
  const std::string text = word.substr(equals + 1);
  if (elsewhere && (text == "true" || text == "false")) return text;
  return Status::error(Code::kInvalidArgument,
                       cat(name, " takes no value", elsewhere ? " but true and false" : "",
                           ", but has ", shown(word)));
}

/// The flag at words[*at], and its value, which may be the next word; *at is the last word read.
Result<Setting> FlagParser::Impl::read_flag(std::span<const std::string> words, size_t* at,
                                            const std::vector<std::string>& positionals) const {
  const std::string& word = words[*at];
  const size_t equals = word.find('=');
  std::string name = word.substr(0, equals);
  if (name == "-tp") name = "--tensor-parallel-size";  // vLLM's spelling
  std::replace(name.begin(), name.end(), '_', '-');
  const Known* flag = name.starts_with("--") ? find(name) : nullptr;
  const bool is_positional = names_positional(name);
  if (flag == nullptr && !is_positional) {
    // A word that does not belong here may be the command of which this is a flag.
    if (positionals.size() > most_positionals()) return stray_word(positionals);
    return unknown_flag(word.substr(0, equals));
  }
  Setting setting{.flag = is_positional ? positional : flag->names[0], .text = {}};
  if (!is_positional && !flag->value_label) {
    SHOAL_ASSIGN_OR_RETURN(setting.text, switch_value(name, word));
  } else if (equals != std::string::npos) {
    setting.text = word.substr(equals + 1);
  } else if (*at + 1 < words.size()) {
    setting.text = words[++*at];
  } else {
    return Status::error(
        Code::kInvalidArgument,
        cat(name, " needs a value: ", name, " ", is_positional ? positional : *flag->value_label));
  }
  return setting;
}

Result<FlagParser::Impl::Words> FlagParser::Impl::read(std::span<const std::string> words) const {
  Words out;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--") {
      out.positionals.insert(out.positionals.end(),
                             words.begin() + static_cast<std::ptrdiff_t>(i) + 1, words.end());
      break;
    }
    if (word.size() < 2 || word[0] != '-') {
      out.positionals.push_back(word);
      continue;
    }
    const std::string name = word.substr(0, word.find('='));
    if (name == "-h" || name == "--help") {
      out.help = true;
      return out;
    }
    SHOAL_ASSIGN_OR_RETURN(Setting setting, read_flag(words, &i, out.positionals));
    out.settings.push_back(std::move(setting));
  }
  return out;
}

/// The error of the first word that is one too many.
Status FlagParser::Impl::stray_word(const std::vector<std::string>& words) const {
  const std::string& word = words[most_positionals()];
  const std::string hint =
      stray_hint ? stray_hint(word)
                 : cat("a value with spaces needs quotes, see ", as_typed(command), " --help");
  return Status::error(Code::kInvalidArgument,
                       cat("unexpected argument ", shown(word), " for ", command, "; ", hint));
}

Status FlagParser::Impl::take_positionals(const std::vector<std::string>& words) {
  if (words.size() > most_positionals()) return stray_word(words);
  if (words.empty()) return {};
  const auto given = std::find_if(settings.begin(), settings.end(),
                                  [this](const Setting& one) { return one.flag == positional; });
  if (given != settings.end())
    return Status::error(Code::kInvalidArgument,
                         cat(positional, " is given twice: as ", shown(words[0]),
                             " and as --model ", shown(given->text), "; leave one out"));
  settings.push_back({.flag = positional, .text = words[0]});
  return {};
}

Status FlagParser::Impl::add_elsewhere() {
  if (!elsewhere) return {};
  SHOAL_ASSIGN_OR_RETURN(std::vector<Setting> more, elsewhere(settings));
  more.insert(more.begin(), settings.begin(), settings.end());
  const auto overruled = [&more](const Setting& setting) {
    return std::any_of(more.begin(), more.end(), [&setting](const Setting& other) {
      return other.flag == setting.flag && other.source < setting.source;
    });
  };
  settings.clear();
  std::copy_if(more.begin(), more.end(), std::back_inserter(settings),
               [&overruled](const Setting& setting) { return !overruled(setting); });
  return {};
}

Status FlagParser::Impl::apply() {
  bool has_positional = operand != Operand::kModel;
  for (const Setting& setting : settings) {
    if (setting.flag == positional) {
      *positional_target = setting.text;
      has_positional = true;
    } else {
      SHOAL_RETURN_IF_ERROR(find(setting.flag)->setter.set(name_of(setting), setting.text));
    }
  }
  if (has_positional) return {};
  return Status::error(Code::kInvalidArgument, cat(command, " needs ", positional, ": ",
                                                   as_typed(command), " ", positional, " ..."));
}

Result<bool> FlagParser::parse(std::span<const std::string> words) {
  SHOAL_ASSIGN_OR_RETURN(Impl::Words in, impl_->read(words));
  if (in.help) return true;
  impl_->settings = std::move(in.settings);
  SHOAL_RETURN_IF_ERROR(impl_->take_positionals(in.positionals));
  SHOAL_RETURN_IF_ERROR(impl_->add_elsewhere());
  SHOAL_RETURN_IF_ERROR(impl_->apply());
  return false;
}

CommandEntry FlagParser::entry() const {
  CommandEntry entry{.name = impl_->command,
                     .operand = impl_->operand,
                     .description = impl_->description,
                     .operand_help = impl_->positional_help,
                     .groups = impl_->groups};
  // A group that has --help alone is the least important.
  if (entry.groups[0].flags.size() == 1)
    std::rotate(entry.groups.begin(), entry.groups.begin() + 1, entry.groups.end());
  return entry;
}

const std::vector<FlagGroup>& FlagParser::groups() const {
  return impl_->groups;
}

const std::string& FlagParser::positional() const {
  return impl_->positional;
}

const std::vector<Setting>& FlagParser::settings() const {
  return impl_->settings;
}

std::optional<std::string> FlagParser::value_of(std::string_view flag) const {
  return shows(flag) ? impl_->find(flag)->setter.show() : std::nullopt;
}

bool FlagParser::shows(std::string_view flag) const {
  const Impl::Known* found = impl_->find(flag);
  return found != nullptr && found->setter.show;
}

}  // namespace shoal
