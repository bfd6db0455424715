#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "server/cli/command_table.h"

namespace shoal {

/// The flags of one command: registered once, then read from the words after the command's name.
/// Accepts --flag value and --flag=value, `_` for `-` in names, and -tp. If a flag is given twice,
/// its setter is called twice: the last value counts, or both do if the setter appends.
class FlagParser {
 public:
  /// Takes one value of a flag. Its errors name the flag.
  using Setter = std::function<Status(std::string_view flag, std::string_view value)>;

  FlagParser(const std::string& command, const std::string& summary);
  ~FlagParser();

  /// Puts flags that are registered from here on under this heading in the help.
  void group(std::string heading);
  /// names: "--flag" or "--flag,--alias"; messages use the first.
  void add_value(const std::string& names, const ValueForm& form, const std::string& help,
                 Setter set);
  void add_switch(const std::string& name, const std::string& help, bool* target);
  /// Registers a required word without a flag, such as MODEL. There can be at most one.
  void add_positional(const std::string& name, const std::string& help, std::string* target);

  /// Reads the words and calls the setters. Returns true if the words ask for help; then nothing
  /// else is read. Errors: INVALID_ARGUMENT for an unknown flag (with the nearest known one), a
  /// missing or superfluous value, a missing positional, or from a setter.
  Result<bool> parse(std::span<const std::string> words);

  std::string help() const;
  /// What was registered, as data: the description given to the constructor, and the flags,
  /// including --help.
  const std::string& description() const;
  const std::vector<FlagGroup>& groups() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal
