#pragma once
#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "server/cli/command_table.h"

namespace shoal {

/// Who gave a flag its value. The first of them wins.
enum class Source { kCommandLine, kEnvironment, kFile };

/// A value that somebody gave a flag, or the word without a flag (MODEL).
struct Setting {
  std::string flag;  ///< its first spelling, such as "--max-num-seqs", or "MODEL"
  std::string text;  ///< of a switch: "true" or "false"
  Source source = Source::kCommandLine;
  std::string where = {};  ///< "SHOAL_MAX_NUM_SEQS" or "FILE:LINE"; empty on the command line
};

/// Says that this program is one command of shoal and no more, so that help and errors name it so.
/// Call it before any parser is made.
void be_one_command();
/// What a user types to run a command: "shoal doctor", or "shoal-doctor" if this program is it.
std::string as_typed(std::string_view command);

/// "max-num-seqs" of "--max-num-seqs", "model" of "MODEL": what a file calls a flag.
std::string key_of(std::string_view flag);
/// What errors call it: "--max-num-seqs", "SHOAL_MAX_NUM_SEQS" or "FILE:LINE: max-num-seqs".
std::string name_of(const Setting& setting);

/// The flags of one command: registered once, then read from the words after the command's name.
/// Accepts --flag value and --flag=value, `_` for `-` in names, and -tp. If a flag is given twice,
/// its setter is called twice: the last value counts, or both do if the setter appends.
class FlagParser {
 public:
  /// Takes one value of a flag. Its errors name the flag as `name` does.
  using Set = std::function<Status(std::string_view name, std::string_view value)>;
  /// The value that a flag has now, written as its setter takes it; nullopt: it has none.
  using Show = std::function<std::optional<std::string>()>;
  struct Setter {
    template <std::invocable<std::string_view, std::string_view> F>
    Setter(F f, Show shown = nullptr) : set(std::move(f)), show(std::move(shown)) {}

    Set set;
    Show show;  ///< null: unknown
  };
  /// What gives values to flags that the words leave out, from these settings of the words.
  using Elsewhere = std::function<Result<std::vector<Setting>>(const std::vector<Setting>& given)>;

  FlagParser(const std::string& command, const std::string& summary);
  ~FlagParser();

  /// Puts flags that are registered from here on under this heading in the help. The headings stand
  /// there in the order in which they were given first.
  void group(const std::string& heading);
  /// names: "--flag" or "--flag,--alias"; messages use the first.
  void add_value(const std::string& names, const ValueForm& form, const std::string& help,
                 Setter set);
  void add_switch(const std::string& name, const std::string& help, bool* target);
  /// Registers a required word without a flag, such as MODEL. There can be at most one. MODEL may
  /// also be given as other servers take it (is_model_flag()).
  void add_positional(const std::string& name, const std::string& help, std::string* target);
  /// The word without a flag may be left out.
  void make_positional_optional();
  /// What the error about a word too many says of it: half a sentence that says what to do.
  using StrayHint = std::function<std::string(const std::string& word)>;
  void explain_stray_words(StrayHint hint);
  /// parse() asks this for more settings. A setting of a flag that a better source sets too is
  /// dropped. Switches then also take --switch=false, so that the words can undo the others.
  void look_elsewhere(Elsewhere elsewhere);

  /// Reads the words and calls the setters. Returns true if the words ask for help; then nothing
  /// else is read. Errors: INVALID_ARGUMENT for an unknown flag (with the nearest known one), a
  /// missing or superfluous value, a missing positional, or from a setter; those of `Elsewhere`.
  Result<bool> parse(std::span<const std::string> words);

  /// What was registered, as data: the description given to the constructor, and the flags,
  /// including --help.
  CommandEntry entry() const;
  const std::vector<FlagGroup>& groups() const;
  /// The name of the word without a flag; empty if there is none.
  const std::string& positional() const;

  /// What parse() has applied, the words' settings first.
  const std::vector<Setting>& settings() const;
  /// The value that a flag has now, by its first spelling. nullopt: none, or it is not known.
  std::optional<std::string> value_of(std::string_view flag) const;
  /// Whether the flag's setter can show its value, so that value_of() knows it.
  bool shows(std::string_view flag) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal
