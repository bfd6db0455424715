#pragma once
#include <grpcpp/support/server_callback.h>
#include <memory>
#include <optional>

#include "server/grpc/byte_methods.h"
#include "server/grpc/dialect.h"
#include "server/grpc/generate_stream.h"

namespace shoal {

/// Checks that this program has not closed the connection, and the key alone: UNAUTHENTICATED
/// unless there are no keys, or the metadata brings one as "authorization: Bearer KEY". Every
/// method but those that tell health asks for it, before it looks at metadata.
grpc::Status check_key(const grpc::CallbackServerContext& context, const ServiceParts& parts);

/// Checks what every call must have that makes work: the same as check_key, a deadline that has not
/// passed, and a connection within the limit.
grpc::Status check_call(const grpc::CallbackServerContext& context, const ServiceParts& parts);

/// The reactor of a call that ends with this error before anything of it is read.
ByteReactor* refuse_call(const grpc::Status& why);

/// Checks the call and starts its GenerateStream. priority: as in GenerationRequest.
ByteReactor* start_call(const ServiceParts& parts, std::shared_ptr<const Dialect> dialect,
                        grpc::CallbackServerContext* context, std::optional<int64_t> priority = {});

}  // namespace shoal
