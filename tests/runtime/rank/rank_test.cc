// Ranks as real processes over a real transport, with this test in the place of the front. It
// checks what a rank reports, and when.
#include "runtime/rank/rank.h"

#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <functional>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/program_path.h"
#include "runtime/control/descriptors.h"
#include "tests/guard.h"

namespace shoal {
namespace {

/// How many parts the step "long" has.
constexpr int kParts = 5;
constexpr int32_t kHeartbeatMs = 20;

/// The time by which a rank of this process is due to show a sign of life. It stands still unless
/// the rank's work moves it.
Clock::time_point rank_time;

/// Gathers one number from each rank (the step's number plus the rank) and returns their sum. The
/// work text that the front sends decides what goes wrong.
class SumWork final : public RankWork {
 public:
  Result<std::string> begin(RankContext& context) override {
    context_ = &context;
    fault_ = context.start().work;
    for (int64_t done = 0; done <= 1000; ++done)
      SHOAL_RETURN_IF_ERROR(context.loaded({done, 1000}));
    if (fault_ == "own in load") return Status::error(Code::kNotFound, "no such file");
    SHOAL_RETURN_IF_ERROR(context.enter(Phase::kTouch));
    SHOAL_RETURN_IF_ERROR(context.enter(Phase::kWarmUp));
    if (fault_ == "long warm-up") SHOAL_RETURN_IF_ERROR(move_slowly(2, std::chrono::seconds(1)));
    SHOAL_RETURN_IF_ERROR(context.communicator().barrier());
    return cat("about rank ", context.start().rank);
  }

  Result<std::string> step(uint64_t number, std::string_view plan) override {
    if (plan == "own") return Status::error(Code::kInternal, "cannot compute this");
    if (plan == "blamed") {
      return Status::error(Code::kResourceExhausted, "no room").blamed_on(Fault::kSharedMemory);
    }
    if (plan == "long")
      SHOAL_RETURN_IF_ERROR(move_slowly(kParts, std::chrono::milliseconds(kHeartbeatMs)));
    for (uint64_t look = 0; plan == "on a device" && look < 3 * (kParts + 1); ++look)
      SHOAL_RETURN_IF_ERROR(context_->waits("its GPU in layer 5, mlp", look / 3, false));
    const World world = context_->communicator().world();
    const uint64_t mine = number + static_cast<uint64_t>(world.rank);
    std::vector<uint64_t> all(static_cast<size_t>(world.size));
    const std::vector<size_t> sizes(all.size(), sizeof mine);
    SHOAL_RETURN_IF_ERROR(context_->communicator().gather(
        0, std::as_bytes(std::span(&mine, 1)), sizes, reinterpret_cast<std::byte*>(all.data())));
    uint64_t sum = 0;
    for (const uint64_t part : all) sum += part;
    return cat(sum);
  }

 private:
  /// Completes three parts at a time: one at once, one just before the pause is over, and one when
  /// it is. A sign of life is due only for the last.
  Status move_slowly(int parts, Clock::duration pause) {
    for (int i = 0; i < parts; ++i) {
      SHOAL_RETURN_IF_ERROR(context_->moved());
      rank_time += pause - Clock::duration(1);
      SHOAL_RETURN_IF_ERROR(context_->moved());
      rank_time += Clock::duration(1);
      SHOAL_RETURN_IF_ERROR(context_->moved());
    }
    return {};
  }

  RankContext* context_ = nullptr;
  std::string fault_;
};

template <typename Member, typename Value>
RankStart start_with(Member RankStart::*member, Value value) {
  RankStart start;
  start.*member = static_cast<Member>(value);
  return start;
}

class RankTest : public testing::Test {
 protected:
  struct Peer {
    pid_t pid = -1;
    std::unique_ptr<Channel> channel;
    std::vector<RankMessage> said;
  };

  ~RankTest() override {
    for (const Peer& peer : peers_) {
      if (peer.pid > 0) ::kill(peer.pid, SIGKILL), ::waitpid(peer.pid, nullptr, 0);
    }
  }

