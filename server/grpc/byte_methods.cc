#include "server/grpc/byte_methods.h"

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>
#include <utility>

#include "server/grpc/grpc_status.h"
#include "server/grpc/wire_message.h"
#include "server/intake/intake.h"

namespace shoal {

namespace {

constexpr size_t kSmallBytes = size_t{64} << 10;

/// Owns itself until gRPC is done with it.
class AnsweredCall final : public ByteReactor {
 public:
  AnsweredCall(std::shared_ptr<const AnswerBytes> answer, grpc::CallbackServerContext* context)
      : answer_(std::move(answer)), context_(context) {
    StartRead(&request_);
  }
  void OnReadDone(bool ok) override {
    if (!ok) return Finish(no_request());
    const grpc::Status status = (*answer_)(*context_, &request_, &response_);
    request_.Clear();
    if (!status.ok()) return Finish(status);
    StartWriteAndFinish(&response_, grpc::WriteOptions(), status);
  }
  void OnDone() override { delete this; }

 private:
  const std::shared_ptr<const AnswerBytes> answer_;
  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer request_, response_;
};

}  // namespace

ByteReactor* answer_call(std::shared_ptr<const AnswerBytes> answer,
                         grpc::CallbackServerContext* context) {
  return new AnsweredCall(std::move(answer), context);
}

grpc::Status no_request() {
  return to_grpc_status(
      Status::error(Code::kInvalidArgument,
                    cat("no request came, or one of more than ", kMaxRequestBytes, " bytes")),
      {.reason = "INVALID_REQUEST"});
}

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
  return to_grpc_status(parse_message(bytes, {.max_ids = kSmallBytes}, message));
}

}  // namespace shoal
