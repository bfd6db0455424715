#pragma once
#include <cstddef>
#include <string>

#include "server/serving/refused_request.h"

/// Why the Intake does not take a request.
namespace shoal::refusals {

RefusedRequest no_room(size_t budget_bytes);
RefusedRequest no_room_for_answer(size_t budget_bytes);
RefusedRequest too_many();
RefusedRequest evicted_for_another();
RefusedRequest too_slow(int milliseconds);
RefusedRequest stopped(int milliseconds);
RefusedRequest id_in_use(const std::string& id);

}  // namespace shoal::refusals