  /// Spawns `ranks` over shm (or without a transport, for one rank), and sends each its start
  /// message.
  void start(int ranks, RankStart start = {}) {
    setup_.rung = kNoTransport;
    if (ranks > 1) setup_ = find_rung("shm")->prepare(ranks).value();
    for (int rank = 0; rank < ranks; ++rank) peers_.push_back(spawn());
    start.world_size = ranks;
    start.transport = setup_.rung;
    start.shm_bytes = static_cast<int64_t>(setup_.shm.size());
    start.group_key = setup_.group_key;
    start.collective_timeout_ms = kGuardMs;
    for (int rank = 0; rank < ranks; ++rank) {
      start.rank = rank;
      send(rank, start);
    }
  }

  /// A rank whose front is of this build.
  Peer spawn(const std::string& build = program_build()) {
    auto ends = Channel::make_pair().value();
    const pid_t pid = ::fork();
    if (pid == 0) {
      const int control = ::fcntl(ends.second.get(), F_DUPFD, 100);
      if (setup_.shm.size() > 0) ::dup2(setup_.shm.fd(), kWorkerShmFd);
      for (int fd = 0; fd < 100; ++fd) {
        const bool of_rank = fd <= STDERR_FILENO || (fd == kWorkerShmFd && setup_.shm.size() > 0);
        if (!of_rank) ::close(fd);  // these include the front's end
      }
      SumWork work;
      ::_exit(Rank(control, work, [] { return rank_time; }).run());
    }
    auto channel = std::make_unique<Channel>(std::move(ends.first));
    EXPECT_TRUE(channel->send(build, Deadline::after_ms(kGuardMs)).ok());
    return {pid, std::move(channel), {}};
  }

  template <typename Message>
  void send(int rank, const Message& message) {
    const Status sent =
        peer(rank).channel->send(encode_front_message(message), Deadline::after_ms(kGuardMs));
    ASSERT_TRUE(sent.ok()) << sent.to_string();
  }
  Peer& peer(int rank) { return peers_[static_cast<size_t>(rank)]; }

  /// The rank's next message. nullopt once the rank has closed its end.
  std::optional<RankMessage> next(int rank) {
    const Result<std::string> frame = peer(rank).channel->receive(Deadline::after_ms(kGuardMs));
    if (!frame.ok()) {
      EXPECT_EQ(frame.status().code(), Code::kUnavailable) << frame.status().to_string();
      return std::nullopt;
    }
    Result<RankMessage> message = decode_rank_message(*frame);
    EXPECT_TRUE(message.ok()) << message.status().to_string();
    if (!message.ok()) return std::nullopt;
    peer(rank).said.push_back(*message);
    return *message;
  }

  /// Reads until the rank sends a message of type Message. nullopt if the rank leaves first.
  template <typename Message>
  std::optional<Message> await(int rank) {
    while (const std::optional<RankMessage> message = next(rank)) {
      if (const auto* found = std::get_if<Message>(&*message)) return *found;
    }
    return std::nullopt;
  }

  /// Plays the front's part in one exchange.
  void exchange() {
    ExchangeAll all;
    for (size_t rank = 0; rank < peers_.size(); ++rank) {
      const auto part = await<ExchangePart>(static_cast<int>(rank));
      ASSERT_TRUE(part.has_value()) << rank;
      all.parts.push_back(part->part);
    }
    for (size_t rank = 0; rank < peers_.size(); ++rank) send(static_cast<int>(rank), all);
  }

  /// Starts the ranks, and returns when all of them wait for steps.
  void start_ready(int ranks, RankStart how = {}) {
    start(ranks, std::move(how));
    exchange();
    for (int rank = 0; rank < ranks; ++rank) {
      const auto ready = await<Ready>(rank);
      ASSERT_TRUE(ready.has_value());
      EXPECT_EQ(ready->about, cat("about rank ", rank));
      EXPECT_EQ(ready->transport, setup_.rung);
    }
  }

