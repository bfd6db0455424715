// Feeds arbitrary bytes to what reads the requests of each gRPC API. The first byte chooses the
// API. Besides not crashing and not taking long: a refusal has one of two codes and a message, and
// a request that was read has exactly one form of prompt and what writes its answer.
#include <cstdint>
#include <cstdlib>
#include <grpcpp/grpcpp.h>
#include <memory>

#include "server/facades/infer_dialect.h"
#include "server/facades/vllm_dialect.h"
#include "server/grpc/openengine_dialect.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

using Incoming = shoal::Result<shoal::IncomingRequest, grpc::Status>;

void check(const Incoming& incoming) {
  if (!incoming.ok()) {
    const grpc::StatusCode code = incoming.error().error_code();
    require(code == grpc::StatusCode::INVALID_ARGUMENT || code == grpc::StatusCode::NOT_FOUND);
    require(!incoming.error().error_message().empty());
    return;
  }
  require(incoming->answer != nullptr && !incoming->id.empty());
  require(incoming->request.prompt.has_value() != incoming->request.prompt_ids.has_value());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const shoal::ServingState state({"model"});
  static const std::unique_ptr<shoal::Dialect> dialects[] = {
      shoal::make_openengine_dialect(), shoal::make_vllm_dialect(), shoal::make_infer_dialect()};
  if (size == 0) return 0;
  const grpc::Slice slice(data + 1, size - 1);
  grpc::ByteBuffer bytes(&slice, 1);
  const size_t chosen = data[0] % (std::size(dialects) + 1);
  if (chosen < std::size(dialects)) {
    check(dialects[chosen]->read(state, &bytes));
    return 0;
  }
  inference::ModelInferRequest message;
  if (message.ParseFromArray(data + 1, static_cast<int>(size - 1)))
    check(shoal::read_infer(state, std::move(message), true));
  return 0;
}
