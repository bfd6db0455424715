// What clients hear from a server that shuts down.

#include <grpcpp/generic/generic_stub.h>
#include <thread>

#include "tests/server/grpc/grpc_fixture.h"

namespace shoal {
namespace {

namespace wire = openengine::v1;

class GrpcDrain : public GrpcFixture {
 protected:
  static wire::GenerateRequest endless() {
    wire::GenerateRequest request = text_request("a", 1'000'000);
    request.mutable_stopping()->set_ignore_eos(true);
    return request;
  }
};

TEST_F(GrpcDrain, DrainsRunningStreamsAndTakesNoNewOnes) {
  start({});
  workers_.hold();
  grpc::ClientContext context;
  const auto reader = inference_->Generate(&context, text_request("a", 4));
  ASSERT_TRUE(eventually([&] { return !idle(); }));
  server_->set_draining();
  const grpc::Status status = generate(text_request("a")).status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(refusal_details(status).reason, "DRAINING");
  std::thread stopper([&] { server_->shutdown(Deadline::after_ms(kGuardMs)); });
  workers_.release();
  std::string text;
  for (wire::GenerateResponse event; reader->Read(&event);) text += event.token().text();
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(text, "bcde");
  stopper.join();
}

/// What a client needs to try elsewhere at once.
void expect_told_to_go_elsewhere(const grpc::Status& status) {
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
  EXPECT_EQ(refusal_details(status).reason, "DRAINING");
  EXPECT_GT(refusal_details(status).retry_ms, 0);
}

TEST_F(GrpcDrain, ADrainRefusesACallWhoseRequestHasNotCome) {
  start({});
  grpc::ClientContext context;
  grpc::GenericStub stub(channel_);
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(&context, "/openengine.v1.Inference/Generate", &queue);
  call->StartCall(nullptr);
  void* tag = nullptr;
  bool ok = false;
  ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
  ASSERT_TRUE(eventually([&] { return server_->open_work().starts_with("1 call is"); }))
      << server_->open_work();
  server_->shutdown(Deadline::after_ms(0));
  grpc::Status status;
  call->Finish(&status, nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok));
  expect_told_to_go_elsewhere(status);
}

TEST_F(GrpcDrain, ADrainThatCutsACallBeforeItsFirstEventRefusesIt) {
  Setup setup;
  setup.max_num_seqs = 1;
  start(setup);
  workers_.hold();
  grpc::ClientContext contexts[2];
  const auto running = inference_->Generate(&contexts[0], endless());
  ASSERT_TRUE(eventually([&] { return loop_->load().running == 1; }));
  workers_.allow_one_step();
  wire::GenerateResponse event;
  ASSERT_TRUE(running->Read(&event));
  const auto waiting = inference_->Generate(&contexts[1], endless());
  ASSERT_TRUE(eventually([&] { return loop_->load().waiting == 1; }));
  server_->set_draining();
  (void)loop_->drain(Deadline::after_ms(0), [&] { workers_.release(); });
  EXPECT_FALSE(waiting->Read(&event));
  expect_told_to_go_elsewhere(waiting->Finish());
  while (running->Read(&event)) continue;
  EXPECT_EQ(event.error().code(), wire::ERROR_CODE_DRAINING) << "it has begun";
  EXPECT_TRUE(running->Finish().ok());
}

}  // namespace
}  // namespace shoal
