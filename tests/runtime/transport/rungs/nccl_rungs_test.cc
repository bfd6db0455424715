// The arithmetic of NCCL's rungs: needs, settings, and whether the user's setting or ours wins.
// Sizes are literals.
#include "runtime/transport/rungs/nccl_rungs.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <gtest/gtest.h>
#include <unistd.h>

#include "runtime/base/quantity.h"
#include "runtime/transport/nccl_report.h"
#include "runtime/transport/remedy.h"
#include "runtime/transport/rungs/rung.h"

namespace shoal {
namespace {

constexpr int64_t kConnection = 9650176;
constexpr int64_t kLeanConnection = 1654784;

/// A machine with `ranks` GPUs that reach each other, NCCL 2.28.9, and this much free space in
/// /dev/shm.
RungContext place(int ranks, int64_t free_bytes) {
  HostFacts facts;
  facts.dev_shm.exists = true;
  facts.dev_shm.fs_type = "tmpfs";
  facts.dev_shm.size_bytes = facts.dev_shm.free_bytes = free_bytes;
  facts.dev_shm.total_inodes = facts.dev_shm.free_inodes = 1000;
  facts.loopback_ipv4 = true;
  GpuFacts& gpu = facts.gpu;
  gpu.asked = true;
  gpu.ranks = ranks;
  gpu.cuda_runtime = gpu.cuda_driver = 13000;
  gpu.nccl_version = 22809;
  gpu.devices.resize(static_cast<size_t>(ranks));
  gpu.peers.assign(static_cast<size_t>(ranks), std::vector<bool>(static_cast<size_t>(ranks), true));
  for (int i = 0; i < ranks; ++i) {
    for (int j = 0; j < ranks; ++j) {
      if (i != j) gpu.verdicts.push_back({i, j, GpuPeerVerdict::Outcome::kOk});
    }
  }
  return RungContext(ranks, facts);
}

int64_t need(const char* rung, const RungContext& context) {
  return find_rung(rung)->need(context).dev_shm_bytes();
}

NcclUserSettings user(const std::map<std::string, std::string>& environment) {
  return collect_nccl_settings(environment, {});
}

TEST(NcclRungs, OrderOfTheLadder) {
  EXPECT_EQ(rung_names(DeviceKind::kCuda),
            "nccl-p2p,cuda-ipc,nccl-shm,nccl-shm-lean,host-memfd,nccl-socket,tcp");
  for (const Rung& rung : rungs(DeviceKind::kCuda)) {
    EXPECT_EQ(rung.on_device, std::string(rung.name) != "tcp");
    EXPECT_EQ(rung.environment != nullptr, !nccl_rung_transport(rung.name).empty()) << rung.name;
    EXPECT_TRUE(rung.probe(place(2, 1 << 30)).ok()) << rung.probe(place(2, 1 << 30)).to_string();
    EXPECT_EQ(rung.need(place(3, 1 << 30)).rung, rung.name);
  }
  for (const Rung& rung : rungs()) EXPECT_EQ(rung.environment, nullptr);
}

TEST(NcclRungs, NeedsAreExact) {
  for (const int ranks : {2, 3, 4, 8}) {
    const RungContext large = place(ranks, int64_t{1} << 30);
    EXPECT_EQ(need("nccl-p2p", large), 0);
    EXPECT_EQ(need("nccl-shm", large), 2 * ranks * kConnection);
    EXPECT_EQ(need("nccl-shm", place(ranks, 2 * ranks * kConnection)), 2 * ranks * kConnection);
    EXPECT_EQ(need("nccl-shm", place(ranks, 2 * ranks * kConnection - 4096)), ranks * kConnection);
    EXPECT_EQ(need("nccl-shm-lean", large), ranks * kLeanConnection);
    EXPECT_EQ(need("nccl-socket", large), ranks * 34213888);
    for (const char* rung : {"nccl-p2p", "nccl-shm", "nccl-shm-lean", "nccl-socket"})
      EXPECT_TRUE(nccl_rung_need(rung, large)->assumptions.empty()) << rung;
  }
  RungContext other = place(2, 1 << 30);
  other.facts.gpu.nccl_version = 22707;
  EXPECT_EQ(need("nccl-socket", other), 2 * 33034240);
  other.facts.gpu.nccl_version = 23102;
  EXPECT_EQ(need("nccl-socket", other), 2 * 34213888);
  other.facts.gpu.nccl_version = 23203;
  EXPECT_EQ(need("nccl-socket", other), 2 * 68423680);
}

/// The first of NCCL's rungs over files for which there is room, with its bytes; "": none of them.
std::pair<std::string, int64_t> first_that_fits(const RungContext& context) {
  for (const Rung& rung : rungs(DeviceKind::kCuda)) {
    const int64_t bytes = rung.need(context).dev_shm_bytes();
    const bool files = !nccl_rung_transport(rung.name).empty() && bytes > 0;
    if (files && check_budget(rung.need(context), context.facts, context.budget).ok())
      return {rung.name, bytes};
  }
  return {"", 0};
}

TEST(NcclRungs, WhatFitsWith232) {
  const std::map<int, std::map<int, std::pair<std::string, int64_t>>> expected = {
      {1, {{2, {"", 0}}, {4, {"", 0}}, {8, {"", 0}}}},
      {4, {{2, {"nccl-shm-lean", 2 * kLeanConnection}}, {4, {"", 0}}, {8, {"", 0}}}},
      {64,
       {{2, {"nccl-shm", 2 * 2 * kConnection}},
        {4, {"nccl-shm", 4 * kConnection}},
        {8, {"nccl-shm-lean", 8 * kLeanConnection}}}},
      {128,
       {{2, {"nccl-shm", 2 * 2 * kConnection}},
        {4, {"nccl-shm", 2 * 4 * kConnection}},
        {8, {"nccl-shm", 8 * kConnection}}}},
      {512, {{8, {"nccl-shm", 2 * 8 * kConnection}}}},
  };
  for (const auto& [mib, by_ranks] : expected) {
    for (const auto& [ranks, rung] : by_ranks) {
      RungContext context = place(ranks, int64_t{mib} << 20);
      context.facts.gpu.nccl_version = 23203;
      context.budget.headroom_bytes = 262144;
      EXPECT_EQ(first_that_fits(context), rung) << ranks << " ranks in " << mib << " MiB";
      const ShmNeed sockets = find_rung("nccl-socket")->need(context);
      EXPECT_EQ(sockets.dev_shm_bytes(), ranks * 68423680);
      EXPECT_FALSE(check_budget(sockets, context.facts, context.budget).ok())
          << ranks << " ranks in " << mib << " MiB";
    }
  }
}

TEST(NcclRungs, TheRemedyForTheSocketsOf232) {
  RungContext context = place(4, 64 << 20);
  context.facts.gpu.nccl_version = 23203;
  const ShmNeed sockets = find_rung("nccl-socket")->need(context);
  const Status refused = check_budget(sockets, context.facts, context.budget);
  ASSERT_EQ(refused.code(), Code::kResourceExhausted);
  const std::vector<Remedy> list =
      remedies(context.facts, 4, {{sockets, refused, 262144, 0}}, kCleanStale);
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0].text, cat("mount -o remount,size=", 4 * 68423680 + 262144, " /dev/shm"));
}

TEST(NcclRungs, OfAnUnknownVersionTheLeastIsKnown) {
  RungContext context = place(2, int64_t{1} << 30);
  context.facts.gpu.nccl_version = 23301;
  const std::map<std::string, int64_t> least = {{"nccl-p2p", 0},
                                                {"nccl-shm", 4 * kConnection},
                                                {"nccl-shm-lean", 2 * kLeanConnection},
                                                {"nccl-socket", 2 * 68423680}};
  for (const auto& [rung, bytes] : least) {
    EXPECT_EQ(need(rung.c_str(), context), bytes) << rung;
    EXPECT_EQ(find_rung(rung)->need(context).bound, Bound::kAtLeast) << rung;
    EXPECT_TRUE(find_rung(rung)->probe(context).ok()) << rung;
    const NcclUse use = plan_nccl_use(rung, context);
    EXPECT_EQ(use.bound, Bound::kAtLeast);
    EXPECT_NE(to_text(use).find(cat(": at least ", bytes_text(bytes), " of /dev/shm predicted")),
              std::string::npos)
        << to_text(use);
    EXPECT_NE(to_text(use).find("assumed: NCCL 2.33.1, which is newer than the last one known, "
                                "2.32.3, takes no less"),
              std::string::npos)
        << to_text(use);
  }
  // The number of channels is the one that would fit if the rung took exactly the predicted bytes.
  context.facts.dev_shm.free_bytes = 4 * kConnection - 4096;
  EXPECT_EQ(need("nccl-shm", context), 2 * kConnection);
}

