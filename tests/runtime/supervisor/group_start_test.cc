// What the front makes of a rank that says everything at once, because the front looks late. The
// rank is real, with work that only moves bytes: this program is its own worker.
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <gtest/gtest.h>
#include <signal.h>
#include <string_view>
#include <sys/socket.h>

#include "runtime/supervisor/process_state.h"
#include "runtime/supervisor/worker_group.h"
#include "tests/moved_clock.h"
#include "tests/runtime/supervisor/supervisor_fixture.h"

namespace shoal {
namespace {

/// Starts one rank, which stops itself before it loads. The front then waits until the rank has
/// said that it is ready, and only then reads what the rank has said of its load.
class LateFront {
 public:
  LateFront() {
    channels_.push_back(Channel::make_pair().value());
    // What lies unread in the group's own end can be seen here too.
    end_.reset(::fcntl(channels_.front().first.get(), F_DUPFD_CLOEXEC, 0));
    control.channels = &channels_;
    control.given_up = [this] {
      look();
      return false;
    };
  }

  Attempt<std::unique_ptr<WorkerGroup>> start() {
    TransportSetup setup;
    setup.rung = kNoTransport;
    WorkerGroupOptions options = options_for(0).group;
    options.world_size = 1;
    ::setenv("SHOAL_TEST_FAULT", "0:load:stop", 1);
    auto group = WorkerGroup::start(options, setup, control);
    ::unsetenv("SHOAL_TEST_FAULT");
    EXPECT_TRUE(was_late_) << "the rank was never seen to have stopped";
    return group;
  }

  StartControl control;
  std::function<void()> when_ready = [] {};  // called before the front reads that the rank is

 private:
  void look() {
    pid_t rank = -1;
    std::ifstream("/proc/thread-self/children") >> rank;
    if (rank <= 0 || !is_stopped(rank)) return;
    was_late_ = true;
    ::kill(rank, SIGCONT);
    EXPECT_TRUE(eventually([this] { return is_ready(); }));
    when_ready();
  }

  bool is_ready() const {
    std::string bytes(1 << 16, '\0');
    const ssize_t got = ::recv(end_.get(), bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT);
    uint32_t length = 0;
    for (size_t at = 0; got > 0 && at + sizeof length <= static_cast<size_t>(got); at += length) {
      std::memcpy(&length, bytes.data() + at, sizeof length);
      at += sizeof length;
      const auto message = decode_rank_message(bytes.substr(at, length));
      if (message.ok() && std::holds_alternative<Ready>(*message)) return true;
    }
    return false;
  }

  ChannelStock channels_;
  Fd end_;
  bool was_late_ = false;
};

TEST(GroupStart, ALoadThatIsOverBeforeTheFrontLooksShowsItsEnd) {
  LoadProgress last;
  LateFront front;
  front.control.on_progress = [&last](const LoadProgress& progress) { last = progress; };
  const auto group = front.start();
  ASSERT_TRUE(group.ok()) << group.status().to_string();
  EXPECT_EQ(last.bytes_total, 1);
  EXPECT_EQ(last.bytes_done, 1);
}

// The deadline has passed, but the rank's message lies in the socket.
TEST(GroupStart, AMessageThatIsNotReadYetIsNotSilence) {
  const MovedClock clock;
  LateFront front;
  front.control.deadline = Deadline::after_ms(kGuardMs);
  front.when_ready = [] { MovedClock::advance(2 * kGuardSeconds); };
  const auto group = front.start();
  EXPECT_TRUE(group.ok()) << group.status().to_string();
  EXPECT_TRUE(front.control.deadline.passed());
}

constexpr const char* kHangOnceCompiled = "SHOAL_TEST_HANG_ONCE_COMPILED";

/// Runs in this program's worker: a rank whose driver has compiled the kernels, and that hangs
/// after it, as it would in NCCL. The front has read all of this once it knows of any progress.
int hang_once_compiled() {
  Channel channel(Fd(3));
  for (const std::string& said : {encode_rank_message(PhaseBegun{Phase::kOpen, true}),
                                  encode_rank_message(PhaseBegun{Phase::kOpen, false}),
                                  encode_rank_message(LoadProgress{1, 1})})
    (void)channel.send(said, Deadline::after_ms(kGuardMs));
  for (;;) ::pause();
}

/// Starts a rank that stays in the phase in which it opens its transport, because a variable of its
/// environment says so. Then lets ten times the whole time of a start pass, and gives it up if that
/// was no reason to end it.
Failure end_of_a_long_open(bool compiles_kernels, const char* variable = "SHOAL_TEST_FAULT") {
  const MovedClock clock;
  bool opens = false;
  int looks = 0;
  StartControl control;
  if (std::string_view(variable) == kHangOnceCompiled) {
    control.on_progress = [&](const LoadProgress&) { opens = true; };
  } else {
    control.on_phase_now = [&](Phase phase, double) { opens = opens || phase == Phase::kOpen; };
  }
  control.given_up = [&] {
    if (!opens) return false;
    if (looks++ == 0) MovedClock::advance(10 * kGuardSeconds);
    return looks > 2;
  };
  TransportSetup setup;
  setup.rung = kNoTransport;
  WorkerGroupOptions options = options_for(0).group;
  options.world_size = 1;
  options.evidence_ms = options.explain_ms = 0;  // this clock stands still
  options.start.compiles_kernels = compiles_kernels;
  ::setenv(variable, "0:open:spin", 1);
  const auto group = WorkerGroup::start(options, setup, control);
  ::unsetenv(variable);
  EXPECT_FALSE(group.ok());
  return group.ok() ? Failure{} : group.failure();
}

TEST(GroupStart, ADriverThatCompilesHasNoDeadline) {
  EXPECT_NE(end_of_a_long_open(false).fault, Fault::kGivenUp) << "it was silent for too long";
  const Failure given_up = end_of_a_long_open(true);
  EXPECT_EQ(given_up.fault, Fault::kGivenUp) << given_up.why.to_string();
  EXPECT_EQ(given_up.phase, Phase::kOpen);
}

TEST(GroupStart, WhatFollowsOnceTheDriverHasCompiledHasADeadline) {
  const Failure silent = end_of_a_long_open(true, kHangOnceCompiled);
  EXPECT_EQ(silent.fault, Fault::kTransport) << silent.why.to_string();
  EXPECT_EQ(silent.phase, Phase::kOpen);
  EXPECT_EQ(silent.rank, 0);
}

}  // namespace
}  // namespace shoal

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "worker" &&
      std::getenv(shoal::kHangOnceCompiled) != nullptr)
    return shoal::hang_once_compiled();
  return shoal::supervisor_test_main(argc, argv);
}
