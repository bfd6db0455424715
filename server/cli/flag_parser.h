#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/status.h"

namespace shoal {

/// The flags of one command: registered once, then read from the words after the command's name.
/// Accepts --flag value and --flag=value, `_` for `-` in names, and -tp. A flag given twice is set
/// twice: the last one counts, or both do where the setter appends.
class FlagParser {
 public:
  /// Takes a value over; its errors name the flag.
  using Setter = std::function<Status(std::string_view flag, std::string_view value)>;

  FlagParser(const std::string& command, const std::string& summary);
  ~FlagParser();

  /// Flags registered from here on stand under this heading in the help.
  void group(std::string heading);
  /// names: "--flag" or "--flag,--alias"; the first is the one that messages use.
  void add_value(const std::string& names, const std::string& value_name, const std::string& help,
                 Setter set);
  void add_switch(const std::string& name, const std::string& help, bool* target);
  /// A required word without a flag, such as MODEL. At most one.
  void add_positional(const std::string& name, const std::string& help, std::string* target);

  /// Sets what the words say. True: they ask for help, and nothing else was looked at.
  /// INVALID_ARGUMENT: an unknown flag (with the nearest known one), a missing or superfluous
  /// value, a missing positional, or a setter's own error.
  Result<bool> parse(std::span<const std::string> words);

  std::string help() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal
