#pragma once
#include <map>
#include <string>
#include <vector>

#include "server/cli/flag_parser.h"
#include "server/cli/flag_variables.h"

namespace shoal {

// Settings of a command that do not stand on its command line: variables of the environment, and
// the file of --config. The command line wins over the environment, and the environment over the
// file.

/// Variables whose names begin with SHOAL_, with their values.
using Environment = std::map<std::string, std::string>;

/// Those of this process.
Environment shoal_environment();

/// The flags about the configuration itself.
struct ConfigurationFlags {
  std::string file;    ///< --config; only settings_elsewhere() reads it
  bool print = false;  ///< --print-config
  bool json = false;   ///< with --print-config
};

/// Adds --config, with the flags that may stand in it.
void add_config_flag(FlagParser& parser, std::string* file);
/// The same, and --print-config.
void add_configuration_flags(FlagParser& parser, ConfigurationFlags* flags);
/// INVALID_ARGUMENT: --json without --print-config.
Status check_configuration_flags(const ConfigurationFlags& flags);

/// The settings of the environment and the file, for the flags of this parser. `given`: the
/// settings of the command line. A variable counts as absent if it is empty or belongs to no flag.
/// Errors: those of read_config(). INVALID_ARGUMENT, naming the file and the line: a key that no
/// flag has (with the nearest one) or that stands there twice, a list for a flag that takes one
/// value; and naming also the variable: a switch that is neither true nor false.
Result<std::vector<Setting>> settings_elsewhere(const FlagParser& parser,
                                                const Environment& environment,
                                                const std::vector<Setting>& given);

/// "max-num-seqs (SHOAL_MAX_NUM_SEQS), dtype (shoal.yaml:3)": what was set elsewhere than on the
/// command line. Empty if nothing was.
std::string list_of_settings(const std::vector<Setting>& settings);

/// The error of a check that concerns several flags, with a note of what was set elsewhere.
Status with_settings(const Status& status, const std::vector<Setting>& settings);

}  // namespace shoal
