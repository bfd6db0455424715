#include "server/facades/infer_dialect.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <utility>

#include "models/tokenizer/unicode.h"
#include "server/facades/infer_answer.h"
#include "server/facades/infer_request.h"
#include "server/grpc/grpc_status.h"

namespace shoal {

namespace {

class InferDialect final : public Dialect {
 public:
  std::string_view method() const override { return "ModelInfer"; }

  Result<IncomingRequest, grpc::Status> read(const ServingState& state,
                                             grpc::ByteBuffer* bytes) const override {
    inference::ModelInferRequest message;
    SHOAL_RETURN_IF_ERROR(to_grpc_status(parse_message(bytes, wire_bounds(state), &message)));
    return read_infer(state, std::move(message), false);
  }

  std::string_view field_path(RequestField field) const override {
    switch (field) {
      case RequestField::kNone:
      case RequestField::kRequestId:
        return "";
      case RequestField::kPrompt:
        return "inputs[text_input]";
      case RequestField::kPromptIds:
        return "inputs[input_ids]";
      default:
        return field_name(field);
    }
  }
};

}  // namespace

grpc::Status check_infer_model(const ServingState& state, const std::string& name,
                               const std::string& version) {
  SHOAL_RETURN_IF_ERROR(to_grpc_status(state.check_model(name), {.reason = "MODEL_NOT_FOUND"}));
  if (version.empty() || version == kInferVersion) return grpc::Status::OK;
  return to_grpc_status(
      Status::error(Code::kNotFound, cat("the model has version 1 only, not \"", version, "\"")),
      {.reason = "MODEL_NOT_FOUND"});
}

void read_infer_names(grpc::ByteBuffer* bytes, std::string* id, std::string* model_name) {
  using google::protobuf::internal::WireFormatLite;
  constexpr uint32_t kMostBytes = 256;
  grpc::ProtoBufferReader reader(bytes);
  google::protobuf::io::CodedInputStream in(&reader);
  while (const uint32_t tag = in.ReadTag()) {
    const int field = WireFormatLite::GetTagFieldNumber(tag);
    const bool has_length =
        WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
    std::string* const name = field == inference::ModelInferRequest::kIdFieldNumber ? id
                              : field == inference::ModelInferRequest::kModelNameFieldNumber
                                  ? model_name
                                  : nullptr;
    if (name == nullptr || !has_length) {
      if (!WireFormatLite::SkipField(&in, tag)) return;
      continue;
    }
    uint32_t length = 0;
    if (!in.ReadVarint32(&length)) return;
    if (length > kMostBytes ? !in.Skip(static_cast<int>(length))
                            : !in.ReadString(name, static_cast<int>(length)))
      return;
    *name = to_valid_utf8(*name);
  }
}

Result<IncomingRequest, grpc::Status> read_infer(const ServingState& state,
                                                 inference::ModelInferRequest message,
                                                 bool of_stream) {
  SHOAL_RETURN_IF_ERROR(check_infer_model(state, message.model_name(), message.model_version()));
  Result<InferRequest, WireRefusal> read = read_infer_request(std::move(message));
  if (!read.ok()) return to_grpc_status(read.error());
  if (read->stream && !of_stream)
    return to_grpc_status(refuse_field(
        "inputs[stream]", " must be false: ModelStreamInfer gives an answer in several messages"));
  if (read->model_name.empty()) read->model_name = state.served_name();
  IncomingRequest incoming;
  // Clients give several requests the same id.
  incoming.id = make_uuid();
  if (read->timeout_us > 0)
    incoming.first_token = Deadline::after_s(static_cast<double>(read->timeout_us) / 1e6);
  incoming.kept_bytes = read->prefix.size();
  if (const ServedModel* model = state.view().model; model != nullptr && !read->stream) {
    incoming.kept_bytes += most_answer_bytes(read->request, *model);
    if (incoming.kept_bytes > kMaxAnswerBytes)
      return to_grpc_status(refuse_field(
          "inputs[stream]",
          " must be true, because an answer that may become this long is not kept whole; or ask "
          "for fewer tokens or logprobs"));
  }
  incoming.request = std::move(read->request);
  incoming.answer = std::make_unique<InferAnswer>(std::move(read).value(), of_stream);
  return incoming;
}

std::unique_ptr<Dialect> make_infer_dialect() {
  return std::make_unique<InferDialect>();
}

}  // namespace shoal