TEST(NcclRungs, HeadroomCountsWhenChannelsAreChosen) {
  RungContext context = place(2, 4 * kConnection);
  EXPECT_EQ(need("nccl-shm", context), 4 * kConnection);
  context.budget.headroom_bytes = 4096;
  EXPECT_EQ(need("nccl-shm", context), 2 * kConnection);
}

TEST(NcclRungs, AllCommunicatorsCountWhenChannelsAndRungAreChosen) {
  // One communicator fits with two channels, and two of them with one channel each.
  RungContext context = place(2, 4 * kConnection);
  EXPECT_EQ(plan_nccl_use("nccl-shm", context).predicted_channels, 2);
  context.communicators = 2;
  EXPECT_EQ(need("nccl-shm", context), 2 * 2 * kConnection);
  const NcclUse use = plan_nccl_use("nccl-shm", context);
  EXPECT_EQ(use.predicted_channels, 1);
  EXPECT_EQ(use.predicted_bytes, 2 * kConnection) << "of one communicator";
  const auto most =
      std::find_if(use.settings.begin(), use.settings.end(),
                   [](const SettingOutcome& setting) { return setting.name == "NCCL_MAX_CTAS"; });
  ASSERT_NE(most, use.settings.end());
  EXPECT_EQ(most->value, "1");
  // With a page less there is room for one communicator of this rung alone.
  context.facts.dev_shm.free_bytes -= 4096;
  EXPECT_EQ(first_that_fits(context),
            (std::pair<std::string, int64_t>("nccl-shm-lean", 2 * 2 * kLeanConnection)));
  context.communicators = 1;
  EXPECT_EQ(first_that_fits(context),
            (std::pair<std::string, int64_t>("nccl-shm", 2 * kConnection)));
}

TEST(NcclRungs, OwnSumsUseTheRingAlone) {
  RungContext context = place(4, int64_t{1} << 30);
  context.reproducible = false;
  EXPECT_GT(need("nccl-shm", context), 8 * kConnection);
  EXPECT_FALSE(nccl_rung_need("nccl-shm", context)->assumptions.empty());
  EXPECT_EQ(need("nccl-shm-lean", context), 4 * kLeanConnection);
}

TEST(NcclRungs, TheUsersSettingsCountInTheNeed) {
  RungContext context = place(2, int64_t{1} << 30);
  context.user = user({{"NCCL_BUFFSIZE", "1048576"}});
  EXPECT_EQ(need("nccl-shm", context), 4 * (kConnection - 3 * 1048576));
  context.user = user({{"NCCL_MAX_NCHANNELS", "1"}});
  EXPECT_EQ(need("nccl-shm", context), 2 * kConnection);
  context.user = user({{"NCCL_CUMEM_HOST_ENABLE", "1"}});
  EXPECT_EQ(need("nccl-shm", context), 0);
  context.user = user({{"NCCL_RUNTIME_CONNECT", "0"}});
  EXPECT_EQ(need("nccl-p2p", context), 2 * 34213888);
  context.user = user({{"NCCL_NVLS_ENABLE", "1"}});
  EXPECT_EQ(need("nccl-p2p", context), 12288);
}

TEST(NcclRungs, ASettingThatForbidsARungIsNamed) {
  RungContext context = place(2, int64_t{1} << 30);
  const auto refusal = [&](const char* rung, std::map<std::string, std::string> environment) {
    context.user = user(environment);
    return find_rung(rung)->probe(context).to_string();
  };
  EXPECT_NE(refusal("nccl-p2p", {{"NCCL_P2P_DISABLE", "1"}})
                .find("NCCL_P2P_DISABLE=1 of the environment"),
            std::string::npos);
  EXPECT_NE(refusal("nccl-p2p", {{"NCCL_P2P_LEVEL", "LOC"}}).find("NCCL_P2P_LEVEL=LOC"),
            std::string::npos);
  EXPECT_NE(refusal("nccl-shm", {{"NCCL_SHM_DISABLE", "1"}}).find("NCCL_SHM_DISABLE=1"),
            std::string::npos);
  EXPECT_NE(refusal("nccl-socket", {{"NCCL_SHM_DISABLE", "0"}})
                .find("under Shoal's settings (Shoal sets it to 1): unset NCCL_SHM_DISABLE there"),
            std::string::npos);
  EXPECT_NE(refusal("nccl-socket", {{"NCCL_NVLS_ENABLE", "maybe"}}).find("NCCL_NVLS_ENABLE"),
            std::string::npos);
  context.user = user({{"NCCL_SHM_DISABLE", "1"}});
  EXPECT_TRUE(find_rung("nccl-socket")->probe(context).ok());
}

