#pragma once
#include "runtime/transport/facts/fact_files.h"
#include "runtime/transport/facts/host_facts.h"

namespace shoal {

/// attempt: the read is tried between two forked children, which takes a millisecond or two, and at
/// most 200 ms.
CmaFacts cma_facts(const SystemPaths& paths, bool attempt);

}  // namespace shoal
