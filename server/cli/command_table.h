#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace shoal {

// The command line as data. FlagParser fills it while flags are registered, and the man page and
// the shells' completions are made from it, so they can neither name a flag that the program does
// not have nor miss one.

/// What a flag's value looks like.
struct ValueForm {
  ValueForm(const char* shown) : label(shown) {}  // implicit: most values are just a name such as N

  std::string label;                 ///< as the help shows it: N, FILE, on|off
  std::vector<std::string> choices;  ///< every value it may have; empty if they cannot be listed
  bool is_path = false;              ///< a shell may offer file names
  /// Whether the flag may have several values. With commas: they may stand in one word.
  enum class Several { kNo, kCommas, kRepeated } several = Several::kNo;
  bool is_secret = false;  ///< nothing may show it
};

/// One of these values; the help shows them all, or the label.
ValueForm one_of(std::vector<std::string> choices, std::string label = "");
/// A file or folder.
ValueForm path(const char* label);
/// Values between commas.
ValueForm list_of(const char* label);

struct FlagEntry {
  std::vector<std::string> names;  ///< "--tensor-parallel-size", "--tp"; messages use the first
  std::string help;
  bool takes_value = false;
  ValueForm value = "";  ///< meaningless unless takes_value
  /// The value if nobody sets the flag, in the form that the setter takes. nullopt: there is no
  /// such value, or it is not known yet.
  std::optional<std::string> initial = {};
};

/// Flags under one heading of the help.
struct FlagGroup {
  std::string heading;
  std::vector<FlagEntry> flags;
};

/// What follows a command besides its flags.
enum class Operand { kNone, kModel, kModelOrNone, kCommand };

/// The operand as usage lines show it: "", "MODEL", "[MODEL]" or "-- COMMAND".
std::string operand_text(Operand operand);

/// A command line that shows a use of a command.
struct Example {
  std::string words;  ///< all but the program's name
  std::string what;   ///< what it does, as half a sentence
};

struct CommandEntry {
  std::string name;  ///< one word, or two: "bench decode"
  Operand operand = Operand::kNone;
  std::string summary = {};       ///< half a line, as in the list of commands
  std::string description = {};   ///< whole sentences, for the command's own help
  std::string operand_help = {};  ///< what the operand is; may be empty
  std::vector<FlagGroup> groups = {};
  std::vector<Example> examples = {};
};

/// Commands whose names begin with the same word, which is no command by itself.
struct CommandFamily {
  std::string name;         ///< that word
  std::string description;  ///< whole sentences, a paragraph on each line
  std::vector<CommandEntry> commands;
};

/// Every command, in the order of the help. Each call builds the list again.
std::vector<CommandEntry> command_table();

/// All of it as one JSON object, for programs.
std::string help_json(const std::vector<CommandEntry>& commands);

/// The manual page shoal.1, in troff's man macros.
std::string man_page(const std::vector<CommandEntry>& commands);

// Each returns a script for its shell, which completes commands, flags, and those values that can
// be listed.
std::string bash_completion(const std::vector<CommandEntry>& commands);
std::string zsh_completion(const std::vector<CommandEntry>& commands);
std::string fish_completion(const std::vector<CommandEntry>& commands);

}  // namespace shoal