TEST(NcclRungs, CommunicatorsThatDoNotBlockAreRefusedByPlaceAndAreNoSettingOfOurs) {
  RungContext context = place(2, int64_t{1} << 30);
  for (const char* name : {"nccl-p2p", "nccl-shm", "nccl-shm-lean", "nccl-socket"}) {
    const Rung& rung = *find_rung(name);
    context.user = user({{"NCCL_COMM_BLOCKING", "0"}});
    const Status refused = rung.probe(context);
    EXPECT_EQ(refused.code(), Code::kFailedPrecondition) << name;
    EXPECT_NE(
        refused.to_string().find(cat("NCCL_COMM_BLOCKING=0 of the environment forbids ", name)),
        std::string::npos)
        << refused.to_string();
    context.user = user({{"NCCL_COMM_BLOCKING", "1"}});
    EXPECT_EQ(rung.probe(context).to_string().find("NCCL_COMM_BLOCKING"), std::string::npos);
    for (const RungSetting& one : rung.environment(context, 0))
      EXPECT_NE(one.name, "NCCL_COMM_BLOCKING") << name;
  }
}

TEST(NcclRungs, RanksOfOneGpuHaveSocketsAlone) {
  RungContext context = place(2, int64_t{1} << 30);
  context.facts.gpu.ranks_per_gpu = 2;
  for (const char* rung : {"nccl-p2p", "nccl-shm", "nccl-shm-lean"})
    EXPECT_NE(find_rung(rung)->probe(context).to_string().find("share a GPU"), std::string::npos)
        << rung;
  EXPECT_TRUE(find_rung("nccl-socket")->probe(context).ok());
  std::vector<std::string> hosts;
  for (const int rank : {0, 1}) {
    for (const RungSetting& one : find_rung("nccl-socket")->environment(context, rank))
      if (one.name == "NCCL_HOSTID") hosts.push_back(one.value);
  }
  EXPECT_EQ(hosts, (std::vector<std::string>{"shoal-rank-0", "shoal-rank-1"}));
}

TEST(NcclRungs, TheReportSaysWhoWon) {
  RungContext context = place(2, int64_t{1} << 30);
  context.user = user({{"NCCL_DEBUG", "WARN"}, {"NCCL_MIN_NCHANNELS", "1"}, {"NCCL_ALGO", "Ring"}});
  NcclUse use = plan_nccl_use("nccl-shm", context);
  std::map<std::string, SettingOutcome> outcomes;
  for (const SettingOutcome& one : use.settings) outcomes[one.name] = one;
  EXPECT_EQ(outcomes["NCCL_DEBUG"],
            (SettingOutcome{"NCCL_DEBUG", "INFO", "WARN", kUserWon, "the environment"}));
  EXPECT_EQ(outcomes["NCCL_DEBUG_FILE"].winner, kUserWon);
  EXPECT_EQ(outcomes["NCCL_MAX_CTAS"].source, "NCCL_MIN_NCHANNELS of the environment");
  EXPECT_EQ(outcomes["NCCL_NVLS_ENABLE"],
            (SettingOutcome{"NCCL_NVLS_ENABLE", "0", "0", kSettingIsSet, ""}));
  EXPECT_FALSE(use.logged);
  EXPECT_TRUE(check_nccl_use(use).ok());
  // The start fails, and its log is the user's.
  add_nccl_logs({}, &use);
  EXPECT_TRUE(use.tried);
  EXPECT_TRUE(to_json(use)["used_bytes"].is_null());
  EXPECT_EQ(to_text(use).find(" used"), std::string::npos) << to_text(use);
  see_nccl_bytes(0, &use);
  EXPECT_EQ(to_json(use)["used_bytes"], 0);
  EXPECT_NE(to_text(use).find(", 0 B used; its log is the user's\n"), std::string::npos)
      << to_text(use);
  see_nccl_bytes(4096, &use);
  see_nccl_bytes(0, &use);
  EXPECT_EQ(use.used_bytes, 4096);

  context.user = {};
  use = plan_nccl_use("nccl-p2p", context);
  EXPECT_TRUE(use.logged);
  add_nccl_logs(
      {"h:1:1 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via P2P/CUMEM\n",
       "h:2:2 [1] NCCL INFO Channel 00 : 1[1] -> 0[0] via SHM/direct/direct\n"
       "h:2:2 [1] NCCL INFO Allocated 9637892 bytes of shared memory in /dev/shm/nccl-abc\n"
       "[2025-01-01 00:00:00] h:2:2 [1] misc/shmutils.cc:87 NCCL WARN Error: failed to extend "
       "/dev/shm/nccl-abc to 33030532 bytes, error: No space left on device (28)\n"},
      &use);
  EXPECT_EQ(use.used_bytes, 9641984);
  EXPECT_NE(to_text(use).find(", 9641984 B (9.2 MiB) used, "), std::string::npos) << to_text(use);
  EXPECT_EQ(use.transports, (std::map<std::string, int>{{"P2P/CUMEM", 1}, {"SHM/direct", 1}}));
  EXPECT_EQ(check_nccl_use(use).code(), Code::kFailedPrecondition);
  EXPECT_NE(
      check_nccl_use(use).message().find("it took 9641984 B (9.2 MiB) of /dev/shm where 0 B "),
      std::string::npos)
      << check_nccl_use(use).message();
  EXPECT_NE(use.last_error.find("[rank 1] Error: failed to extend"), std::string::npos);
  EXPECT_NE(use.last_error.find("[proxy-ops pool of NCCL 2.26 to 2.27]"), std::string::npos)
      << use.last_error;
  EXPECT_NE(to_text(use).find("its last error"), std::string::npos);
}