  int exit_code(int rank) {
    int status = -1;
    ::waitpid(std::exchange(peer(rank).pid, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  template <typename Message>
  size_t count(int rank) {
    return static_cast<size_t>(
        std::count_if(peer(rank).said.begin(), peer(rank).said.end(),
                      [](const RankMessage& m) { return std::holds_alternative<Message>(m); }));
  }

  TransportSetup setup_;
  std::vector<Peer> peers_;
};

TEST_F(RankTest, SaysEveryPhaseInOrderAndHowFarItIs) {
  start_ready(2);
  std::vector<Phase> phases;
  for (const RankMessage& message : peer(0).said) {
    const auto* begun = std::get_if<PhaseBegun>(&message);
    if (begun == nullptr || (!phases.empty() && phases.back() == begun->phase)) continue;
    phases.push_back(begun->phase);
  }
  using enum Phase;
  EXPECT_EQ(phases, (std::vector<Phase>{kOpen, kSelfTest, kLoad, kTouch, kWarmUp}));
  EXPECT_EQ(count<TransportVerified>(0), 1u);
  EXPECT_EQ(count<LoadProgress>(0), 101u) << "one for each percent, of 1001 calls";
}

TEST_F(RankTest, RankZeroAnswersForAllUntilTheShutdown) {
  start_ready(3);
  for (const uint64_t number : {5, 6}) {
    for (int rank = 0; rank < 3; ++rank) send(rank, Step{number, ""});
    const auto done = await<StepDone>(0);
    ASSERT_TRUE(done.has_value());
    EXPECT_EQ(done->number, number);
    EXPECT_EQ(done->result, cat(3 * number + 3));
  }
  for (int rank = 0; rank < 3; ++rank) send(rank, Shutdown{});
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_FALSE(next(rank).has_value()) << "only rank 0 answers";
    EXPECT_EQ(exit_code(rank), 0);
  }
}

TEST_F(RankTest, ALongStepShowsThatItMovesAndAQuickOneDoesNotTalk) {
  for (const auto& [pause_ms, signs] : {std::pair{int64_t{kHeartbeatMs}, kParts}, {kGuardMs, 0}}) {
    peers_.clear();
    start_ready(1, start_with(&RankStart::heartbeat_ms, pause_ms));
    send(0, Step{1, "long"});
    ASSERT_TRUE(await<StepDone>(0).has_value());
    EXPECT_EQ(count<StepProgress>(0), static_cast<size_t>(signs)) << "once after each pause";
  }
}

TEST_F(RankTest, ARankThatWaitsForAnotherSaysSoAndTakesItBack) {
  start_ready(2, start_with(&RankStart::heartbeat_ms, kHeartbeatMs));
  send(0, Step{1, ""});
  const auto waits = await<StepProgress>(0);
  ASSERT_TRUE(waits.has_value() && waits->waits);
  send(1, Step{1, ""});
  const auto goes_on = await<StepProgress>(0);
  ASSERT_TRUE(goes_on.has_value() && !goes_on->waits);
  EXPECT_GT(goes_on->parts, waits->parts) << "the collective was a part";
  ASSERT_TRUE(await<StepDone>(0).has_value());
}

TEST_F(RankTest, ARankOnADeviceWaitsAlthoughThatMoves) {
  start_ready(1, start_with(&RankStart::heartbeat_ms, kGuardMs));
  send(0, Step{1, "on a device"});
  const auto waits = await<StepProgress>(0), goes_on = await<StepProgress>(0);
  ASSERT_TRUE(waits.has_value() && goes_on.has_value());
  EXPECT_TRUE(waits->waits && !goes_on->waits);
  EXPECT_EQ(goes_on->parts - waits->parts, kParts + 1u) << "a new mark each, and the collective";
  ASSERT_TRUE(await<StepDone>(0).has_value());
  EXPECT_EQ(count<StepProgress>(0), 2u);
}

TEST_F(RankTest, ALongWarmUpShowsThatItMoves) {
  start_ready(1, start_with(&RankStart::work, "long warm-up"));
  const auto is_warm_up = [](const RankMessage& message) {
    const auto* begun = std::get_if<PhaseBegun>(&message);
    return begun != nullptr && begun->phase == Phase::kWarmUp;
  };
  EXPECT_EQ(std::count_if(peer(0).said.begin(), peer(0).said.end(), is_warm_up), 3)
      << "at its begin, and after each second";
}

TEST_F(RankTest, AWarmUpBeginsOnAllRanksTogether) {
  start(2);
  ASSERT_TRUE(await<ExchangePart>(0).has_value());
  EXPECT_EQ(peer(0).channel->receive(Deadline::after_ms(200)).status().code(),
            Code::kDeadlineExceeded)
      << "it waits for the other";
  send(0, Explain{});
  const auto failure = await<RankFailure>(0);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->wait.waits_for, std::vector<int32_t>{1});
  EXPECT_EQ(failure->status.code(), Code::kUnavailable);
}

TEST_F(RankTest, SaysThatTheDriverMayCompileUntilNoRankWaitsForIt) {
  start(2, start_with(&RankStart::compiles_kernels, true));
  const auto before = await<PhaseBegun>(0);
  ASSERT_TRUE(before.has_value());
  EXPECT_TRUE(before->compiles);
  exchange();
  EXPECT_EQ(count<PhaseBegun>(0), 1u) << "it waits for the other";
  const auto after = await<PhaseBegun>(0);
  ASSERT_TRUE(after.has_value());
  EXPECT_EQ(after->phase, Phase::kOpen);
  EXPECT_FALSE(after->compiles);
  for (int rank = 0; rank < 2; ++rank) EXPECT_TRUE(await<TransportVerified>(rank).has_value());
}

TEST_F(RankTest, AGroupThatOnlyProvesItsTransportBeginsNoWork) {
  start(2, start_with(&RankStart::transport_only, true));
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(await<TransportVerified>(rank).has_value());
    send(rank, Shutdown{});
    EXPECT_FALSE(next(rank).has_value());
    EXPECT_EQ(exit_code(rank), 0);
  }
}

TEST_F(RankTest, AReasonOfItsOwnIsItsOwnFault) {
  start(2, start_with(&RankStart::work, "own in load"));
  const auto failure = await<RankFailure>(1);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->fault, Fault::kOwn);
  EXPECT_EQ(failure->status.code(), Code::kNotFound);
  EXPECT_EQ(failure->status.causes().back().rank, 1);
  EXPECT_EQ(exit_code(1), 1);
}

TEST_F(RankTest, WhatAnErrorBlamesIsStated) {
  start_ready(1);
  send(0, Step{1, "blamed"});
  const auto failure = await<RankFailure>(0);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->fault, Fault::kSharedMemory);
}

