#include "server/grpc/call_key.h"

#include <string_view>

#include "server/grpc/grpc_status.h"

namespace shoal {

grpc::Status check_key(const grpc::ServerContextBase& context, const ApiKeys& keys) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find("authorization");
  const bool brought = found != metadata.end();
  const std::string_view value =
      brought ? std::string_view(found->second.data(), found->second.size()) : std::string_view();
  if (keys.allow(value)) return grpc::Status::OK;
  return to_grpc_status(
      Status::error(Code::kUnauthenticated,
                    brought ? "the API key is not valid here"
                            : "this server needs an API key: send it as metadata \"authorization: "
                              "Bearer KEY\""),
      {.reason = "INVALID_API_KEY"});
}

}  // namespace shoal
