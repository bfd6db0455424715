#include "server/cli/flag_parser.h"

#include <CLI/CLI.hpp>  // only here, because it is slow to compile and it throws
#include <algorithm>

#include "runtime/base/text_values.h"

namespace shoal {

struct FlagParser::Impl {
  Impl(const std::string& command_name, const std::string& summary)
      : command(command_name), description(summary), app(summary, "shoal " + command_name) {
    app.set_help_flag("-h,--help", "This text");
    app.get_formatter()->column_width(34);
    app.get_formatter()->label("REQUIRED", "");
    note({"-h", "--help"}, "This text");
  }

  /// What CLI11 is given: known flags in their first spelling, each value as a separate word, and
  /// positionals at the end.
  struct Words {
    std::vector<std::string> flags;
    std::vector<std::string> positionals;
    bool help = false;
  };
  void note(std::vector<std::string> names, const std::string& help,
            const ValueForm* form = nullptr);
  Result<Words> normalise(std::span<const std::string> words);
  Status unknown_flag(const std::string& name) const;

  std::string command;
  std::string description;
  CLI::App app;
  std::string heading = "Options";
  std::vector<FlagGroup> groups;
  std::string positional;  // the name of the positional, if there is one
  Status failed;           // the first setter's error
};

FlagParser::FlagParser(const std::string& command, const std::string& summary)
    : impl_(std::make_unique<Impl>(command, summary)) {}
FlagParser::~FlagParser() = default;

/// Keeps a flag for groups().
void FlagParser::Impl::note(std::vector<std::string> names, const std::string& help,
                            const ValueForm* form) {
  if (groups.empty() || groups.back().heading != heading) groups.push_back({heading, {}});
  groups.back().flags.push_back(
      {std::move(names), help, form != nullptr, form == nullptr ? "" : *form});
}

void FlagParser::group(std::string heading) {
  impl_->heading = std::move(heading);
}

void FlagParser::add_value(const std::string& names, const ValueForm& form, const std::string& help,
                           Setter set) {
  const std::string flag = names.substr(0, names.find(','));
  const auto take = [impl = impl_.get(), flag, set = std::move(set)](const CLI::results_t& values) {
    for (const std::string& value : values) {
      if (impl->failed.ok()) impl->failed = set(flag, value);
    }
    return true;  // report no failure to CLI11, because our own messages are better
  };
  impl_->app.add_option(names, take, help)
      ->type_name(form.label)
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group(impl_->heading);
  impl_->note(CLI::detail::split(names, ','), help, &form);
}

void FlagParser::add_switch(const std::string& name, const std::string& help, bool* target) {
  impl_->app.add_flag(name, *target, help)->group(impl_->heading);
  impl_->note({name}, help);
}

void FlagParser::add_positional(const std::string& name, const std::string& help,
                                std::string* target) {
  impl_->positional = name;
  impl_->app.add_option(name, *target, help)
      ->type_name("")
      ->required();  // only for the help; parse() checks it with a better message
}

Status FlagParser::Impl::unknown_flag(const std::string& name) const {
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& long_name : option->get_lnames()) known.push_back("--" + long_name);
  }
  const std::string nearest = nearest_word(name, known);
  return Status::error(Code::kInvalidArgument,
                       cat("unknown flag ", shown(name), " for ", command, "; ",
                           nearest.empty() ? cat("see shoal ", command, " --help")
                                           : cat("did you mean ", nearest, "?")));
}

Result<FlagParser::Impl::Words> FlagParser::Impl::normalise(std::span<const std::string> words) {
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
    const size_t equals = word.find('=');
    std::string name = word.substr(0, equals);
    if (name == "-h" || name == "--help") {
      out.help = true;
      return out;
    }
    if (name == "-tp") name = "--tensor-parallel-size";  // vLLM's spelling, unknown to CLI11
    std::replace(name.begin(), name.end(), '_', '-');
    const CLI::Option* option = name.starts_with("--") ? app.get_option_no_throw(name) : nullptr;
    if (option == nullptr) return unknown_flag(word.substr(0, equals));
    out.flags.push_back(name);
    if (option->get_items_expected_max() == 0) {  // it is a switch
      if (equals != std::string::npos) {
        return Status::error(Code::kInvalidArgument,
                             cat(name, " takes no value, but has ", shown(word)));
      }
    } else if (equals != std::string::npos) {
      out.flags.push_back(word.substr(equals + 1));
    } else if (i + 1 < words.size()) {
      out.flags.push_back(words[++i]);
    } else {
      return Status::error(Code::kInvalidArgument,
                           cat(name, " needs a value: ", name, " ", option->get_type_name()));
    }
  }
  return out;
}

Result<bool> FlagParser::parse(std::span<const std::string> words) {
  SHOAL_ASSIGN_OR_RETURN(Impl::Words in, impl_->normalise(words));
  if (in.help) return true;
  const size_t allowed = impl_->positional.empty() ? 0 : 1;
  if (in.positionals.size() > allowed) {
    return Status::error(
        Code::kInvalidArgument,
        cat("unexpected argument ", shown(in.positionals[allowed]), " for ", impl_->command,
            "; a value with spaces needs quotes, see shoal ", impl_->command, " --help"));
  }
  if (in.positionals.size() < allowed) {
    return Status::error(Code::kInvalidArgument,
                         cat(impl_->command, " needs ", impl_->positional, ": shoal ",
                             impl_->command, " ", impl_->positional, " ..."));
  }
  std::vector<std::string> all = std::move(in.flags);
  all.push_back("--");
  all.insert(all.end(), in.positionals.begin(), in.positionals.end());
  std::reverse(all.begin(), all.end());  // CLI11 takes its words in reverse order
  try {
    impl_->app.parse(std::move(all));
  } catch (const std::exception& error) {
    return Status::error(Code::kInvalidArgument, cat(impl_->command, ": ", error.what()));
  }
  if (!impl_->failed.ok()) return impl_->failed;
  return false;
}

std::string FlagParser::help() const {
  return impl_->app.help();
}

const std::string& FlagParser::description() const {
  return impl_->description;
}

const std::vector<FlagGroup>& FlagParser::groups() const {
  return impl_->groups;
}

}  // namespace shoal
