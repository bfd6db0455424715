#include "runtime/transport/rung.h"

#include <algorithm>

#include "runtime/transport/rungs.h"

namespace shoal {
namespace {

/// Fastest first, and where the speed is the same the plainer one. Copied at the first call: the rungs live in other
/// files.
const std::vector<Rung>& all_rungs() {
  static const std::vector<Rung> all{kShmRung, kShmLeanRung, kMemfdRung, kCmaRung, kTcpRung};
  return all;
}

}  // namespace

std::span<const Rung> rungs() {
  return all_rungs();
}

std::string rung_names() {
  std::string names;
  for (const Rung& rung : all_rungs()) names += (names.empty() ? "" : ",") + std::string(rung.name);
  return names;
}

const Rung* find_rung(std::string_view name) {
  const auto it = std::find_if(all_rungs().begin(), all_rungs().end(), [&](const Rung& r) { return r.name == name; });
  return it == all_rungs().end() ? nullptr : &*it;
}

Result<std::vector<std::string>> parse_transport_order(std::string_view text) {
  std::vector<std::string> order;
  for (;;) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string name(text.substr(0, comma));
    if (find_rung(name) == nullptr) {
      return Status::error(Code::kInvalidArgument,
                           cat("unknown transport \"", name, "\"; known, in the default order: ", rung_names()));
    }
    if (std::find(order.begin(), order.end(), name) != order.end()) {
      return Status::error(Code::kInvalidArgument, cat("transport \"", name, "\" is named twice"));
    }
    order.push_back(name);
    if (comma == text.size()) return order;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace shoal
