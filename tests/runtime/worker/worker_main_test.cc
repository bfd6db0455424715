// `shoal worker` as a process of its own, with this test in the place of the front and of the other
// rank.
#include "runtime/worker/worker_main.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <gtest/gtest.h>
#include <signal.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include "runtime/base/cat.h"
#include "runtime/base/program_path.h"
#include "runtime/control/channel.h"
#include "runtime/control/messages.h"
#include "tests/guard.h"

namespace shoal {
namespace {

RankStart over_nccl() {
  RankStart start;
  start.world_size = 2;
  start.transport = "nccl-p2p";
  start.transport_only = true;
  start.collective_timeout_ms = 60 * kGuardMs;  // as in the server, where the front is what ends it
  start.cuda_module = SHOAL_EMULATED_MODULE;
  start.nccl_library = SHOAL_FAKE_NCCL;
  return start;
}

/// Whether the file has this line.
bool says(const std::string& path, const std::string& wanted) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line == wanted) return true;
  }
  return false;
}

class WorkerMainTest : public testing::Test {
 protected:
  WorkerMainTest() {
    std::ofstream(told_).flush();
    auto ends = Channel::make_pair().value();
    std::fflush(nullptr);  // or the process writes it once more at its exit
    pid_ = ::fork();
    if (pid_ == 0) {
      ::setenv("FAKE_NCCL_HANG", "init", 1);
      ::setenv("FAKE_NCCL_TELL", told_.c_str(), 1);
      ends.first.reset();
      std::exit(worker_main(::dup(ends.second.get())));
    }
    front_ = Channel(std::move(ends.first));
    EXPECT_TRUE(front_.send(program_build(), Deadline::after_ms(kGuardMs)).ok());
  }
  ~WorkerMainTest() override {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    std::remove(told_.c_str());
  }

  template <typename Message>
  void send(const Message& message) {
    EXPECT_TRUE(front_.send(encode_front_message(message), Deadline::after_ms(kGuardMs)).ok());
  }

  /// Answers every exchange until the rank hangs or has left: the other rank brings the same, but
  /// no unique id, which stands in a second line.
  void exchange() {
    while (!says(told_, "hangs")) {
      const Result<std::string> frame = front_.receive(Deadline::after_ms(kShortMs));
      if (frame.status().code() == Code::kDeadlineExceeded) continue;
      ASSERT_TRUE(frame.ok()) << frame.status().to_string();
      const Result<RankMessage> message = decode_rank_message(*frame);
      ASSERT_TRUE(message.ok()) << message.status().to_string();
      const auto* part = std::get_if<ExchangePart>(&*message);
      if (part != nullptr) send(ExchangeAll{{part->part, first_line(part->part)}});
    }
  }

  Result<RankMessage> next() {
    SHOAL_ASSIGN_OR_RETURN(const std::string frame, front_.receive(Deadline::after_ms(kGuardMs)));
    return decode_rank_message(frame);
  }

  const std::string told_ = cat(testing::TempDir(), "worker-main-told-", ::getpid());
  Channel front_{Fd()};
  pid_t pid_ = -1;

 private:
  // no deadline: the pause between two looks at what the rank does
  static constexpr int64_t kShortMs = 20;

  static std::string first_line(const std::string& text) {
    const size_t end = text.find('\n');
    return end == std::string::npos ? text : text.substr(0, end + 1);
  }
};

// NCCL's call goes on in its thread, and at the exit of the process the library would take away
// what it uses. The stand-in aborts then.
TEST_F(WorkerMainTest, ARankThatIsInNcclSaysSoAndEndsBesideTheCall) {
  send(over_nccl());
  exchange();
  send(Explain{});
  Result<RankMessage> last = next();
  while (last.ok() && !std::holds_alternative<RankFailure>(*last)) last = next();
  ASSERT_TRUE(last.ok()) << last.status().to_string();
  const auto& failure = std::get<RankFailure>(*last);
  EXPECT_EQ(failure.status.code(), Code::kUnavailable) << failure.status.to_string();
  EXPECT_EQ(failure.wait.where.find("ncclCommInitRankConfig has not ended after "), 0u)
      << failure.wait.where;
  EXPECT_NE(failure.wait.where.find("; NCCL's last error: socketFinalizeAccept: wrong magic"),
            std::string::npos)
      << failure.wait.where;
  int status = 0;
  ::waitpid(std::exchange(pid_, -1), &status, 0);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 1);
}

}  // namespace
}  // namespace shoal
