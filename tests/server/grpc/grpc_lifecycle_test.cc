// What ends a stream early, and what the server reports before, between and after streams.

#include <grpcpp/generic/generic_stub.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <thread>

#include "runtime/base/fd.h"
#include "tests/server/grpc/grpc_fixture.h"

namespace shoal {
namespace {

namespace wire = openengine::v1;

/// grpc.health.v1, encoded by hand: request {string service = 1}, response {enum status = 1}.
enum class Serving { kUnknown = 0, kServing = 1, kNotServing = 2, kServiceUnknown = 3 };

class HealthWatch {
 public:
  HealthWatch(const std::shared_ptr<grpc::Channel>& channel, const std::string& service)
      : stub_(channel) {
    call_ = stub_.PrepareCall(&context_, "/grpc.health.v1.Health/Watch", &queue_);
    call_->StartCall(this);
    wait();
    const std::string bytes =
        service.empty() ? "" : std::string("\x0a") + static_cast<char>(service.size()) + service;
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);
    call_->WriteLast(request, grpc::WriteOptions(), this);
    wait();
  }
  ~HealthWatch() {
    context_.TryCancel();
    grpc::Status status;
    call_->Finish(&status, this);
    wait();
  }

  /// The next state that the server sends. kUnknown: the stream has ended.
  Serving next() {
    grpc::ByteBuffer buffer;
    call_->Read(&buffer, this);
    if (!wait()) return Serving::kUnknown;
    grpc::Slice slice;
    if (!buffer.DumpToSingleSlice(&slice).ok() || slice.size() != 2) return Serving::kUnknown;
    return static_cast<Serving>(slice.begin()[1]);
  }

