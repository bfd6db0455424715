// A front that the program does not have, beside gRPC: the same tokens and the same bits, the same
// queue, and the same refusals.
#include "tests/server/grpc/line_front.h"

#include <gtest/gtest.h>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/guard.h"
#include "tests/server/grpc/grpc_fixture.h"

namespace shoal {
namespace {

namespace wire = openengine::v1;

class LineFrontTest : public GrpcFixture {
 protected:
  void start_both(Setup setup) {
    setup.state = state_;
    setup.intake = intake_;
    start(setup);
    front_.emplace(intake_);
  }
  void TearDown() override {
    workers_.release();
    front_.reset();  // its calls have ended
    GrpcFixture::TearDown();
  }

  Fd ask(const std::string& line) {
    Fd socket = front_->connect();
    EXPECT_EQ(::send(socket.get(), (line + "\n").data(), line.size() + 1, MSG_NOSIGNAL),
              static_cast<ssize_t>(line.size() + 1));
    return socket;
  }
  /// All lines until the front closes.
  static std::vector<std::string> answer(const Fd& socket) {
    std::string text;
    char part[4096];
    for (ssize_t got = 0; (got = ::recv(socket.get(), part, sizeof part, 0)) > 0;)
      text.append(part, static_cast<size_t>(got));
    std::vector<std::string> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
  }
  /// The answer over gRPC, as the line front would write it.
  std::vector<std::string> over_grpc(const std::string& prompt, uint32_t max_tokens) {
    wire::GenerateRequest request = text_request(prompt, max_tokens);
    request.mutable_response()->set_return_output_logprobs(true);
    const StreamRecord record = generate(request);
    EXPECT_TRUE(record.status.ok()) << record.status.error_message();
    std::vector<std::string> lines;
    for (const wire::GenerateResponse& event : record.events) {
      for (const wire::TokenInfo& token : event.token().tokens()) {
        const auto logprob = static_cast<float>(token.logprob());
        EXPECT_EQ(token.logprob(), static_cast<double>(logprob)) << "gRPC adds no digits";
        uint32_t bits = 0;
        std::memcpy(&bits, &logprob, sizeof bits);
        lines.push_back(cat(token.token_id(), " ", bits));
      }
    }
    const bool length = record.finished().reason() == wire::FINISH_REASON_LENGTH;
    lines.emplace_back(length ? "length" : "stop");
    return lines;
  }

  const std::shared_ptr<ServingState> state_ =
      std::make_shared<ServingState>(std::vector<std::string>{"letters"});
  const std::shared_ptr<Intake> intake_ = std::make_shared<Intake>(Intake::Options{}, state_);
  std::optional<LineFront> front_;
};

TEST_F(LineFrontTest, GivesTheTokensAndBitsThatGrpcGives) {
  start_both({});
  const std::vector<std::pair<std::string, uint32_t>> requests = {
      {"a", 8}, {"x", 20}, {"One shoal", 3}};
  for (const auto& [prompt, max_tokens] : requests) {
    const std::vector<std::string> expected = over_grpc(prompt, max_tokens);
    EXPECT_GT(expected.size(), 2U);
    // Both at once, in one batch.
    workers_.hold();
    std::vector<std::string> by_grpc;
    std::thread client([&, text = prompt, most = max_tokens] { by_grpc = over_grpc(text, most); });
    const Fd line = ask(cat(max_tokens, " ", prompt));
    const bool both =
        eventually([this] { return loop_->load().running + loop_->load().waiting == 2; });
    workers_.release();
    EXPECT_EQ(answer(line), expected);
    client.join();
    EXPECT_EQ(by_grpc, expected);
    EXPECT_TRUE(both);
  }
}

TEST_F(LineFrontTest, SharesTheQueueAndItsRefusals) {
  start_both({.max_num_seqs = 1, .queue = {.requests = 2}});
  workers_.hold();
  const Fd first = ask("2 a"), second = ask("2 a");
  ASSERT_TRUE(eventually([this] { return loop_->load().running + loop_->load().waiting == 2; }));
  const std::vector<std::string> refused = answer(ask("2 a"));
  ASSERT_EQ(refused.size(), 1U);
  EXPECT_EQ(refused[0].substr(0, 19), "refused QUEUE_FULL ");
  EXPECT_NE(refused[0].substr(19), "0") << "every refusal says when to try again";
  workers_.release();
  EXPECT_EQ(answer(first).back(), "length");
  EXPECT_EQ(answer(second).back(), "length");
}

TEST_F(LineFrontTest, TellsADrainAndAWrongRequest) {
  start_both({});
  EXPECT_EQ(answer(ask("0 a")), std::vector<std::string>{"refused INVALID_REQUEST 0"});
  server_->set_draining();
  // Its line is not read any more.
  EXPECT_EQ(answer(front_->connect()), std::vector<std::string>{"refused DRAINING 5000"});
}

}  // namespace
}  // namespace shoal