TEST_F(RankTest, AFailedCollectiveIsTheTransportsFault) {
  start_ready(2);
  send(0, Step{1, ""});
  send(1, Step{1, "own"});
  const auto own = await<RankFailure>(1);
  ASSERT_TRUE(own.has_value());
  EXPECT_EQ(own->fault, Fault::kOwn);
  EXPECT_EQ(exit_code(1), 1);
  send(0, Explain{});
  const auto waiting = await<RankFailure>(0);
  ASSERT_TRUE(waiting.has_value());
  EXPECT_EQ(waiting->fault, Fault::kTransport);
  EXPECT_GT(waiting->wait.collective, 0u);
  EXPECT_EQ(waiting->wait.waits_for, std::vector<int32_t>{1});
}

TEST_F(RankTest, AFaultIsPlantedInAnyPhaseAndBlamedByIt) {
  for (const auto& [phase, fault] : {std::pair{"spawn", Fault::kOwn},
                                     {"open", Fault::kTransport},
                                     {"self-test", Fault::kTransport},
                                     {"load", Fault::kOwn},
                                     {"touch", Fault::kOwn},
                                     {"warm-up", Fault::kOwn},
                                     {"step-1", Fault::kOwn}}) {
    ::setenv("SHOAL_TEST_FAULT", cat("0:", phase, ":fail").c_str(), 1);
    peers_.clear();
    start(1);
    ::unsetenv("SHOAL_TEST_FAULT");
    if (std::string(phase) == "warm-up" || std::string(phase) == "step-1") exchange();
    if (std::string(phase) == "step-1") send(0, Step{1, ""});
    const auto failure = await<RankFailure>(0);
    ASSERT_TRUE(failure.has_value()) << phase;
    EXPECT_EQ(failure->fault, fault) << phase;
    EXPECT_EQ(exit_code(0), 1) << phase;
  }
}

TEST_F(RankTest, WhatIsOutOfTurnEndsIt) {
  peers_.push_back(spawn());
  send(0, Step{1, ""});
  const auto failure = await<RankFailure>(0);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->status.code(), Code::kInternal);
  EXPECT_EQ(exit_code(0), 1);
}

TEST_F(RankTest, AFrontOfAnotherBuildEndsItBeforeAnyMessage) {
  EXPECT_EQ(program_build().size(), 40u) << "the linker makes a SHA-1";
  peers_.push_back(spawn("4711"));
  EXPECT_FALSE(next(0).has_value());
  EXPECT_EQ(exit_code(0), kOtherBuildExitCode);
}

TEST_F(RankTest, AFrontThatIsGoneEndsItQuietly) {
  peers_.push_back(spawn());
  peer(0).channel.reset();
  EXPECT_EQ(exit_code(0), 0);
}

}  // namespace
}  // namespace shoal
