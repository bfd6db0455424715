#pragma once
#include <memory>

#include "server/grpc/dialect.h"

#include "kserve/inference.pb.h"

namespace shoal {

/// inference.GRPCInferenceService/ModelInfer.
std::unique_ptr<Dialect> make_infer_dialect();

/// Reads a request of ModelInfer, or of ModelStreamInfer if `of_stream`. Errors: NOT_FOUND: another
/// model or version; others are those of read_infer_request().
Result<IncomingRequest, grpc::Status> read_infer(const ServingState& state,
                                                 inference::ModelInferRequest message,
                                                 bool of_stream);

/// Takes the id and the model's name out of a request that will not be parsed, or cannot be. A name
/// or an id that has more than 256 bytes is passed over, and its text stays as it was.
void read_infer_names(grpc::ByteBuffer* bytes, std::string* id, std::string* model_name);

/// OK if the server has this model in this version, which is "1" or empty.
grpc::Status check_infer_model(const ServingState& state, const std::string& name,
                               const std::string& version);

}  // namespace shoal
