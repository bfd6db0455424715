#pragma once
#include <cstddef>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>
#include <string>
#include <string_view>

#include "runtime/base/status.h"
#include "server/serving/serving_state.h"

namespace google::protobuf {
class Message;
}

namespace shoal {

/// Why a message cannot be read, and the path of the field that is to blame. RequestField does not
/// have these fields, because only the wire format has them.
struct WireRefusal {
  bool ok() const { return status.ok(); }

  Status status;
  std::string field;
};

/// INVALID_ARGUMENT about this field. The message is its path followed by `what` is wrong.
WireRefusal refuse_field(std::string field, std::string_view what);
grpc::Status to_grpc_status(const WireRefusal& refusal);

struct WireBounds {
  size_t max_ids = 0;  ///< the most numbers in one list
};
/// A list may have as many numbers as the model length.
WireBounds wire_bounds(const ServingState& state);

/// Parses the bytes as a message of this type, and clears them as soon as it can. Refused with the
/// field, if there is one: bytes that are not such a message, a text that is not UTF-8, more than
/// 64 Ki messages inside of it, nested more than 100 deep, and longer lists than the bounds allow.
/// The memory that it takes is at most a few times that of the bytes.
WireRefusal parse_message(grpc::ByteBuffer* bytes, const WireBounds& bounds,
                          google::protobuf::Message* message);

}  // namespace shoal
