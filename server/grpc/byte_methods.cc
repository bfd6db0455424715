#include "server/grpc/byte_methods.h"

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include "server/grpc/grpc_status.h"
#include "server/grpc/wire_message.h"

namespace shoal {

namespace {

constexpr size_t kSmallBytes = size_t{64} << 10;

}  // namespace

grpc::ByteBuffer to_bytes(const google::protobuf::Message& message) {
  grpc::Slice slice(message.ByteSizeLong());
  message.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(slice.begin()));
  return {&slice, 1};
}

grpc::Status parse_small(grpc::ByteBuffer* bytes, google::protobuf::Message* message) {
  if (bytes->Length() > kSmallBytes)
    return to_grpc_status(
        Status::error(Code::kInvalidArgument, cat("the request has ", bytes->Length(),
                                                  " bytes; of one without a prompt at "
                                                  "most ",
                                                  kSmallBytes, " are read")),
        {.reason = "INVALID_REQUEST"});
  const WireRefusal refusal = parse_message(bytes, {.max_ids = kSmallBytes}, message);
  return refusal.ok() ? grpc::Status::OK : to_grpc_status(refusal);
}

}  // namespace shoal
