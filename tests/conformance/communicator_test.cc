// Every communicator gives every rank the same bits: those of the canonical tree.
#include "runtime/comm/communicator.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <tuple>
#include <unistd.h>

#include "runtime/base/cat.h"
#include "runtime/comm/single_communicator.h"
#include "runtime/comm/spin.h"
#include "tests/breadth.h"
#include "tests/conformance/communicator_checks.h"
#include "tests/conformance/rank_group.h"
#include "tests/conformance/tree_cases.h"

namespace shoal {
namespace {

using Setting = std::tuple<const char*, RankKind, int>;

class CommunicatorTest : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    if (const std::string reason = why_not(options().transport); !reason.empty())
      GTEST_SKIP() << reason;
  }
  static GroupOptions options() {
    const auto [transport, kind, world_size] = GetParam();
    return {transport, kind, world_size};
  }
  static std::string run(const RankBody& body) { return all_reports(run_ranks(options(), body)); }
};

TEST_P(CommunicatorTest, AllReduceGivesTheTreesBits) {
  const int world_size = options().world_size;
  std::vector<TreeCase> cases;
  for (const size_t count : {0, 1, 3, 255, 4096, 10'007}) {
    cases.push_back(make_tree_case(16, 16, world_size, count, count));
    cases.push_back(make_tree_case(16, 5, world_size, count,
                                   count + 1));  // empty leaves: some ranks bring nothing
    if (world_size <= 9) cases.push_back(make_tree_case(9, 9, world_size, count, count + 2));
  }
  const bool small = options().transport == "shm-lean";  // a megabyte would be thousands of steps
  cases.push_back(make_tree_case(16, 16, world_size, small ? 32'771 : 1 << 18, 5));
  EXPECT_EQ(run([&](Communicator& communicator) {
              std::string wrong;
              for (const TreeCase& tree : cases) wrong += reduce_and_compare(communicator, tree);
              return wrong;
            }),
            "");
}

TEST_P(CommunicatorTest, GatherKeepsRankOrderForAnySizes) {
  const int world_size = options().world_size;
  EXPECT_EQ(run([&](Communicator& communicator) {
              std::string wrong;
              uint64_t round = 0;
              for (const size_t most : {1, 100, 9'000, 40'000}) {
                std::vector<size_t> sizes;
                for (int rank = 0; rank < world_size; ++rank)
                  sizes.push_back(rank % 3 == 1 ? 0 : most / (1 + rank));
                wrong += gather_and_compare(communicator, 0, sizes, ++round);
                wrong += gather_and_compare(communicator, world_size - 1, sizes, ++round);
              }
              wrong +=
                  gather_and_compare(communicator, 0, std::vector<size_t>(world_size, 0), ++round);
              return wrong;
            }),
            "");
}

// Slots and buffers are used again and again by ranks that are not in step: now a small sum, now a
// gather where most ranks only send, now a barrier, now a message in pieces.
TEST_P(CommunicatorTest, ThousandsOfMixedCollectivesStayApart) {
  const int world_size = options().world_size;
  const int rounds = world_size <= 2 ? 3000 : world_size <= 5 ? 1000 : 200;
  std::vector<TreeCase> cases;
  for (const size_t count : {1, 7, 64, 576, 2'048}) {
    cases.push_back(make_tree_case(16, 16, world_size, count, count + 10));
    cases.push_back(make_tree_case(16, 7, world_size, count, count + 11));
  }
  EXPECT_EQ(run([&](Communicator& communicator) -> std::string {
              Pattern shared(99);  // the same choices on every rank
              for (int round = 0; round < rounds; ++round) {
                std::string wrong;
                if (const size_t choice = shared.below(16); choice < 10) {
                  wrong = reduce_and_compare(communicator, cases[choice]);
                } else if (choice < 15) {
                  std::vector<size_t> sizes;
                  for (int rank = 0; rank < world_size; ++rank)
                    sizes.push_back(shared.below(40) * shared.below(3));
                  wrong = gather_and_compare(
                      communicator, static_cast<int>(shared.below(world_size)), sizes, round);
                } else if (const Status status = communicator.barrier(); !status.ok()) {
                  wrong = status.to_string();
                }
                if (!wrong.empty()) return cat("round ", round, ": ", wrong);
              }
              return "";
            }),
            "");
}

TEST_P(CommunicatorTest, WrongArgumentsAreRefusedAlike) {
  EXPECT_EQ(
      run([&](Communicator& communicator) -> std::string {
        const int world_size = communicator.world().size;
        float value = 0;
        const ReducePlan other = make_reduce_plan(world_size + 1, world_size + 1, world_size + 1);
        if (communicator.all_reduce(other, &value, &value, 1).code() != Code::kInvalidArgument)
          return "plan";
        const std::vector<size_t> sizes(world_size, 0);
        if (communicator.gather(world_size, {}, sizes, nullptr).code() != Code::kInvalidArgument)
          return "root";
        if (communicator.gather(0, {}, {}, nullptr).code() != Code::kInvalidArgument)
          return "sizes";
        return communicator.barrier().ok() ? "" : "unusable after a refusal";
      }),
      "");
}

/// As many combinations as make every two values of different kinds meet; the days of --all
/// alternate between these and the others, and the full breadth has all of them. ThreadSanitizer
/// sees what threads share and nothing of what processes do: there one size of processes remains,
/// and a quarter of the sizes of threads on each day, because half of them took five minutes.
std::vector<Setting> settings() {
  const int sizes[] = {1, 2, 3, 4, 5, 8, 16};
  std::vector<Setting> chosen;
  size_t transport_number = 0;
  for (const char* transport : kTransports) {
    size_t size_number = 0;
    for (const int size : sizes) {
      const int number = static_cast<int>(transport_number + size_number++);
      for (const RankKind kind : {RankKind::kThreads, RankKind::kProcesses}) {
        [[maybe_unused]] const bool threads = kind == RankKind::kThreads;
#if defined(SHOAL_TSAN)
        const bool wanted = threads ? in_share(number, 4) : size == 3;
#else
        const bool wanted = threads == in_share(number, 2);
#endif
        if (wanted || full_breadth()) chosen.emplace_back(transport, kind, size);
      }
    }
    ++transport_number;
  }
  return of_today(chosen);
}

INSTANTIATE_TEST_SUITE_P(All, CommunicatorTest, testing::ValuesIn(settings()),
                         [](const testing::TestParamInfo<Setting>& setting) {
                           return cat(test_name(std::get<0>(setting.param)),
                                      rank_kind_name(std::get<1>(setting.param)),
                                      std::get<2>(setting.param));
                         });

INSTANTIATE_TEST_SUITE_P(Devices, CommunicatorTest,
                         testing::Combine(testing::ValuesIn(kDeviceTransports),
                                          testing::Values(RankKind::kProcesses),
                                          testing::ValuesIn(of_today<int>({1, 2, 3, 4, 5, 8}))),
                         [](const testing::TestParamInfo<Setting>& setting) {
                           return cat(test_name(std::get<0>(setting.param)),
                                      std::get<2>(setting.param));
                         });

class LargeMessageTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const std::string reason = why_not(GetParam()); !reason.empty()) GTEST_SKIP() << reason;
  }
};

TEST_P(LargeMessageTest, EightMebibytesOverThreeRanks) {
  const TreeCase tree = make_tree_case(3, 3, 3, (2 << 20) + 1, 8);
  EXPECT_EQ(all_reports(run_ranks({GetParam(), RankKind::kProcesses, 3},
                                  [&](Communicator& communicator) {
                                    return reduce_and_compare(communicator, tree);
                                  })),
            "");
}

TEST_P(LargeMessageTest, SixtyFourMebibytesOverTwoRanks) {
  const bool lean =
      GetParam() == std::string("shm-lean");  // 4 MiB: more would be sixteen thousand steps
  const TreeCase tree = make_tree_case(2, 2, 2, lean ? 1 << 20 : 16 << 20, 9);
  EXPECT_EQ(all_reports(run_ranks({GetParam(), RankKind::kProcesses, 2},
                                  [&](Communicator& communicator) {
                                    return reduce_and_compare(communicator, tree);
                                  })),
            "");
}

// Two groups at once, of one rung, beside a process that takes a CPU: other ranks run between any
// two steps.
TEST_P(LargeMessageTest, TwoGroupsUnderLoadStayApart) {
  const TreeCase trees[] = {make_tree_case(16, 16, 4, 3001, 20),
                            make_tree_case(16, 16, 3, 20'011, 21)};
  const pid_t hog = ::fork();
  if (hog == 0) {
    ::alarm(kGuardMs / 1000);
    for (;;) cpu_relax();
  }
  const auto run = [&](int world_size, const TreeCase& tree) {
    return all_reports(
        run_ranks({GetParam(), RankKind::kProcesses, world_size}, [&](Communicator& communicator) {
          std::string wrong;
          for (int round = 0; round < 50 && wrong.empty(); ++round)
            wrong = reduce_and_compare(communicator, tree);
          return wrong;
        }));
  };
  const pid_t second = ::fork();
  if (second == 0) ::_exit(run(3, trees[1]).empty() ? 0 : 1);
  EXPECT_EQ(run(4, trees[0]), "");
  int status = 0;
  ::waitpid(second, &status, 0);
  EXPECT_EQ(status, 0) << "the other group";
  ::kill(hog, SIGKILL);
  ::waitpid(hog, &status, 0);
}

INSTANTIATE_TEST_SUITE_P(All, LargeMessageTest, testing::ValuesIn(kTransports),
                         [](const auto& setting) { return test_name(setting.param); });

TEST(SingleCommunicatorTest, SumsItsOwnContributions) {
  const std::unique_ptr<Communicator> communicator = make_single_communicator();
  for (const size_t count : {0, 1, 3, 10'007}) {
    EXPECT_EQ(reduce_and_compare(*communicator, make_tree_case(16, 16, 1, count, 3)), "");
  }
  // A group of one makes one contribution of its whole tree; a plan may also hold several.
  ReducePlan two = make_reduce_plan(2, 2, 2);
  two.contributions = {2};
  const float own[] = {1, 2, 10, 20};
  float out[2];
  ASSERT_TRUE(communicator->all_reduce(two, own, out, 2).ok());
  EXPECT_EQ(out[0], 11);
  EXPECT_EQ(out[1], 22);
  EXPECT_EQ(gather_and_compare(*communicator, 0, {1000}, 1), "");
  EXPECT_TRUE(communicator->barrier().ok());
  EXPECT_EQ(communicator->gather(1, {}, std::vector<size_t>{0}, nullptr).code(),
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace shoal
