#pragma once

namespace shoal {

/// What every program of ours does first in main(): standard descriptors are open, and signals have
/// the meaning that the code relies on.
void begin_process(char** argv);

}  // namespace shoal