 private:
  bool wait() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }
  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  grpc::GenericStub stub_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

class GrpcLifecycle : public GrpcFixture {
 protected:
  static wire::GenerateRequest endless(const std::string& id = "") {
    wire::GenerateRequest request = text_request("a", 1'000'000);
    request.mutable_stopping()->set_ignore_eos(true);
    request.set_request_id(id);
    return request;
  }
};

TEST_F(GrpcLifecycle, SaysThatItLoadsUntilItIsReady) {
  Setup setup;
  setup.ready = false;
  start(setup);
  EXPECT_GT(server_->port(), 0);
  HealthWatch process(channel_, "");
  HealthWatch inference(channel_, "openengine.v1.Inference");
  EXPECT_EQ(process.next(), Serving::kNotServing);
  EXPECT_EQ(inference.next(), Serving::kNotServing);
  const grpc::Status status = generate(text_request("a")).status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(refusal_details(status).reason, "MODEL_LOADING");
  EXPECT_GT(refusal_details(status).retry_ms, 0);
  make_ready();
  EXPECT_EQ(process.next(), Serving::kServing);
  EXPECT_EQ(inference.next(), Serving::kServing);
  EXPECT_TRUE(generate(text_request("a")).status.ok());
  server_->set_draining();
  EXPECT_EQ(process.next(), Serving::kNotServing);
  EXPECT_EQ(inference.next(), Serving::kNotServing);
}

TEST_F(GrpcLifecycle, IsAliveWhateverItDoes) {
  Setup setup;
  setup.ready = false;
  start(setup);
  const auto alive = [this] {
    return HealthWatch(channel_, "liveness").next() == Serving::kServing &&
           HealthWatch(channel_, "").next() == Serving::kNotServing;
  };
  EXPECT_TRUE(alive()) << "loading";
  make_ready();
  server_->set_restarting(Status::error(Code::kAborted, "rank 1 was killed"));
  EXPECT_TRUE(alive()) << "restarting";
  server_->set_restarting({});
  server_->set_stopping();
  EXPECT_TRUE(alive()) << "stopping";
  server_->set_draining();
  EXPECT_TRUE(alive()) << "draining";
}

TEST_F(GrpcLifecycle, CancelFreesTheBlocks) {
  Setup setup;
  setup.max_model_len = 100'000;
  setup.kv_blocks = 10'000;
  start(setup);
  workers_.hold();
  workers_.allow_one_step();
  grpc::ClientContext context;
  const auto reader = inference_->Generate(&context, endless());
  wire::GenerateResponse event;
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_GT(loop_->load().used_kv_blocks, 0);
  context.TryCancel();
  workers_.release();
  EXPECT_TRUE(eventually([&] { return idle() && loop_->load().used_kv_blocks == 0; }));
  while (reader->Read(&event)) continue;
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(GrpcLifecycle, ALostConnectionFreesTheBlocks) {
  Setup setup;
  setup.max_model_len = 100'000;
  setup.kv_blocks = 10'000;
  start(setup);
  {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    const auto channel = grpc::CreateCustomChannel(server_->address(),
                                                   grpc::InsecureChannelCredentials(), arguments);
    grpc::ClientContext context;
    const auto reader = wire::Inference::NewStub(channel)->Generate(&context, endless());
    wire::GenerateResponse event;
    ASSERT_TRUE(reader->Read(&event));
  }
  EXPECT_TRUE(eventually([&] { return idle() && loop_->load().used_kv_blocks == 0; }));
}

TEST_F(GrpcLifecycle, ADeadlineEndsTheRequestAtTheServerToo) {
  start({});
  workers_.hold();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(300));
  EXPECT_EQ(generate(&context, endless()).status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  workers_.release();
  EXPECT_TRUE(eventually([&] { return idle() && loop_->load().used_kv_blocks == 0; }));
}

TEST_F(GrpcLifecycle, AClientThatDoesNotReadIsDropped) {
  Setup setup;
  setup.max_model_len = 200'000;
  setup.kv_blocks = 20'000;
  setup.slow_reader_ms = 200;
  start(setup);
  wire::GenerateRequest request = endless();
  request.mutable_response()->mutable_output_candidates()->set_top_n(
      60);  // large events, which soon fill the window
  // Or it could be dropped before anybody sees that it had begun.
  workers_.hold();
  grpc::ClientContext context;
  const auto reader = inference_->Generate(&context, request);
  ASSERT_TRUE(eventually([&] { return !idle(); }));
  workers_.release();
  EXPECT_TRUE(eventually([&] { return idle() && loop_->load().used_kv_blocks == 0; }));
  for (wire::GenerateResponse event; reader->Read(&event);) EXPECT_TRUE(event.has_token());
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(generate(text_request("a")).status.ok());
}

/// While it pauses, much more than a message may have comes together: gRPC's clients refuse
/// messages of more than 4 MiB.
TEST_F(GrpcLifecycle, AReaderThatPausesGetsEverythingInMessagesOfOneMebibyte) {
  constexpr uint32_t kTokens = 6000;
  Setup setup;
  setup.max_model_len = 10'000;
  setup.kv_blocks = 1'000;
  start(setup);
  wire::GenerateRequest request = endless();
  request.mutable_stopping()->set_max_tokens(kTokens);
  request.mutable_response()->mutable_output_candidates()->set_top_n(kMaxLogprobs);
  // Or it could be over before anybody sees that it had begun.
  workers_.hold();
  grpc::ClientContext context;
  const auto reader = inference_->Generate(&context, request);
  ASSERT_TRUE(eventually([&] { return loop_->load().used_kv_blocks > 0; }));
  workers_.release();
  ASSERT_TRUE(eventually([&] { return idle(); })) << "all of it waits for the reader";
  StreamRecord record;
  size_t bytes = 0;
  for (wire::GenerateResponse event; reader->Read(&event);) {
    bytes += event.ByteSizeLong();
    EXPECT_LE(event.ByteSizeLong(), size_t{1} << 20);
    EXPECT_LE(event.token().tokens_size(), 256);
    record.events.push_back(event);
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_GT(bytes, size_t{4} << 20) << "more than a client takes in one message";
  EXPECT_EQ(record.ids().size(), kTokens);
  EXPECT_EQ(record.events.back().usage().completion_tokens(), kTokens);
}

/// Tokenizing takes seconds here. gRPC's threads must stay free for others meanwhile.
TEST_F(GrpcLifecycle, LongPromptsDisturbNobody) {
  Setup setup;
  setup.max_model_len = 200'000;
  setup.kv_blocks = 20'000;
  setup.slow_reader_ms = 500;
  start(setup);
  // Merging one word of this length takes seconds, unless it is given up.
  const wire::GenerateRequest long_one = text_request(std::string(size_t{8} << 20, 'a'));
  grpc::ClientContext contexts[3];
  std::atomic<int> ended = 0;
  const TokenizingThread tokenizing;
  std::vector<std::thread> readers;
  for (grpc::ClientContext& context : contexts) {
    readers.emplace_back([&] {
      EXPECT_FALSE(inference_->Generate(&context, long_one)->Finish().ok());
      ++ended;
    });
  }
  EXPECT_TRUE(tokenizing.has_begun());
  std::atomic<bool> over = false;
  std::thread innocent([&] {
    wire::GenerateRequest request = endless();
    request.mutable_stopping()->set_max_tokens(20'000);
    while (!over) {
      const StreamRecord record = generate(request);
      EXPECT_TRUE(record.status.ok()) << record.status.error_message();
      EXPECT_EQ(record.ids().size(), 20'000u);
    }
  });
  for (int i = 0; i < 10; ++i) {
    grpc::ClientContext probe;
    wire::HealthResponse response;
    EXPECT_TRUE(control_->Health(&probe, {}, &response).ok());
    EXPECT_TRUE(generate(text_request("a", 1)).status.ok()) << "a short prompt overtakes";
  }
  EXPECT_LT(ended, 3) << "the others had to wait for all of the long ones";
  for (grpc::ClientContext& context : contexts) context.TryCancel();
  for (std::thread& reader : readers) reader.join();
  over = true;
  innocent.join();
}

TEST_F(GrpcLifecycle, ALongPromptThatIsGivenUpDelaysNoShutdown) {
  Setup setup;
  setup.max_model_len = 200'000;
  setup.kv_blocks = 20'000;
  start(setup);
  const TokenizingThread tokenizing;
  grpc::ClientContext context;
  const auto reader = inference_->Generate(&context, text_request(std::string(8 << 20, 'a')));
  EXPECT_TRUE(tokenizing.has_begun());
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  server_->shutdown(Deadline::after_ms(0));
  EXPECT_TRUE(idle());
}

TEST_F(GrpcLifecycle, AFullQueueSaysWhenToComeBack) {
  Setup setup;
  setup.max_num_seqs = 1;
  setup.queue.requests = 2;
  start(setup);
  workers_.hold();
  grpc::ClientContext contexts[2];
  const auto running = inference_->Generate(&contexts[0], text_request("a", 2));
  ASSERT_TRUE(eventually([&] { return loop_->load().running == 1; }));
  const auto waiting = inference_->Generate(&contexts[1], text_request("a", 2));
  ASSERT_TRUE(eventually([&] { return loop_->load().waiting == 1; }));
  const grpc::Status refused = generate(text_request("a", 2)).status;
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << refused.error_message();
  EXPECT_EQ(refusal_details(refused).reason, "QUEUE_FULL");
  EXPECT_GT(refusal_details(refused).retry_ms, 0);
  workers_.release();
  for (const auto& reader : {running.get(), waiting.get()}) {
    wire::GenerateResponse event;
    while (reader->Read(&event)) continue;
    EXPECT_TRUE(reader->Finish().ok());
  }
}

TEST_F(GrpcLifecycle, LostWorkersEndTheStreamWithOneError) {
  start({});
  workers_.hold();
  workers_.fail(Status::error(Code::kAborted, "rank 1 was killed by signal 9"));
  grpc::ClientContext context;
  const auto reader = inference_->Generate(&context, endless("victim"));
  ASSERT_TRUE(eventually([&] { return !idle(); }));
  workers_.release();
  wire::GenerateResponse event;
  ASSERT_TRUE(reader->Read(&event));
  ASSERT_TRUE(event.has_error());
  EXPECT_EQ(event.request_id(), "victim");
  EXPECT_EQ(event.error().code(), wire::ERROR_CODE_INTERNAL);
  EXPECT_TRUE(event.error().retryable());
  EXPECT_NE(event.error().message().find("rank 1 was killed"), std::string::npos)
      << event.error().message();
  EXPECT_TRUE(event.has_usage());
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_TRUE(reader->Finish().ok()) << "an accepted request's failure is an event, not a status";

  const grpc::Status status = generate(text_request("a")).status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(refusal_details(status).reason, "WORKER_LOST");
}

TEST_F(GrpcLifecycle, ShutdownEndsWhatOutlivesItsDeadline) {
  start({});
  workers_.hold();
  // It stays open to the end, and must not hold up the shutdown.
  const HealthWatch watch(channel_, "");
  grpc::ClientContext context;
  const auto reader = inference_->Generate(&context, endless());
  ASSERT_TRUE(eventually([&] { return !idle(); }));
  server_->shutdown(Deadline::after_ms(50));
  wire::GenerateResponse event;
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_FALSE(reader->Finish().ok());
  server_->shutdown(Deadline::after_ms(kGuardMs));  // a second call has no effect
}

TEST(GrpcListen, SaysWhyItCannotListen) {
  const Fd taken(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(taken.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(taken.get(), 1), 0);
  socklen_t size = sizeof address;
  ASSERT_EQ(::getsockname(taken.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);

  GrpcServerOptions options;
  options.state = std::make_shared<ServingState>(std::vector<std::string>{"letters"});
  options.intake = std::make_shared<Intake>(Intake::Options{}, options.state);
  options.port = ntohs(address.sin_port);
  const Status busy = GrpcServer::start(options).status();
  EXPECT_EQ(busy.code(), Code::kUnavailable);
  EXPECT_NE(busy.message().find(cat("127.0.0.1:", options.port)), std::string::npos)
      << busy.to_string();
  EXPECT_NE(busy.message().find("--grpc-port"), std::string::npos) << busy.to_string();

  options.port = 0;
  options.host = "192.0.2.1";  // reserved for documentation, so no machine has it
  EXPECT_EQ(GrpcServer::start(options).status().code(), Code::kInvalidArgument);
  options.host = "no such host";
  EXPECT_EQ(GrpcServer::start(options).status().code(), Code::kInvalidArgument);
  options.host = "127.0.0.1";
  options.port = 65536;
  EXPECT_EQ(GrpcServer::start(options).status().code(), Code::kInvalidArgument);
}

TEST(GrpcListen, TwoServersDoNotShareAPort) {
  GrpcServerOptions options;
  options.state = std::make_shared<ServingState>(std::vector<std::string>{"letters"});
  options.intake = std::make_shared<Intake>(Intake::Options{}, options.state);
  options.port = 0;
  Result<std::unique_ptr<GrpcServer>> first = GrpcServer::start(options);
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  options.port = (*first)->port();
  EXPECT_EQ(GrpcServer::start(options).status().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace shoal
