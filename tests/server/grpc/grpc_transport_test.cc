// shoal.v1.Transport, and the same report as a detail of health.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "runtime/base/json.h"
#include "tests/server/grpc/grpc_fixture.h"

#include "shoal/v1/transport.grpc.pb.h"

namespace shoal {

namespace wire = openengine::v1;

namespace {

class GrpcTransport : public GrpcFixture {
 protected:
  grpc::Status get(shoal::v1::TransportReport* report) {
    grpc::ClientContext context;
    return shoal::v1::Transport::NewStub(channel_)->GetReport(&context, {}, report);
  }
  std::pair<wire::HealthState, std::string> transport_check() {
    grpc::ClientContext context;
    wire::HealthResponse response;
    EXPECT_TRUE(control_->Health(&context, {}, &response).ok());
    for (const wire::HealthCheck& check : response.checks()) {
      if (check.name() == "transport") return {check.state(), check.message()};
    }
    return {wire::HEALTH_STATE_UNSPECIFIED, "no check of the transport"};
  }
  void degrade() {
    const ShmNeed need{"shm", {{"slots", 2'101'248, 1}}, {}};
    transport_.order = {"shm", "tcp"};
    transport_.rung = "tcp";
    transport_.needs = {need};
    transport_.refusals = {
        {"shm", Phase::kBudget, Fault::kSharedMemory,
         Status::error(Code::kResourceExhausted, "needs 2101248 bytes; 1048576 are free")}};
    transport_.remedies = {{"docker", "a larger /dev/shm", "docker run --shm-size=3m"}};
    transport_.restarts = {"rank 1 was killed"};
    NcclUse use;
    use.rung = "nccl-shm";
    use.version = "2.28.9";
    use.predicted_bytes = 38'600'704;
    use.used_bytes = use.predicted_bytes;
    use.tried = use.logged = true;
    use.transports = {{"SHM/direct", 4}};
    use.channels = 2;
    transport_.nccl = {use};
    transport_.waits = GroupWaits{{0.41, 0.09}, {0.09, 0.41}, GroupWaits::Last{1, 0.41}};
  }
};

TEST_F(GrpcTransport, IsUnavailableWhileLoading) {
  Setup setup;
  setup.ready = false;
  start(setup);
  shoal::v1::TransportReport report;
  const grpc::Status status = get(&report);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(refusal_details(status).reason, "MODEL_LOADING");
}

TEST_F(GrpcTransport, TellsTheWholeReport) {
  degrade();
  start({});
  shoal::v1::TransportReport report;
  ASSERT_TRUE(get(&report).ok());
  EXPECT_EQ(report.rung(), "tcp");
  EXPECT_EQ(report.verdict(), "slower");
  EXPECT_EQ(report.tensor_parallel_size(), 2);
  EXPECT_TRUE(report.degraded());
  ASSERT_EQ(report.refusals_size(), 1);
  EXPECT_EQ(report.refusals(0).rung(), "shm");
  EXPECT_EQ(report.refusals(0).phase(), "budget");
  EXPECT_EQ(report.refusals(0).code(), "RESOURCE_EXHAUSTED");
  EXPECT_NE(report.refusals(0).reason().find("1048576 are free"), std::string::npos);
  EXPECT_EQ(report.needs(0).dev_shm_bytes(), 2'101'248);
  EXPECT_EQ(report.remedies(0).text(), "docker run --shm-size=3m");
  EXPECT_EQ(report.restarts(0), "rank 1 was killed");
  ASSERT_EQ(report.nccl_size(), 1);
  EXPECT_EQ(report.nccl(0).predicted_bytes(), 38'600'704);
  EXPECT_EQ(report.nccl(0).used_bytes(), 38'600'704);
  EXPECT_EQ(report.nccl(0).transports().at("SHM/direct"), 4);
  EXPECT_EQ(report.waits().of_rank_size(), 2);
  EXPECT_EQ(report.waits().of_rank(1), 0.09);
  EXPECT_EQ(report.waits().for_rank_size(), 2);
  EXPECT_EQ(report.waits().for_rank(1), 0.41);
  EXPECT_EQ(report.waits().rank(), 1);
  EXPECT_EQ(report.waits().share(), 0.41);
  EXPECT_EQ(report.waits().text(), "rank 1 makes the others wait 41 % of the step");
  const Result<Json> whole = parse_json(report.json(), "report");
  ASSERT_TRUE(whole.ok()) << whole.status().to_string();
  EXPECT_EQ((*whole)["rung"], "tcp");
  EXPECT_TRUE((*whole)["version"].is_string());
  EXPECT_EQ((*whole)["refusals"][0]["code"], "RESOURCE_EXHAUSTED");
  EXPECT_TRUE((*whole)["facts"].is_object());
  EXPECT_EQ((*whole)["nccl"][0]["version"], "2.28.9");
}

TEST_F(GrpcTransport, SaysThatItDoesNotKnowWhoWaits) {
  start({});
  shoal::v1::TransportReport report;
  ASSERT_TRUE(get(&report).ok());
  EXPECT_FALSE(report.has_waits());
}

TEST_F(GrpcTransport, SaysThatNoRankMakesTheOthersWait) {
  transport_.waits = GroupWaits{{0.1, 0.09}, {0.09, 0.1}, std::nullopt};
  start({});
  shoal::v1::TransportReport report;
  ASSERT_TRUE(get(&report).ok());
  EXPECT_EQ(report.waits().of_rank_size(), 2);
  EXPECT_FALSE(report.waits().has_rank());
  EXPECT_EQ(report.waits().text(), "");
}

TEST_F(GrpcTransport, TellsOfBytesThatAreNoUtf8) {
  degrade();
  const std::string raw = "/caf\xe9/\xff", valid = "/caf\xEF\xBF\xBD/\xEF\xBF\xBD";
  transport_.refusals[0].status = Status::error(Code::kNotFound, raw);
  transport_.needs[0].dev_shm[0].what = raw;
  transport_.remedies[0].title = transport_.remedies[0].text = raw;
  transport_.restarts[0] = raw;
  NcclUse& use = transport_.nccl[0];
  use.version = use.library = use.last_error = raw;
  use.transports = {{raw, 4}};
  use.user = {{"NCCL_DEBUG_FILE", raw, raw + ":1"}};
  transport_.facts.dev_shm.path = raw;
  start({});
  shoal::v1::TransportReport report;
  const grpc::Status status = get(&report);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_NE(report.refusals(0).reason().find(valid), std::string::npos)
      << report.refusals(0).reason();
  EXPECT_EQ(report.needs(0).consumers(0).what(), valid);
  EXPECT_EQ(report.remedies(0).title() + report.remedies(0).text(), valid + valid);
  EXPECT_EQ(report.restarts(0), valid);
  EXPECT_EQ(report.nccl(0).version() + report.nccl(0).library() + report.nccl(0).last_error(),
            valid + valid + valid);
  EXPECT_EQ(report.nccl(0).transports().at(valid), 4);
  const Result<Json> whole = parse_json(report.json(), "report");
  ASSERT_TRUE(whole.ok()) << whole.status().to_string();
  EXPECT_EQ((*whole)["nccl"][0]["user_settings"][0]["value"], valid);
  EXPECT_NE(transport_check().second.find(valid), std::string::npos) << transport_check().second;
}

TEST_F(GrpcTransport, ATransportThatWorksIsReady) {
  start({});
  EXPECT_EQ(transport_check().first, wire::HEALTH_STATE_READY);
}

TEST_F(GrpcTransport, ATransportThatIsAsGoodIsReady) {
  degrade();
  transport_.order = {"shm", "memfd"};
  transport_.rung = "memfd";
  start({});
  EXPECT_EQ(transport_check().first, wire::HEALTH_STATE_READY);
}

TEST_F(GrpcTransport, ADegradeIsLoudInHealth) {
  degrade();
  start({});
  const auto [state, message] = transport_check();
  EXPECT_EQ(state, wire::HEALTH_STATE_DEGRADED);
  EXPECT_NE(message.find("1048576 are free"), std::string::npos) << message;
}

}  // namespace
}  // namespace shoal
