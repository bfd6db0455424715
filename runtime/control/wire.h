#pragma once
#include <string>
#include <string_view>

#include "runtime/control/messages.h"

namespace shoal {

/// Messages as bytes and back. Decoding bytes that are no message of that direction is INTERNAL.
std::string encode(const FrontMessage& message);
std::string encode(const WorkerMessage& message);
Result<FrontMessage> decode_front_message(std::string_view bytes);
Result<WorkerMessage> decode_worker_message(std::string_view bytes);

}  // namespace shoal
