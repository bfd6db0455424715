#include "runtime/worker/arithmetic.h"

#include <algorithm>
#include <cfenv>
#include <gtest/gtest.h>
#include <map>
#include <set>

#include "runtime/base/archive.h"
#include "runtime/base/thread_pool.h"
#include "runtime/worker/test_kernels.h"
#include "tests/in_child.h"
#include "tests/runtime/worker/model_start.h"

namespace shoal {
namespace {

class ArithmeticTest : public testing::TestWithParam<const KernelTable*> {
 protected:
  void SetUp() override { set_float_environment(); }
};

/// The fingerprint as expected_fingerprint() writes it.
std::string source_of(const ArithmeticFingerprint& fingerprint) {
  std::string text;
  for (const uint64_t part : fingerprint.parts) {
    char number[20];
    std::snprintf(number, sizeof number, "0x%016llx", static_cast<unsigned long long>(part));
    text += cat(text.empty() ? "" : ", ", number);
  }
  return text;
}

TEST_P(ArithmeticTest, HasTheFingerprintOfEveryBuild) {
  const Result<ArithmeticFingerprint> here = compute_fingerprint(*GetParam());
  ASSERT_TRUE(here.ok()) << here.status().to_string();
  EXPECT_EQ(*here, expected_fingerprint())
      << "All answers have changed. If that is meant, these are the new numbers: "
      << source_of(*here);
}

/// The parts that a wrong kernel changes. The sampler may change too, and attention with qkv.
const std::map<std::string_view, std::set<std::string_view>> kChanged = {
    {"embed", {"embed"}},
    {"rms_norm", {"rms_norm"}},
    {"matmul", {"matmul_f32", "matmul_f16", "matmul_bf16"}},
    {"residual_add", {"residual_add"}},
    {"qkv", {"qkv"}},
    {"attention", {"attention"}},
    {"silu_mul", {"silu_mul"}},
    {"add", {"add"}},
    {"argmax", {"argmax"}},
    {"chunk_sums", {"chunk_sums"}},
    {"checksum", {"checksum"}},
};

TEST_P(ArithmeticTest, EveryKernelThatIsWrongByABitIsFound) {
  ASSERT_EQ(kernel_names().size(), kChanged.size());
  for (const std::string_view kernel : kernel_names()) {
    const Result<const KernelTable*> wrong = with_wrong_kernel(*GetParam(), kernel);
    ASSERT_TRUE(wrong.ok()) << kernel;
    const Result<ArithmeticFingerprint> here = compute_fingerprint(**wrong);
    ASSERT_TRUE(here.ok()) << kernel;
    std::set<std::string_view> changed;
    for (size_t i = 0; i < kArithmeticParts.size(); ++i) {
      if (here->parts[i] != expected_fingerprint().parts[i]) changed.insert(kArithmeticParts[i]);
    }
    const std::set<std::string_view>& must = kChanged.at(kernel);
    EXPECT_TRUE(std::ranges::includes(changed, must)) << kernel;
    EXPECT_LE(changed.size(), must.size() + 1) << kernel;
    EXPECT_NE(here->value(), expected_fingerprint().value()) << kernel;
  }
}

TEST_P(ArithmeticTest, AThreadThatKeepsSubnormalsIsFound) {
  // A new thread would inherit the rules of this one, so they are set back: IEEE 754's own, by
  // which nothing is flushed to zero.
  std::fenv_t rules;
  std::fegetenv(&rules);
  std::fesetenv(FE_DFL_ENV);
  const Result<ArithmeticFingerprint> here = compute_fingerprint(*GetParam());
  std::fesetenv(&rules);
  ASSERT_TRUE(here.ok());
  EXPECT_NE(*here, expected_fingerprint());
}

std::string set_name(const testing::TestParamInfo<const KernelTable*>& set) {
  std::string name = set.param->name;
  std::ranges::replace(name, '-', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Sets, ArithmeticTest, testing::ValuesIn(available_kernels()), set_name);

/// A rank that sees the fingerprints of others. A fake: the exchange is answered on the spot.
class FakeContext final : public RankContext {
 public:
  FakeContext(int rank, std::vector<ArithmeticFingerprint> others, std::string work = "")
      : others_(std::move(others)) {
    start_.rank = rank;
    start_.work = std::move(work);
  }
  bool has_loaded = false;
  const RankStart& start() const override { return start_; }
  Communicator& communicator() override { std::abort(); }
  Status enter(Phase) override { return {}; }
  Status loaded(const LoadProgress&) override {
    has_loaded = true;
    return {};
  }
  Status moved() override { return {}; }
  Status waits(const std::string&, uint64_t, bool) override { return {}; }
  std::shared_ptr<Device> device() override { return nullptr; }
  Result<std::vector<std::string>> exchange(std::string mine) override {
    std::vector<std::string> parts;
    for (const ArithmeticFingerprint& other : others_) parts.push_back(encode(other));
    parts.insert(parts.begin() + start_.rank, std::move(mine));
    return parts;
  }

 private:
  RankStart start_;
  std::vector<ArithmeticFingerprint> others_;
};

TEST(CheckArithmetic, TheWrongRankIsTheOneThatFails) {
  set_float_environment();
  const KernelTable& right = *available_kernels().front();
  const Result<const KernelTable*> wrong = with_wrong_kernel(right, "silu_mul");
  ASSERT_TRUE(wrong.ok());
  const ArithmeticFingerprint bad = *compute_fingerprint(**wrong), good = expected_fingerprint();
  FakeContext right_rank(0, {bad, good}), wrong_rank(1, {good, good}), alone(0, {});
  EXPECT_TRUE(check_arithmetic(right, right_rank).ok());
  EXPECT_TRUE(check_arithmetic(right, alone).ok());
  const Status status = check_arithmetic(**wrong, wrong_rank);
  EXPECT_EQ(status.code(), Code::kInternal);
  const std::string text(status.message());
  char ours[17], theirs[17];
  std::snprintf(ours, sizeof ours, "%016llx", static_cast<unsigned long long>(bad.parts[8]));
  std::snprintf(theirs, sizeof theirs, "%016llx", static_cast<unsigned long long>(good.parts[8]));
  for (const std::string& part :
       {cat("silu_mul (kernel set ", right.name, ") gives ", ours), cat("must give ", theirs),
        cat("rank 0 has ", theirs), cat("rank 2 has ", theirs)}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  }
  EXPECT_FALSE(check_arithmetic(**wrong, alone).ok());
}

TEST(CheckArithmetic, ComesBeforeTheWeights) {
  const std::string said = in_child([]() -> std::string {
    set_float_environment();
    ModelStart start = model_start(SHOAL_SOURCE_DIR "/models/demo");
    start.kernels = "auto";
    ::setenv("SHOAL_TEST_WRONG_KERNEL", "all:add", 1);
    FakeContext context(0, {}, encode(start));
    ModelWork work;
    const Status status = work.begin(context).status();
    if (context.has_loaded) return "weights were loaded";
    return std::string(status.message()).find("add (kernel set") != std::string::npos
               ? ""
               : status.to_string();
  });
  EXPECT_EQ(said, "");
}

TEST(TestKernels, AnUnknownKernelIsRefused) {
  const Status status = with_wrong_kernel(*available_kernels().front(), "matmull").status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  for (const char* wrong : {"matmul", "7:matmul", "-1:matmul", "1;matmul", "1:", "x:matmul", ""}) {
    const std::string said = in_child([wrong]() -> std::string {
      ::setenv("SHOAL_TEST_WRONG_KERNEL", wrong, 1);
      RankStart place;
      place.rank = 1;
      place.world_size = 2;
      const Status refused = kernels_of_rank("auto", place).status();
      return refused.code() == Code::kInvalidArgument ? "" : refused.to_string();
    });
    EXPECT_EQ(said, "") << wrong;
  }
}

TEST(TestKernels, RanksAndStartsTakeTurns) {
  const std::string said = in_child([]() -> std::string {
    const KernelTable &best = *available_kernels().front(), &last = *available_kernels().back();
    ::setenv("SHOAL_TEST_KERNEL_SETS", cat(last.name, ",", best.name).c_str(), 1);
    for (int32_t rank = 0; rank < 3; ++rank) {
      for (int32_t start = 0; start < 3; ++start) {
        RankStart place;
        place.rank = rank;
        place.world_size = 3;
        place.start_number = start;
        const auto found = kernels_of_rank("auto", place);
        const KernelTable* right = (rank + start) % 2 == 0 ? &last : &best;
        if (!found.ok() || *found != right) return cat("rank ", rank, ", start ", start);
      }
    }
    return "";
  });
  EXPECT_EQ(said, "");
}

}  // namespace
}  // namespace shoal
