#include <algorithm>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <optional>
#include <span>
#include <string>
#include <sys/syscall.h>
#include <vector>

#include "runtime/base/cat.h"
#include "runtime/transport/self_test.h"
#include "tests/breadth.h"
#include "tests/conformance/communicator_checks.h"
#include "tests/conformance/tree_cases.h"
#include "tests/fakes/nccl_ranks.h"
#include "tests/forbid_calls.h"

namespace shoal {
namespace {

/// The NCCL collective over the fake NCCL and the emulated module, staged from host memory.

const std::string kNoSeccomp = "skip: no seccomp";

std::string reduce(Communicator& communicator, const TreeCase& tree, std::vector<float>* out) {
  out->assign(tree.count + 1, -7.0F);
  const float* own = tree.own[static_cast<size_t>(communicator.world().rank)].data();
  const Status status = communicator.all_reduce(tree.plan, own, out->data(), tree.count);
  if (!status.ok()) return status.to_string();
  return out->back() == -7.0F ? "" : "wrote behind the end";
}

/// Sizes for a gather. Every third rank sends nothing.
std::vector<size_t> sizes_for(int world_size, size_t most) {
  std::vector<size_t> sizes;
  for (int rank = 0; rank < world_size; ++rank)
    sizes.push_back(rank % 3 == 1 ? 0 : most / static_cast<size_t>(1 + rank));
  return sizes;
}

std::vector<TreeCase> cases_for(int world_size) {
  std::vector<TreeCase> cases;
  for (const size_t count : {0, 1, 3, 255, 4096, 10'007}) {
    cases.push_back(make_tree_case(16, 16, world_size, count, count));
    cases.push_back(
        make_tree_case(16, 5, world_size, count, count + 1));  // some ranks send nothing
    if (world_size <= 9) cases.push_back(make_tree_case(9, 9, world_size, count, count + 2));
  }
  cases.push_back(make_tree_case(16, 16, world_size, 600'001, 5));  // sent in several pieces
  return cases;
}

class NcclCollectiveTest : public testing::TestWithParam<int> {};

TEST_P(NcclCollectiveTest, SumsHaveTheTreesBits) {
  const std::vector<TreeCase> cases = cases_for(GetParam());
  NcclGroup group;
  group.world_size = GetParam();
  EXPECT_EQ(all_reports(run_nccl_ranks(group,
                                       [&](NcclRank& rank) {
                                         std::string wrong;
                                         for (const TreeCase& tree : cases)
                                           wrong += reduce_and_compare(rank.communicator, tree);
                                         return wrong;
                                       })),
            "");
}

TEST_P(NcclCollectiveTest, GathersAndBarriersMixWithSums) {
  NcclGroup group;
  group.world_size = GetParam();
  const std::vector<TreeCase> cases = {make_tree_case(16, 16, GetParam(), 576, 1),
                                       make_tree_case(16, 7, GetParam(), 2048, 2)};
  EXPECT_EQ(all_reports(run_nccl_ranks(
                group,
                [&](NcclRank& rank) {
                  std::string wrong;
                  for (size_t round = 0; round < 100 && wrong.empty(); ++round) {
                    wrong += reduce_and_compare(rank.communicator, cases[round % 2]);
                    wrong +=
                        gather_and_compare(rank.communicator, static_cast<int>(round) % GetParam(),
                                           sizes_for(GetParam(), round * 100), round);
                    if (round % 5 == 0 && !rank.communicator.barrier().ok()) wrong += "barrier";
                  }
                  return wrong;
                })),
            "");
}

// A communicator that does not block would start one for every sum.
TEST_P(NcclCollectiveTest, ASumStartsNoThread) {
  NcclGroup group;
  group.world_size = GetParam();
  const TreeCase tree = make_tree_case(16, 16, GetParam(), 576, 3);
  const NcclEnds ends = run_nccl_ranks(group, [&](NcclRank& rank) {
    std::string wrong = reduce_and_compare(rank.communicator, tree);  // takes the buffers
    if (!forbid({SYS_clone, SYS_clone3}, SECCOMP_RET_KILL_PROCESS)) return wrong + kNoSeccomp;
    for (int round = 0; round < 100; ++round) wrong += reduce_and_compare(rank.communicator, tree);
    return wrong;
  });
  if (ends.ranks[0].report == kNoSeccomp) GTEST_SKIP() << kNoSeccomp;
  EXPECT_EQ(all_reports(ends), "");
}

// NCCL takes memory for sizes that it has not handled before, which could happen in the middle of
// an answer. The warm-up goes up to one mebibyte, so no gather may be larger.
TEST_P(NcclCollectiveTest, NoGatherIsLongerThanWhatTheWarmUpTried) {
  NcclGroup group;
  group.world_size = GetParam();
  group.environment["FAKE_NCCL_MOST_GATHERED"] = cat(1 << 20);
  EXPECT_EQ(
      all_reports(run_nccl_ranks(group,
                                 [&](NcclRank& rank) {
                                   std::string wrong;
                                   for (const size_t most : {1 << 20, (1 << 20) + 1, 3'000'001})
                                     wrong += gather_and_compare(rank.communicator, GetParam() - 1,
                                                                 sizes_for(GetParam(), most), most);
                                   return wrong;
                                 })),
      "");
}

// NCCL's own sum must be the same on every rank and close to ours. With more than two values to add
// it has other bits.
TEST_P(NcclCollectiveTest, WithoutReproducibleSumsAreNcclsOwn) {
  NcclGroup group;
  group.world_size = GetParam();
  group.reproducible = false;
  std::vector<TreeCase> cases = cases_for(GetParam());
#ifdef SHOAL_SANITIZED
  constexpr bool quick = false;  // comparing millions of elements one by one takes minutes
#else
  constexpr bool quick = true;
#endif
  if (!quick) cases.pop_back();
  if (quick && GetParam() == 2)
    cases.push_back(make_tree_case(2, 2, 2, (4 << 20) + 5, 6));  // longer than the longest message
  EXPECT_EQ(all_reports(run_nccl_ranks(
                group,
                [&](NcclRank& rank) {
                  std::string wrong;
                  bool other_bits = false;
                  for (const TreeCase& tree : cases) {
                    std::vector<float> out;
                    wrong += reduce(rank.communicator, tree, &out);
                    for (size_t i = 0; i < tree.count && wrong.empty(); ++i) {
                      double size = 0;
                      for (size_t r = 0; r < tree.own.size(); ++r)
                        for (size_t at = i; at < tree.own[r].size(); at += tree.count)
                          size += std::abs(double{tree.own[r][at]});
                      if (std::abs(double{out[i]} - tree.sum[i]) > 1e-5 * size)
                        wrong = cat("far off at ", i, "\n");
                      other_bits =
                          other_bits || std::memcmp(&out[i], &tree.sum[i], sizeof(float)) != 0;
                    }
                    // Every rank must have the bits of rank 0.
                    const size_t bytes = tree.count * sizeof(float);
                    std::vector<size_t> sizes(static_cast<size_t>(GetParam()), bytes);
                    std::vector<std::byte> all(bytes * sizes.size());
                    const auto* mine = reinterpret_cast<const std::byte*>(out.data());
                    if (!rank.communicator.gather(0, {mine, bytes}, sizes, all.data()).ok())
                      wrong += "gather";
                    for (size_t r = 0;
                         rank.communicator.world().rank == 0 && bytes > 0 && r < sizes.size(); ++r)
                      if (std::memcmp(all.data(), all.data() + r * bytes, bytes) != 0)
                        wrong += "ranks differ";
                  }
                  if (GetParam() >= 4 && !other_bits) wrong += "the tree's bits by chance";
                  return wrong;
                })),
            "");
}

/// The group as the self-test would see it if something were wrong with it.
class Distorted final : public Communicator {
 public:
  enum class By {
    kClaimingThePlansOrder,  ///< nobody knows that it sums in another order
    kOneBit,                 ///< of the first float of every sum, on all ranks
    kAnEarlierSum,           ///< every sum of this size but the first is that of the one before it
  };
  Distorted(Communicator& inner, By by) : inner_(inner), by_(by) {}

  const char* name() const override { return inner_.name(); }
  World world() const override { return inner_.world(); }
  Status gather(int root, std::span<const std::byte> mine, std::span<const size_t> sizes,
                std::byte* out) override {
    return inner_.gather(root, mine, sizes, out);
  }
  Status barrier() override { return inner_.barrier(); }
  WaitState wait_state() const override { return inner_.wait_state(); }
  DeviceCollective* on_devices() override {
    return by_ == By::kClaimingThePlansOrder ? nullptr : inner_.on_devices();
  }
  Status all_reduce(const ReducePlan& plan, const float* own, float* out, size_t count) override {
    SHOAL_RETURN_IF_ERROR(inner_.all_reduce(plan, own, out, count));
    if (by_ == By::kOneBit) out[0] = std::nextafter(out[0], 4.0F);
    if (by_ != By::kAnEarlierSum) return {};
    std::vector<float> sum(out, out + count);
    if (before_.size() == count) std::copy(before_.begin(), before_.end(), out);
    before_ = std::move(sum);
    return {};
  }

 private:
  Communicator& inner_;
  const By by_;
  std::vector<float> before_;
};

/// Runs the self-test in every rank of a group that sums in NCCL's order.
NcclEnds self_test_of_nccls_order(int world_size, std::optional<Distorted::By> fault) {
  NcclGroup group;
  group.world_size = world_size;
  group.reproducible = false;
  return run_nccl_ranks(group, [&](NcclRank& rank) {
    std::optional<Distorted> distorted;
    if (fault) distorted.emplace(rank.communicator, *fault);
    Communicator& communicator = distorted ? *distorted : rank.communicator;
    const auto figures = self_test(communicator, 7);
    return figures.ok() ? std::string() : figures.status().to_string();
  });
}

// Without --reproducible a sum may have any order, and still no wrong bit may pass.
TEST_P(NcclCollectiveTest, TheSelfTestAcceptsNcclsOrder) {
  EXPECT_EQ(all_reports(self_test_of_nccls_order(GetParam(), std::nullopt)), "");
}

TEST(NcclSelfTest, FindsWhatIsWrongInAnyOrder) {
  using By = Distorted::By;
  EXPECT_EQ(all_reports(self_test_of_nccls_order(3, std::nullopt)), "");  // nothing is wrong
  for (const By fault : {By::kOneBit, By::kAnEarlierSum, By::kClaimingThePlansOrder}) {
    const NcclEnds ends = self_test_of_nccls_order(3, fault);
    EXPECT_EQ(ends.skipped, "");
    for (const NcclEnd& end : ends.ranks) {
      EXPECT_EQ(end.report.find("DATA_LOSS: self-test of nccl, all_reduce of "), 0u)
          << static_cast<int>(fault) << ": " << end.report;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, NcclCollectiveTest,
                         testing::ValuesIn(of_today<int>({1, 2, 3, 4, 5, 8})),
                         [](const auto& setting) { return cat(setting.param); });

}  // namespace
}  // namespace shoal
