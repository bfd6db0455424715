#include "runtime/transport/host_facts.h"
namespace shoal {
HostFacts gather_host_facts(const FactsRequest&) { HostFacts f; f.dev_shm.exists = true; f.dev_shm.size_bytes=0; f.cma.tried=true; return f; }
std::string to_json(const HostFacts&) { return "{}"; }
}
