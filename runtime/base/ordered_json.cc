#include "runtime/base/ordered_json.h"

#include "runtime/base/bounded_json.h"

namespace shoal {

Result<OrderedJson> parse_ordered_json(std::string_view text, std::string_view what,
                                       const JsonLimits& limits) {
  return parse_bounded_json<OrderedJson>(text, what, limits);
}

}  // namespace shoal
