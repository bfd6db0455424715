#pragma once
#include <functional>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>
#include <memory>
#include <utility>

namespace google::protobuf {
class Message;
}

namespace shoal {

using ByteReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;
using ByteHandler = grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>;

/// The serialized form of a message.
grpc::ByteBuffer to_bytes(const google::protobuf::Message& message);

/// Parses a request of a method that is not for prompts. INVALID_ARGUMENT: it is no such message,
/// or it has more than 64 KiB.
grpc::Status parse_small(grpc::ByteBuffer* bytes, google::protobuf::Message* message);

/// Makes the answer, *out, of a request's bytes. Whatever it takes of *in is gone.
using AnswerBytes = std::function<grpc::Status(const grpc::CallbackServerContext&,
                                               grpc::ByteBuffer* in, grpc::ByteBuffer* out)>;

/// Reads one request and answers it. gRPC owns the reactor.
ByteReactor* answer_call(std::shared_ptr<const AnswerBytes> answer,
                         grpc::CallbackServerContext* context);

/// The end of a call whose client sent no request.
grpc::Status no_request();

/// A generated service (`Base`, a CallbackService) whose methods get their requests as bytes.
/// Otherwise gRPC would parse each request before Shoal has checked its key or its size, and a
/// parsed request takes many times the memory. It would also answer UNIMPLEMENTED, with no message,
/// to a request that it cannot parse. index: the method's place in the service's definition.
template <typename Base>
class WithByteMethods : public Base {
 protected:
  using Context = grpc::CallbackServerContext;
  using Check = std::function<grpc::Status(const Context&)>;

  /// start: ByteReactor*(Context*). A method that streams only its answers, or nothing, gets the
  /// whole request at once, in memory that is kept until the call ends. One that streams both ways
  /// is the same on the wire, and can read its one request when there is room for it.
  template <typename Start>
  void stream_bytes(int index, Start start) {
    // The first call makes the method stream both ways, the second one gives it the handler.
    this->MarkMethodStreamed(index, new ByteHandler(start));
    this->MarkMethodRawCallback(index, new ByteHandler(std::move(start)));
  }

  /// A method whose answer takes no time. The request is parsed only if check() is OK.
  template <typename Request, typename Response>
  void answer(int index, Check check, std::function<grpc::Status(const Request&, Response*)> make) {
    answer_bytes(index, [check = std::move(check), make = std::move(make)](
                            const Context& context, grpc::ByteBuffer* in, grpc::ByteBuffer* out) {
      if (grpc::Status refusal = check(context); !refusal.ok()) return refusal;
      Request request;
      if (grpc::Status wrong = parse_small(in, &request); !wrong.ok()) return wrong;
      Response response;
      grpc::Status status = make(request, &response);
      if (status.ok()) *out = to_bytes(response);
      return status;
    });
  }

  /// Makes the method answer UNIMPLEMENTED, because this server does not have it. why: the message
  /// of that error.
  void refuse(int index, const char* why) {
    answer_bytes(index, [why](const Context&, grpc::ByteBuffer*, grpc::ByteBuffer*) {
      return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, why);
    });
  }

 private:
  void answer_bytes(int index, AnswerBytes answer) {
    stream_bytes(index, [answer = std::make_shared<const AnswerBytes>(std::move(answer))](
                            Context* context) { return answer_call(answer, context); });
  }
};

}  // namespace shoal