class Conf : public testing::Test {
 protected:
  std::string write(const std::string& text) {
    const std::string path =
        testing::TempDir() + cat("nccl-", ::getpid(), "-", files_.size(), ".conf");
    std::ofstream(path) << text;
    files_.push_back(path);
    return path;
  }
  void TearDown() override {
    for (const std::string& path : files_) ::unlink(path.c_str());
  }
  std::vector<std::string> files_;
};

TEST_F(Conf, EarlierSourcesWin) {
  const std::string own =
      write("# comment=1\nNCCL_ALGO=Tree\nNCCL_BUFFSIZE=65536\nPATH=/x\nnonsense\n");
  const std::string system = write("NCCL_BUFFSIZE=1\nNCCL_SHM_DISABLE=1\n");
  const NcclUserSettings all = collect_nccl_settings({{"NCCL_ALGO", "Ring"}, {"HOME", "/"}},
                                                     {own, system, "/nowhere/nccl.conf"});
  EXPECT_TRUE(all.error.ok()) << all.error.to_string();
  EXPECT_EQ(all.list, (std::vector<NcclUserSetting>{{"NCCL_ALGO", "Ring", "the environment"},
                                                    {"NCCL_BUFFSIZE", "65536", own + ":3"},
                                                    {"NCCL_SHM_DISABLE", "1", system + ":2"}}));
}

TEST_F(Conf, WhatNcclWouldMisreadIsAnErrorWithItsLine) {
  const std::string value = write("\nNCCL_P2P_DISABLE=yes\n");
  const std::string text = collect_nccl_settings({}, {value}).error.to_string();
  EXPECT_NE(text.find(value + ":2"), std::string::npos) << text;
  EXPECT_NE(text.find("NCCL_P2P_DISABLE"), std::string::npos);
  const std::string blank = write("NCCL_ALGO = Ring\n");
  EXPECT_NE(collect_nccl_settings({}, {blank}).error.to_string().find(blank + ":1"),
            std::string::npos);
}

TEST_F(Conf, TheFileOfTheEnvironmentIsRead) {
  const std::string path = write("NCCL_MAX_CTAS=3\n");
  ::setenv("NCCL_CONF_FILE", path.c_str(), 1);
  const NcclUserSettings all = read_nccl_user_settings();
  ::unsetenv("NCCL_CONF_FILE");
  ASSERT_NE(all.find("NCCL_MAX_CTAS"), nullptr);
  EXPECT_EQ(all.find("NCCL_MAX_CTAS")->source, path + ":1");
}

}  // namespace
}  // namespace shoal
