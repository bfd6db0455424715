#include "runtime/transport/nccl_bug_report.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <set>

#include "runtime/transport/rungs/nccl_rungs.h"
#include "runtime/transport/rungs/rung.h"

namespace shoal {
namespace {

/// Two GPUs of this capability and a library of this version.
RungContext place(int version, const char* capability = "9.0") {
  HostFacts facts;
  facts.dev_shm.exists = true;
  facts.dev_shm.fs_type = "tmpfs";
  facts.dev_shm.size_bytes = facts.dev_shm.free_bytes = int64_t{1} << 30;
  facts.dev_shm.total_inodes = facts.dev_shm.free_inodes = 1000;
  facts.gpu.nccl_version = version;
  facts.gpu.nccl_path = "/usr/lib/libnccl.so.2";
  facts.gpu.devices.resize(2);
  for (GpuDevice& device : facts.gpu.devices) device.compute_capability = capability;
  return RungContext(2, facts);
}

std::vector<NcclUse> uses_in(const RungContext& context) {
  std::vector<NcclUse> uses;
  for (const Rung& rung : rungs(DeviceKind::kCuda))
    if (!nccl_rung_transport(rung.name).empty()) uses.push_back(plan_nccl_use(rung.name, context));
  return uses;
}

std::vector<std::string> rungs_of(const std::vector<NcclBugNotice>& notices,
                                  NcclBugCondition condition) {
  for (const NcclBugNotice& notice : notices)
    if (notice.bug->condition == condition) return notice.rungs;
  ADD_FAILURE() << "no bug asks for " << text_of(condition).name;
  return {};
}

TEST(NcclBugReport, OurRanksMeetWhatTheirSettingsLeave) {
  const std::vector<NcclBugNotice> notices = nccl_bug_notices(uses_in(place(22902)));
  ASSERT_EQ(notices.size(), 7U);
  // One bug is of Arm, three of windows, and three of what the rungs switch off.
  EXPECT_TRUE(rungs_of(notices, NcclBugCondition::kWindows).empty());
  EXPECT_TRUE(rungs_of(notices, NcclBugCondition::kCumemHost).empty());
#ifdef __aarch64__
  EXPECT_EQ(notices.front().rungs, std::vector<std::string>{"nccl-socket"});
#else
  for (const NcclBugNotice& notice : notices) EXPECT_TRUE(notice.rungs.empty()) << notice.bug->what;
#endif
  // The user wins, and then has what comes with it.
  RungContext context = place(22809);
  context.user =
      collect_nccl_settings({{"NCCL_CUMEM_HOST_ENABLE", "1"}, {"NCCL_NVLS_ENABLE", "2"}}, {});
  const std::vector<NcclBugNotice> own = nccl_bug_notices(uses_in(context));
  EXPECT_EQ(rungs_of(own, NcclBugCondition::kCumemHost),
            (std::vector<std::string>{"nccl-shm", "nccl-shm-lean"}));
  EXPECT_EQ(rungs_of(own, NcclBugCondition::kNvls).size(), 4U);
  EXPECT_FALSE(own.front().rungs.empty()) << "what ranks can meet comes first";
}

TEST(NcclBugReport, OurRanksMeetNothingOfAVersionThatTheyDoNotUse) {
  const std::vector<NcclBugNotice> notices = nccl_bug_notices(uses_in(place(22501, "12.0")));
  ASSERT_EQ(notices.size(), 4U);
  EXPECT_EQ(notices.front().bug->severity, NcclBugSeverity::kRefuse);
  for (const NcclBugNotice& notice : notices) EXPECT_TRUE(notice.rungs.empty()) << notice.bug->what;
}

TEST(NcclBugReport, OnlyWhatConcernsARungIsLogged) {
  const std::vector<NcclUse> uses = uses_in(place(22705));
  const std::vector<std::string> lines = nccl_bug_warnings(uses, "nccl-p2p");
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(
      lines[0],
      "NCCL 2.27.5 of /usr/lib/libnccl.so.2 has a known bug: init fails in some places, when it loads "
      "kernels for fp8 on Blackwell; move to 2.27.7 (release notes 2.27.5 and 2.27.7)");
  EXPECT_TRUE(nccl_bug_warnings(uses, "cuda-ipc").empty());
  EXPECT_TRUE(nccl_bug_warnings(uses_in(place(22705, "10.0")), "nccl-p2p").empty())
      << "these GPUs do not have it";
  EXPECT_TRUE(nccl_bug_warnings(uses_in(place(22707)), "nccl-p2p").empty());
  EXPECT_TRUE(nccl_bug_warnings(uses_in(place(0)), "nccl-p2p").empty()) << "no library";
}

TEST(NcclBugReport, WhatIsRefusedSaysWhy) {
  EXPECT_EQ(why_nccl_is_refused(22705, "x"), "");
  EXPECT_EQ(why_nccl_is_refused(0, "x"), "");
  const std::string why = why_nccl_is_refused(22704, "/usr/lib/libnccl.so.2");
  EXPECT_EQ(why.find("NCCL 2.27.4 of /usr/lib/libnccl.so.2 is not used, because of a known bug: "),
            0U)
      << why;
  EXPECT_NE(why.find("; move to 2.27.5 (ggml-org/llama.cpp#24489"), std::string::npos) << why;
}

TEST(NcclBugReport, TextForPeople) {
  const std::string text = to_text(22501, nccl_bug_notices(22501, {}));
  EXPECT_EQ(text.find("known bugs of NCCL 2.25.1:\n  before 2.27.5: an all-reduce "), 0U) << text;
  for (const char* part : {"move to 2.27.5\n      only if ranks are threads of one process",
                           "llama.cpp and LMDeploy's TurboMind; Shoal does not use this version",
                           "move to 2.26.3, or set NCCL_CUMEM_HOST_ENABLE=0\n",
                           "every engine; not Shoal's ranks (release notes 2.26.2"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  const std::string set =
      to_text(22501, nccl_bug_notices(22501, {}), {"NCCL_ALGO=Ring", "NCCL_CUMEM_HOST_ENABLE=0"});
  EXPECT_NE(set.find("\n      NCCL_CUMEM_HOST_ENABLE=0 above avoids it; 2.26.3 repairs it\n"),
            std::string::npos)
      << set;
  EXPECT_EQ(set.find("or set NCCL_CUMEM_HOST_ENABLE=0"), std::string::npos) << set;
  const std::string newest = to_text(23203, nccl_bug_notices(23203, {}));
  EXPECT_NE(newest.find("no version without it is known: set NCCL_CUMEM_HOST_ENABLE=0"),
            std::string::npos)
      << newest;
  EXPECT_EQ(to_text(21108, {}), "");
}

/// What stands below the bugs of this version; empty: nothing does.
std::string advice(int version) {
  const std::string text = to_text(version, nccl_bug_notices(version, {}));
  const size_t at = text.find(": it repairs every bug above ");
  return at == std::string::npos ? "" : text.substr(text.rfind('\n', at) + 1);
}

TEST(NcclBugReport, TheVersionToMoveToIsThatOfTheWholeTable) {
  // It has no bug that 2.29.2 does not have too.
  EXPECT_EQ(
      advice(22902),
      "  move to 2.31.2: it repairs every bug above that has a repair, and brings none that is known\n");
  EXPECT_EQ(
      advice(22809),
      "  move to 2.31.2: it repairs every bug above that has a repair. It brings these of its own:\n"
      "      from 2.29.2 on: init fails with \"Failed to bind NVLink SHARP (NVLS) Multicast "
      "memory\", where 2.28 did without it, if the switches have no slot left (many "
      "communicators) or are not set up\n"
      "          no version without it is known: set NCCL_NVLS_ENABLE=0\n"
      "          only if NVLink SHARP is on (NCCL_NVLS_ENABLE, on by default from Hopper on with "
      "NVSwitch)\n");
  EXPECT_EQ(advice(23102), "") << "no later version is better";
  EXPECT_EQ(advice(23203), "");
}

TEST(NcclBugReport, TheAdviceHoldsForTheWholeTable) {
  std::set<int> versions;
  for (const NcclBug& bug : kNcclBugs) {
    if (bug.first_bad > 0) versions.insert(bug.first_bad);
    if (bug.first_good > 0) versions.insert({bug.first_good - 1, bug.first_good});
  }
  for (const int version : versions) {
    const int good = nccl_version_to_move_to(version);
    EXPECT_EQ(advice(version).empty(), good == version) << version;
    if (good == version) continue;
    EXPECT_EQ(advice(version).find(cat("  move to ", nccl_version_text(good), ": ")), 0U);
    for (const NcclBug* bug : nccl_bugs_of(good)) {
      EXPECT_EQ(bug->first_good, 0) << bug->what;
      EXPECT_EQ(advice(version).find(bug->what) != std::string::npos, !bug->has(version));
    }
  }
}

TEST(NcclBugReport, Json) {
  const Json list = to_json(nccl_bug_notices(23102, uses_in(place(23102))));
  ASSERT_EQ(list.size(), 3U);  // those that no version mends
  EXPECT_EQ(list[1]["first_bad"], "2.26.3");
  EXPECT_EQ(list[1]["first_good"], nullptr);
  EXPECT_EQ(list[1]["severity"], "warn");
  EXPECT_EQ(list[1]["condition"], "cumem-host");
  EXPECT_EQ(list[1]["avoid"], "NCCL_CUMEM_HOST_ENABLE=0");
  EXPECT_EQ(list[1]["rungs"], Json::array());
  const Json old = to_json(nccl_bug_notices(22704, {}));
  EXPECT_EQ(old[0]["severity"], "refuse");
  EXPECT_EQ(old[0]["first_bad"], nullptr);
  EXPECT_EQ(old[0]["first_good"], "2.27.5");
  EXPECT_EQ(old[0]["avoid"], nullptr);
}

}  // namespace
}  // namespace shoal
