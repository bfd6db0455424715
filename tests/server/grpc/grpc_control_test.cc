// The Control service: what is served, its state, and how requests are ended from outside.

#include <atomic>
#include <thread>

#include "tests/server/grpc/grpc_fixture.h"

namespace shoal {
namespace {

namespace wire = openengine::v1;

class GrpcControl : public GrpcFixture {
 protected:
  wire::HealthResponse health(bool probe = false,
                              wire::EngineRole role = wire::ENGINE_ROLE_UNSPECIFIED) {
    grpc::ClientContext context;
    wire::HealthRequest request;
    request.set_include_inference_probe(probe);
    request.set_role(role);
    wire::HealthResponse response;
    const grpc::Status status = control_->Health(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  static std::string check_names(const wire::HealthResponse& response) {
    std::string names;
    for (const wire::HealthCheck& check : response.checks()) names += check.name() + " ";
    return names;
  }
  grpc::Status abort(const wire::AbortRequest& request, wire::AbortStatus* outcome) {
    grpc::ClientContext context;
    wire::AbortResponse response;
    const grpc::Status status = control_->Abort(&context, request, &response);
    *outcome = response.status();
    return status;
  }
};

TEST_F(GrpcControl, TellsWhatTheServerIs) {
  Setup setup;
  setup.ready = false;
  start(setup);
  wire::ServerInfo loading;
  wire::ServerInfo info;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(control_->GetServerInfo(&context, {}, &loading).ok()) << "while loading too";
  }
  EXPECT_FALSE(loading.has_capacity());
  make_ready();
  grpc::ClientContext context;
  ASSERT_TRUE(control_->GetServerInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.engine_name(), "shoal");
  EXPECT_FALSE(info.engine_version().empty());
  EXPECT_EQ(info.engine_role(), wire::ENGINE_ROLE_AGGREGATED);
  EXPECT_EQ(info.instance_id().size(), 36U);
  EXPECT_EQ(info.instance_id(), loading.instance_id());
  ASSERT_EQ(info.supported_models_size(), 1);
  EXPECT_EQ(info.supported_models(0), "letters");
  EXPECT_EQ(info.parallelism().tensor_parallel_size(), 2U);
  EXPECT_EQ(info.schema_revision(), 1U);
  EXPECT_EQ(info.minimum_client_revision(), 1U);
  EXPECT_EQ(info.schema_release(), "v0.1.0");
  EXPECT_EQ(info.capacity().kv_block_size(), 16U);
  EXPECT_EQ(info.capacity().total_kv_blocks(), 64U);
  EXPECT_EQ(info.capacity().max_running_requests(), 8U);
  EXPECT_EQ(info.capacity().max_batched_tokens(), 512U);
  EXPECT_EQ(info.extra().fields().at("transport").string_value(), "shm");
  EXPECT_EQ(info.extra().fields().at("kernels").string_value(), "reference");
  EXPECT_EQ(info.extra().fields().at("arithmetic").string_value(), "00000000arithmetic");
  EXPECT_FALSE(info.extra().fields().contains("waits"));
  EXPECT_FALSE(info.extra().fields().contains("gpus"));
}

TEST_F(GrpcControl, TellsWhichGpusItComputesOn) {
  gpus_ = "0:GPU-8f:NVIDIA H100";
  start({});
  grpc::ClientContext context;
  wire::ServerInfo info;
  ASSERT_TRUE(control_->GetServerInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.extra().fields().at("gpus").string_value(), gpus_);
}

TEST_F(GrpcControl, TellsWhoMakesTheOthersWait) {
  transport_.waits = GroupWaits{{0.41, 0.09}, {0.09, 0.41}, GroupWaits::Last{1, 0.41}};
  start({});
  grpc::ClientContext context;
  wire::ServerInfo info;
  ASSERT_TRUE(control_->GetServerInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.extra().fields().at("waits").string_value(),
            "rank 1 makes the others wait 41 % of the step");
}

TEST_F(GrpcControl, TellsWhatTheModelIs) {
  Setup setup;
  setup.ready = false;
  start(setup);
  const auto ask = [&](const char* name, wire::ModelInfo* info) {
    grpc::ClientContext context;
    wire::GetModelInfoRequest request;
    request.set_model(name);
    return control_->GetModelInfo(&context, request, info);
  };
  wire::ModelInfo info;
  EXPECT_EQ(ask("letters", &info).error_code(), grpc::StatusCode::UNAVAILABLE);
  make_ready();
  EXPECT_EQ(ask("other", &info).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_TRUE(ask("", &info).ok());
  ASSERT_TRUE(ask("letters", &info).ok());
  EXPECT_EQ(info.served_model_name(), "letters");
  EXPECT_EQ(info.max_context_length(), 256U);
  EXPECT_EQ(info.max_output_tokens(), 255U);
  EXPECT_TRUE(info.supports_text_input());
  EXPECT_TRUE(info.supports_token_ids_input());
  EXPECT_FALSE(info.supports_lora());
  EXPECT_TRUE(info.generation().output_logprobs().supported());
  EXPECT_EQ(info.generation().output_logprobs().max_top_n(), static_cast<uint32_t>(kMaxLogprobs));
  EXPECT_FALSE(info.generation().prompt_logprobs().supported());
  EXPECT_EQ(info.generation().max_num_sequences(), 1U);
  EXPECT_EQ(info.extra().fields().at("vocab_size").number_value(), 892);
}

TEST_F(GrpcControl, NamesTheModelAsClientsMay) {
  start({.state = std::make_shared<ServingState>(std::vector<std::string>{"first", "alias"})});
  grpc::ClientContext of_model, of_server;
  wire::ModelInfo model;
  ASSERT_TRUE(control_->GetModelInfo(&of_model, {}, &model).ok());
  EXPECT_EQ(model.served_model_name(), "first") << "and not by the name of MODEL, letters";
  wire::ServerInfo server;
  ASSERT_TRUE(control_->GetServerInfo(&of_server, {}, &server).ok());
  EXPECT_EQ(
      std::vector<std::string>(server.supported_models().begin(), server.supported_models().end()),
      (std::vector<std::string>{"first", "alias"}));
  wire::GenerateRequest request = text_request("a", 1);
  for (const std::string& name : server.supported_models()) {
    request.set_model(name);
    EXPECT_TRUE(generate(request).status.ok()) << name;
  }
}

TEST_F(GrpcControl, CountsTheLoad) {
  start({});
  workers_.hold();
  grpc::ClientContext stream_context;
  const auto reader = inference_->Generate(&stream_context, text_request("a", 4));
  ASSERT_TRUE(eventually([&] { return !idle(); }));
  wire::GetLoadRequest request;
  request.set_include_per_rank(true);
  wire::LoadInfo load;
  grpc::ClientContext context;
  ASSERT_TRUE(control_->GetLoad(&context, request, &load).ok());
  EXPECT_EQ(load.running_requests() + load.queued_requests(), 1U);
  EXPECT_EQ(load.total_kv_blocks(), 64U);
  EXPECT_GT(load.timestamp_unix_nanos(), 0U);
  ASSERT_EQ(load.ranks_size(), 1);
  EXPECT_EQ(load.ranks(0).total_kv_blocks(), 64U);
  workers_.release();
  wire::GenerateResponse event;
  while (reader->Read(&event)) continue;
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(GrpcControl, ReportsItsHealth) {
  Setup setup;
  setup.ready = false;
  start(setup);
  EXPECT_EQ(health(true).state(), wire::HEALTH_STATE_STARTING);
  make_ready();
  EXPECT_EQ(health().state(), wire::HEALTH_STATE_READY);
  EXPECT_EQ(check_names(health()), "grpc model scheduler transport ");
  const wire::HealthResponse probed = health(true, wire::ENGINE_ROLE_AGGREGATED);
  EXPECT_EQ(check_names(probed), "grpc model scheduler transport inference_probe ");
  EXPECT_EQ(probed.state(), wire::HEALTH_STATE_READY) << probed.DebugString();
  EXPECT_EQ(health(false, wire::ENGINE_ROLE_PREFILL).state(), wire::HEALTH_STATE_NOT_READY);
  {
    grpc::ClientContext context;
    wire::HealthRequest request;
    request.set_model("other");
    wire::HealthResponse response;
    EXPECT_EQ(control_->Health(&context, request, &response).error_code(),
              grpc::StatusCode::NOT_FOUND);
  }
  // A probe is answered within its step. Until the step is over, it speaks for the ranks.
  ASSERT_TRUE(loop_->drain(Deadline::after_ms(kGuardMs)));
  workers_.fail(Status::error(Code::kAborted, "rank 0 is gone"));
  const wire::HealthResponse broken = health(true);
  EXPECT_EQ(broken.state(), wire::HEALTH_STATE_NOT_READY);
  EXPECT_NE(broken.DebugString().find("rank 0 is gone"), std::string::npos) << broken.DebugString();
  EXPECT_EQ(health().state(), wire::HEALTH_STATE_NOT_READY) << "the scheduler remembers";
  server_->set_draining();
  EXPECT_NE(health().DebugString().find("DRAINING"), std::string::npos);
}

TEST_F(GrpcControl, AProbeThatIsCancelledLeavesNothing) {
  start({});
  workers_.hold();
  grpc::ClientContext context;
  std::thread client_gives_up([&] {
    EXPECT_TRUE(eventually([&] { return !idle(); })) << "the probe runs";
    context.TryCancel();
  });
  wire::HealthRequest request;
  request.set_include_inference_probe(true);
  wire::HealthResponse response;
  EXPECT_EQ(control_->Health(&context, request, &response).error_code(),
            grpc::StatusCode::CANCELLED);
  client_gives_up.join();
  workers_.release();
  EXPECT_TRUE(eventually([&] { return idle() && loop_->load().used_kv_blocks == 0; }));
}

/// The probe must not wait at the end of the queue: a supervisor would restart a healthy server.
TEST_F(GrpcControl, AProbeWaitsForNoOtherRequest) {
  Setup setup;
  setup.max_num_seqs = 1;
  start(setup);
  workers_.hold();
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<wire::GenerateResponse>>> readers;
  for (int i = 0; i < 40; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(inference_->Generate(contexts.back().get(), text_request("a", 100)));
  }
  ASSERT_TRUE(eventually([&] {
    const EngineLoad load = loop_->load();
    return load.running == 1 && load.waiting == 39;  // all have arrived
  }));
  std::thread one_step([&] { workers_.allow_one_step(); });
  EXPECT_EQ(health(true).state(), wire::HEALTH_STATE_READY) << "a step has ended";
  one_step.join();
  EXPECT_EQ(loop_->load().waiting, 39);
  // If the machine stands still now, the step that has ended is none of a moment ago any more.
  const Clock::time_point stepped = Clock::now();
  std::atomic<bool> answered = false;
  std::thread another_step([&] {
    (void)eventually([&] { return answered || seconds_since(stepped) > 5; });
    if (!answered) workers_.allow_one_step();
  });
  EXPECT_EQ(health(true).state(), wire::HEALTH_STATE_READY) << "a step ended a moment ago";
  answered = true;
  another_step.join();
  for (const auto& context : contexts) context->TryCancel();
  workers_.release();
  EXPECT_TRUE(eventually([&] { return idle(); }));
}

TEST_F(GrpcControl, AProbeWhoseRequestsToWaitForVanishGeneratesATokenItself) {
  start({});
  workers_.hold();
  grpc::ClientContext context;
  const auto reader = inference_->Generate(&context, text_request("a", 100));
  ASSERT_TRUE(eventually([&] { return loop_->load().running == 1; }));
  wire::HealthResponse response;
  std::thread probe([&] { response = health(true); });  // before or after the failure
  workers_.fail(Status::error(Code::kAborted, "rank 0 is gone"));
  workers_.release();
  probe.join();
  EXPECT_EQ(response.state(), wire::HEALTH_STATE_NOT_READY) << response.DebugString();
}

/// Such as when a device hangs. Ranks may take minutes to run again, and until then nobody knows
/// whether they will.
TEST_F(GrpcControl, AProbeSaysWhyTheRanksWereLost) {
  const std::string why = "rank 1 (step 1, its GPU in layer 0, mlp) does not answer";
  start({});
  workers_.lose(Status::error(Code::kDeadlineExceeded, why));
  const wire::HealthResponse lost = health(true);
  EXPECT_EQ(lost.state(), wire::HEALTH_STATE_NOT_READY);
  EXPECT_NE(lost.DebugString().find(why), std::string::npos) << lost.DebugString();
  EXPECT_TRUE(eventually([&] { return idle(); })) << "the probe's token is not generated later";
  EXPECT_EQ(health(true).state(), wire::HEALTH_STATE_READY) << "they run again";
}

TEST_F(GrpcControl, HealthSaysWhyTheRanksAreBeingStartedAgain) {
  start({});
  server_->set_restarting(Status::error(Code::kAborted, "rank 1 was killed"));
  const wire::HealthResponse restarting = health();
  EXPECT_EQ(restarting.state(), wire::HEALTH_STATE_NOT_READY);
  EXPECT_NE(restarting.DebugString().find("being started again: rank 1 was killed"),
            std::string::npos)
      << restarting.DebugString();
  server_->set_restarting({});
  EXPECT_EQ(health().state(), wire::HEALTH_STATE_READY);
}

TEST_F(GrpcControl, HealthSaysThatTheServerIsGoingToStop) {
  start({});
  server_->set_restarting(Status::error(Code::kAborted, "rank 1 was killed"));
  server_->set_stopping();
  EXPECT_EQ(health().state(), wire::HEALTH_STATE_NOT_READY) << "requests are refused";
  server_->set_restarting({});
  const wire::HealthResponse stopping = health();
  EXPECT_EQ(stopping.state(), wire::HEALTH_STATE_DRAINING) << stopping.DebugString();
  EXPECT_NE(stopping.DebugString().find("going to stop"), std::string::npos)
      << stopping.DebugString();
}

TEST_F(GrpcControl, AbortsByIdAndAll) {
  Setup setup;
  setup.max_model_len = 100'000;
  setup.kv_blocks = 20'000;
  start(setup);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<wire::GenerateResponse>>> readers;
  wire::GenerateResponse event;
  for (const char* id : {"one", "two", "three"}) {
    wire::GenerateRequest request = text_request("a", 90'000);
    request.mutable_stopping()->set_ignore_eos(true);
    request.set_request_id(id);
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(inference_->Generate(contexts.back().get(), request));
    ASSERT_TRUE(readers.back()->Read(&event)) << id;
  }
  const auto expect_cancelled = [&](auto& reader) {
    while (reader->Read(&event)) continue;
    EXPECT_EQ(event.finished().reason(), wire::FINISH_REASON_CANCELLED) << event.ShortDebugString();
    EXPECT_GT(event.usage().completion_tokens(), 0U);
    EXPECT_TRUE(reader->Finish().ok());
  };
  wire::AbortStatus outcome;
  wire::AbortRequest by_id;
  by_id.set_request_id("two");
  EXPECT_TRUE(abort(by_id, &outcome).ok());
  EXPECT_EQ(outcome, wire::ABORT_STATUS_ABORTED);
  expect_cancelled(readers[1]);
  EXPECT_TRUE(abort(by_id, &outcome).ok()) << "a second time";
  EXPECT_EQ(outcome, wire::ABORT_STATUS_ALREADY_FINISHED);
  wire::AbortRequest all;
  all.mutable_all_requests();
  EXPECT_TRUE(abort(all, &outcome).ok());
  expect_cancelled(readers[0]);
  expect_cancelled(readers[2]);
  EXPECT_TRUE(eventually([&] { return loop_->load().used_kv_blocks == 0; }));

  by_id.set_request_id("never seen");
  EXPECT_EQ(abort(by_id, &outcome).error_code(), grpc::StatusCode::NOT_FOUND);
  wire::AbortRequest session;
  session.mutable_kv_session()->set_session_id("s");
  EXPECT_EQ(abort(session, &outcome).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(abort({}, &outcome).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(GrpcControl, NamesWhatItDoesNotHave) {
  start({});
  const auto expect_unimplemented = [](const grpc::Status& status, const char* name) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << name;
    EXPECT_NE(status.error_message().find(name), std::string::npos) << status.error_message();
  };
  grpc::ClientContext contexts[5];
  wire::LoadLoraResponse load;
  expect_unimplemented(control_->LoadLora(&contexts[0], {}, &load), "LoadLora");
  wire::UnloadLoraResponse unload;
  expect_unimplemented(control_->UnloadLora(&contexts[1], {}, &unload), "UnloadLora");
  wire::ListLorasResponse list;
  expect_unimplemented(control_->ListLoras(&contexts[2], {}, &list), "ListLoras");
  wire::GetKvEventSourcesResponse sources;
  expect_unimplemented(control_->GetKvEventSources(&contexts[3], {}, &sources),
                       "GetKvEventSources");
  const auto events = control_->SubscribeKvEvents(&contexts[4], {});
  wire::SubscribeKvEventsResponse event;
  EXPECT_FALSE(events->Read(&event));
  expect_unimplemented(events->Finish(), "SubscribeKvEvents");
}

}  // namespace
}  // namespace shoal
