#pragma once
#include <string>

#include "server/cli/configuration.h"

namespace shoal {

/// Every flag with its value and who gave it, as YAML that --config reads. A flag without a value
/// is a comment, and a key of the API is never shown. Call it after parse().
std::string configuration_yaml(const FlagParser& parser, const Environment& environment);

/// The same as one JSON object: {"max-num-seqs": {"value": "16", "source": "SHOAL_MAX_NUM_SEQS"}}.
/// Values are texts, as on a command line; those of switches are booleans, those of flags that may
/// be repeated are lists, and null means that there is none, or that it is a secret.
std::string configuration_json(const FlagParser& parser, const Environment& environment);

}  // namespace shoal
