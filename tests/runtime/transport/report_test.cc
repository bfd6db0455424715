#include <cerrno>
#include <gtest/gtest.h>

#include "runtime/transport/report_text.h"

namespace shoal {
namespace {

TEST(TransportReport, KeepsTheLastRestartsAndTheNumberOfAll) {
  // A server that loses a rank every two minutes does this for a year.
  TransportReport report;
  for (int restart = 0; restart < 262'800; ++restart) report.add_restart(cat("reason ", restart));
  EXPECT_EQ(report.restart_count, 262'800);
  ASSERT_EQ(report.restarts.size(), TransportReport::kMostRestarts);
  EXPECT_EQ(report.restarts.front(), "reason 262780");
  EXPECT_EQ(report.restarts.back(), "reason 262799");
  EXPECT_EQ(to_json(report)["restart_count"], 262'800);
  EXPECT_EQ(to_json(report)["restarts"].size(), TransportReport::kMostRestarts);
  EXPECT_NE(to_text(report).find("restarts: 262800, the last of them:\n  restarted: reason 262780"),
            std::string::npos);
  TransportReport young;
  young.add_restart("once");
  EXPECT_EQ(to_text(young).find("restarts:"), std::string::npos);
}

/// Two ranks that use `rung` because every one before it in the default order was refused.
TransportReport over(const std::string& rung) {
  TransportReport report;
  report.world_size = 2;
  for (const Rung& one : rungs()) report.order.emplace_back(one.name);
  report.rung = rung;
  report.self_test = {.latency_us = 1.25, .bytes_per_s = 2e9, .noisy = false, .seconds = 0.02};
  for (const std::string& refused : report.order) {
    if (refused == rung) break;
    report.refusals.push_back({refused, Phase::kBudget, Fault::kSharedMemory,
                               Status::error(Code::kResourceExhausted, "too little")});
  }
  return report;
}

std::string first_line(const TransportReport& report) {
  const std::string text = to_text(report);
  return text.substr(0, text.find('\n'));
}

TEST(TransportReport, TheWordOfTheVerdictMayHaveAColour) {
  TransportReport forbidden = over("");
  forbidden.forbidden_by = "--min-transport shm";
  TransportReport failed = over("");
  failed.failure = Status::error(Code::kUnavailable, "the start");
  const std::vector<std::pair<TransportReport, std::string>> cases = {
      {over("shm"), "\x1b[32mOK\x1b[0m: 2 ranks use shm, the first"},
      {over("memfd"), "\x1b[32mOK\x1b[0m: 2 ranks use memfd, which"},
      {over("tcp"), "\x1b[33mSLOWER\x1b[0m: 2 ranks use tcp"},
      {over(""), "\x1b[1;31mNO\x1b[0m: no transport"},
      {forbidden, "\x1b[1;31mNO\x1b[0m: shm, memfd, "},
      {failed, "\x1b[1;31mNO\x1b[0m: 2 ranks could not"}};
  for (const auto& [report, says] : cases) {
    const std::string text = to_text(report, true), plain = to_text(report);
    EXPECT_TRUE(text.starts_with(says)) << text;
    // All that follows the word is the same.
    EXPECT_EQ(text.substr(text.find(':')), plain.substr(plain.find(':')));
    EXPECT_EQ(plain.find('\x1b'), std::string::npos);
  }
}

TEST(TransportReport, WhatWasNotDecidedIsNull) {
  TransportReport report;
  EXPECT_TRUE(to_json(report)["headroom_bytes"].is_null());
  report.headroom_bytes = 0;
  EXPECT_EQ(to_json(report)["headroom_bytes"], 0);
}

TEST(TransportReport, TheFirstLineSaysHowGoodItIs) {
  EXPECT_EQ(first_line(over("shm")), "OK: 2 ranks use shm, the first choice.");
  EXPECT_EQ(first_line(over("memfd")), "OK: 2 ranks use memfd, which is as good as shm.");
  EXPECT_EQ(verdict_text(over("memfd"), false, RankWords::kShoals),
            "OK: 2 of Shoal's ranks use memfd, which is as good as shm.");
  EXPECT_TRUE(to_text(over("shm"), false, RankWords::kShoals)
                  .starts_with("OK: 2 of Shoal's ranks use shm, the first choice.\n"));
  EXPECT_EQ(first_line(over("tcp")),
            "SLOWER: 2 ranks use tcp instead of shm: in Shoal's benchmarks an all-reduce takes 6.0 "
            "times as long with 8 KiB and 2.1 times with 1 MiB.");
  TransportReport allowed = over("shm-lean");
  allowed.allowed_by = "--min-transport tcp";
  EXPECT_EQ(
      first_line(allowed),
      "SLOWER: 2 ranks use shm-lean instead of shm: in Shoal's benchmarks an all-reduce takes "
      "1.1 times as long with 8 KiB and 2.2 times with 1 MiB; --min-transport tcp allows it.");
  TransportReport none = over("");
  EXPECT_EQ(first_line(none), "NO: no transport works for 2 ranks.");
  TransportReport late = over("");
  late.refusals.erase(late.refusals.begin() + 1, late.refusals.end());
  EXPECT_EQ(first_line(late),
            "NO: no transport works for 2 ranks; the time for a start ended before the others were "
            "tried.");
  const std::string said = first_line(late);
  late.order_by = "--transport shm,tcp";
  late.may_work = "memfd";
  EXPECT_EQ(first_line(late), said);
  TransportReport listed = none;
  listed.order_by = "--transport shm";
  EXPECT_EQ(first_line(listed), "NO: none of --transport shm works for 2 ranks.");
  listed.may_work = "memfd";
  EXPECT_EQ(first_line(listed),
            "NO: none of --transport shm works for 2 ranks; without it, memfd may work.");
  none.forbidden_by = "--min-transport shm";
  EXPECT_EQ(first_line(none),
            "NO: shm, memfd, shm-lean, cma and tcp do not work here for 2 ranks, and the policy "
            "(--min-transport shm) allows nothing else.");
  TransportReport failed = over("");
  failed.refusals.clear();
  failed.failure = Status::error(Code::kResourceExhausted, "start rank 0", EMFILE)
                       .because_of(Code::kUnavailable, "the start");
  EXPECT_EQ(first_line(failed), "NO: 2 ranks could not be started: the start");
  const std::string folders(1500, 'x');  // a library is not found in any of them
  failed.failure = Status::error(Code::kUnavailable, folders);
  EXPECT_EQ(first_line(failed), "NO: 2 ranks could not be started: " + folders);
  TransportReport alone;
  alone.order = {kNoTransport};
  alone.rung = kNoTransport;
  EXPECT_EQ(first_line(alone), "OK: one rank needs no transport.");
  TransportReport device = over("");
  device.order = {"nccl-p2p", "cuda-ipc"};
  device.rung = "cuda-ipc";
  EXPECT_EQ(first_line(device),
            "SLOWER: 2 ranks use cuda-ipc instead of nccl-p2p: nobody has measured how much slower "
            "that is.");
}

/// What ranks may do without the policy or the list is the first remedy, if nothing is lost by it.
TEST(TransportReport, AFlagThatKeepsOutWhatIsAsGoodIsTheFirstRemedy) {
  const auto remedy = [](const TransportReport& report) {
    const std::string text = to_text(report);
    const size_t at = text.find("remedy");
    return at == std::string::npos ? "" : text.substr(at, text.find('\n', at) - at);
  };
  TransportReport forbidden = over("memfd");
  forbidden.rung.clear();
  forbidden.forbidden_by = "--min-transport shm";
  forbidden.remedies = {{"mount", "too small", "mount y"}};
  forbidden.may_work = "tcp";
  EXPECT_EQ(remedy(forbidden), "remedy (mount): too small") << "tcp is slower";
  forbidden.may_work = "memfd";
  EXPECT_EQ(remedy(forbidden),
            "remedy (flags): leave out --min-transport shm: memfd may work then, which is as good "
            "as shm");
  forbidden.needs.resize(1);
  forbidden.needs[0].rung = "shm";
  forbidden.needs[0].dev_shm.push_back({"slots", 4096, 1});
  forbidden.facts.dev_shm.size_bytes = forbidden.facts.dev_shm.free_bytes = 4095;
  EXPECT_EQ(first_line(forbidden),
            "NO: shm does not fit into /dev/shm for 2 ranks, and the policy (--min-transport shm) "
            "allows nothing else.");
  TransportReport listed = over("tcp");
  listed.order_by = "--transport shm,tcp";
  EXPECT_EQ(remedy(listed), "");
  listed.may_work = "memfd";
  EXPECT_EQ(remedy(listed),
            "remedy (flags): leave out --transport shm,tcp: memfd may work then, which is as good "
            "as shm");
  TransportReport none = over("");
  none.order_by = "--transport shm";
  none.may_work = "memfd";
  EXPECT_EQ(remedy(none),
            "remedy (flags): leave out --transport shm: memfd may work then, which is as good as "
            "shm");
}

TEST(TransportReport, OnlyNeedsOfWhatWasLookedAtAreForPeople) {
  const auto needs_of = [](TransportReport report) {
    for (const std::string& rung : report.order) {
      report.needs.emplace_back();
      report.needs.back().rung = rung;
    }
    EXPECT_EQ(to_json(report)["needs"].size(), report.order.size());
    const std::string text = to_text(report);
    std::string shown;
    for (const std::string& rung : report.order) {
      if (text.find(cat("* need of ", rung, ": ")) != std::string::npos) shown += "*";
      if (text.find(cat(" need of ", rung, ": ")) != std::string::npos) shown += rung + " ";
    }
    EXPECT_EQ(text.find("needs of "), std::string::npos) << "a line that counts the others";
    const size_t whose = text.find("these bytes are for Shoal's ranks; --nccl-version V has those");
    EXPECT_EQ(whose != std::string::npos, !shown.empty()) << text;
    EXPECT_EQ(text.find("; * is the transport in use:\n") != std::string::npos,
              shown.find('*') != std::string::npos)
        << text;
    return shown;
  };
  EXPECT_EQ(needs_of(over("shm")), "*shm ");
  EXPECT_EQ(needs_of(over("memfd")), "shm *memfd ");
  EXPECT_EQ(needs_of(over("")), "shm memfd shm-lean cma tcp ");
  TransportReport failed = over("");
  failed.refusals.clear();
  failed.failure = Status::error(Code::kUnavailable, "no driver");
  EXPECT_EQ(needs_of(failed), "");
}

TEST(TransportReport, WithoutALookAtARungOnlyTheFailureIsSaid) {
  TransportReport report = over("");
  report.needs.resize(1);
  report.needs[0].rung = "shm";
  report.needs[0].dev_shm.push_back({"slots", 4096, 1});
  report.nccl.resize(1);
  report.nccl[0].library_version = report.facts.gpu.nccl_version = 22501;
  for (const char* part :
       {"size of a new, empty /dev/shm", "of /dev/shm predicted", "known bugs of NCCL 2.25.1:"})
    EXPECT_NE(to_text(report).find(part), std::string::npos) << part << to_text(report);
  report.refusals.clear();
  report.failure = Status::error(Code::kUnavailable, "no driver");
  EXPECT_EQ(to_text(report), "NO: 2 ranks could not be started: no driver\n");
}

TEST(TransportReport, WhatIsInDevShmIsNotNeededTwice) {
  TransportReport report = over("shm");
  report.needs.resize(1);
  report.needs[0].rung = "shm";
  const auto says = [&report](const std::string& words) {
    const std::string text = to_text(report);
    EXPECT_NE(text.find(cat("* need of shm: ", words, "\n")), std::string::npos) << text;
  };
  says("0 B in /dev/shm, 0 B of memory");
  report.needs[0].dev_shm.push_back({"slots", 4096, 1});
  says("4096 B in /dev/shm, which count as memory");
  report.needs[0].memory.push_back({"buffers", 8192, 0});
  says("4096 B in /dev/shm, 12288 B of memory, those among them");
}

TEST(TransportReport, HasOneSizeOfDevShm) {
  TransportReport report = over("memfd");
  report.needs.resize(1);
  report.needs[0].rung = "shm";
  report.needs[0].dev_shm.push_back({"slots", 4096, 1});
  const char* const size = "size of a new, empty /dev/shm";
  report.remedies = {{"mount", "read-only", "mount -o remount,rw /dev/shm"}};
  EXPECT_NE(to_text(report).find(size), std::string::npos);
  report.remedies.push_back({"docker", "too small", "docker run --shm-size=8192b ...", true});
  EXPECT_EQ(to_text(report).find(size), std::string::npos) << to_text(report);
  EXPECT_EQ(to_json(report)["shm_size"]["bytes"], 4096);
}

TEST(TransportReport, PhasesOfRefusalsAreExplainedOnceExceptTheBudget) {
  TransportReport report = over("cma");
  report.refusals[0].phase = report.refusals[1].phase = Phase::kTouch;
  const std::string text = to_text(report);
  EXPECT_NE(text.find("\n  refused shm-lean"), std::string::npos) << text;
  const size_t touch = text.find("\n  (touch): the KV cache is being allocated\n");
  EXPECT_NE(touch, std::string::npos) << text;
  EXPECT_EQ(text.find("\n  (touch): ", touch + 1), std::string::npos) << text;
  EXPECT_EQ(text.find("\n  (probe): "), std::string::npos) << text;
  // The reason above says whether room is short or a file cannot be made.
  EXPECT_EQ(text.find("(budget)"), std::string::npos) << text;
  EXPECT_EQ(to_text(over("shm")).find("\n  ("), std::string::npos);
}

TEST(TransportReport, ARemedyNamesItsPlace) {
  TransportReport report = over("tcp");
  report.remedies = {{"other", "killed runs left files", "rm x"},
                     {"mount", "too small", "mount y"}};
  const std::string text = to_text(report);
  EXPECT_TRUE(
      text.ends_with("\nremedy: killed runs left files\n    rm x\n"
                     "remedy (mount): too small\n    mount y\n"))
      << text;
}

TEST(TransportReport, WhatIsAsGoodNeedsNothingToBeDone) {
  TransportReport report = over("memfd");
  EXPECT_NE(
      to_text(report).find("\nnothing needs to be done; why shm is not used:\n  refused shm\n"),
      std::string::npos)
      << to_text(report);
  report.remedies = {{"other", "killed runs left files", "rm x"},
                     {"mount", "too small", "mount y", true, "a larger one"}};
  const std::string text = to_text(report);
  EXPECT_NE(text.find("\nnothing needs to be done; why shm is not used, and what would let it be "
                      "used:\n  refused shm\n"),
            std::string::npos)
      << text;
  EXPECT_TRUE(
      text.ends_with("\nto use shm instead (optional): killed runs left files\n    rm x\n"
                     "to use shm instead (optional, mount): a larger one\n    mount y\n"))
      << text;
  EXPECT_EQ(text.find("remedy"), std::string::npos) << text;
  for (const char* rung : {"shm", "shm-lean", "tcp", ""})
    EXPECT_EQ(to_text(over(rung)).find("nothing needs"), std::string::npos) << rung;
}

TEST(TransportReport, OnlyALossIsADegrade) {
  EXPECT_FALSE(over("shm").degraded());
  EXPECT_FALSE(over("memfd").degraded()) << "shm was refused, but nothing is lost";
  EXPECT_TRUE(over("shm-lean").degraded());
  EXPECT_TRUE(over("").degraded());
  // The order is the user's: what comes first there is what a later rung is compared with.
  TransportReport faster = over("shm");
  faster.order = {"tcp", "shm"};
  EXPECT_EQ(faster.verdict(), Verdict::kAsGood);
}

TEST(TransportReport, InJsonNullIsNothing) {
  const Json fine = to_json(over("memfd"));
  EXPECT_EQ(fine["verdict"], "as-good");
  EXPECT_EQ(fine["degraded"], false);
  EXPECT_EQ(fine["cost"]["beside"], "shm");
  EXPECT_EQ(fine["cost"]["1_mib"], 1.0);
  EXPECT_EQ(fine["self_test"]["noisy"], false);
  EXPECT_TRUE(fine["forbidden_by"].is_null());
  EXPECT_TRUE(fine["allowed_by"].is_null());
  EXPECT_TRUE(fine["facts"]["limits"]["fsize_bytes"].is_null());
  EXPECT_TRUE(fine["facts"]["container"].is_null());
  TransportReport nothing = over("");
  nothing.self_test = {};
  const Json none = to_json(nothing);
  EXPECT_EQ(none["verdict"], "none");
  EXPECT_TRUE(none["rung"].is_null());
  EXPECT_TRUE(none["degraded"].is_null()) << "nothing runs that could be slower";
  EXPECT_TRUE(none["self_test"].is_null());
  EXPECT_TRUE(none["cost"].is_null());
}

TEST(TransportReport, AFailureThatIsNoRefusalHasItsCodeAndCauses) {
  TransportReport report = over("");
  report.refusals.clear();
  EXPECT_TRUE(to_json(report)["error"].is_null());
  report.failure = Status::error(Code::kResourceExhausted, "start rank 0", EMFILE)
                       .because_of(Code::kUnavailable, "the start");
  const Json json = to_json(report);
  EXPECT_EQ(json["error"]["code"], "UNAVAILABLE");
  ASSERT_EQ(json["error"]["causes"].size(), 2u);
  EXPECT_EQ(json["error"]["causes"][1]["code"], "RESOURCE_EXHAUSTED");
  EXPECT_EQ(json["error"]["causes"][1]["errno"], EMFILE);
  EXPECT_TRUE(json["error"]["causes"][0].at("errno").is_null());
  EXPECT_EQ(json["failure"].get<std::string>().find("the start"), 0u);
}

TEST(TransportReport, SaysWhoMakesTheOthersWait) {
  TransportReport report = over("shm");
  EXPECT_TRUE(to_json(report)["waits"].is_null());
  EXPECT_EQ(to_text(report).find("wait"), std::string::npos);
  report.waits = GroupWaits{{0.5, 0.25}, {0.25, 0.5}, GroupWaits::Last{1, 0.5}};
  const Json waits = to_json(report)["waits"];
  EXPECT_EQ(waits["of_rank"], Json({0.5, 0.25}));
  EXPECT_EQ(waits["for_rank"], Json({0.25, 0.5}));
  EXPECT_EQ(waits["rank"], 1);
  EXPECT_EQ(waits["share"], 0.5);
  EXPECT_EQ(waits["text"], "rank 1 makes the others wait 50 % of the step");
  EXPECT_NE(to_text(report).find("\nrank 1 makes the others wait 50 % of the step\n"),
            std::string::npos);
  report.waits->last.reset();
  const Json nobody = to_json(report)["waits"];
  EXPECT_EQ(nobody["of_rank"].size(), 2u);
  EXPECT_EQ(nobody["for_rank"].size(), 2u);
  EXPECT_TRUE(nobody["rank"].is_null() && nobody["share"].is_null() && nobody["text"].is_null());
}

TEST(TransportReport, NoisyFiguresAreNotForPeople) {
  TransportReport report = over("shm");
  EXPECT_EQ(figures_text(report),
            "transport shm for 2 ranks: 8 KiB all-reduce 1.2 us, 1 MiB at 2.00 GB/s, verified in "
            "0.02 s");
  EXPECT_NE(to_text(report).find(figures_text(report) + "\n"), std::string::npos);
  report.self_test.noisy = true;
  const std::string noisy =
      "transport shm for 2 ranks: verified in 0.02 s; timing: this machine is too busy to tell";
  EXPECT_EQ(figures_text(report), noisy);
  EXPECT_NE(to_text(report).find(noisy + "; the figures in --json are unreliable\n"),
            std::string::npos);
  EXPECT_EQ(to_json(report)["self_test"]["latency_us"], 1.25);
}

TEST(TransportReport, DevicesAreNamedByNumberUuidAndName) {
  TransportReport report = over("shm");
  EXPECT_EQ(to_text(report).find("GPU"), std::string::npos);
  report.facts.gpu.devices = {{"NVIDIA H100", "0000:17:00.0", "GPU-8f", "9.0", 1 << 20, ""},
                              {"NVIDIA A100", "0000:18:00.0", "GPU-90", "8.0", 2 << 20, ""}};
  EXPECT_NE(to_text(report).find(
                "  GPU 0 (GPU-8f, NVIDIA H100): compute capability 9.0, 1048576 B (1.0 MiB)\n"
                "  GPU 1 (GPU-90, NVIDIA A100): compute capability 8.0, 2097152 B (2.0 MiB)\n"),
            std::string::npos)
      << to_text(report);
}

TEST(TransportReport, WhatFillsTheDirectoryIsNamedIfRoomIsShort) {
  TransportReport report = over("memfd");
  report.facts.dev_shm.largest_files = {{"/dev/shm/big", 64 << 20, 1000, 7200}};
  EXPECT_NE(to_text(report).find("  67108864 B (64.0 MiB)  /dev/shm/big of user 1000, last written "
                                 "2 h ago\n"),
            std::string::npos)
      << to_text(report);
  report.facts.dev_shm.largest_files[0].user = "me\x1b[31m";
  EXPECT_NE(to_text(report).find("/dev/shm/big of user me?[31m (1000), last written "),
            std::string::npos)
      << to_text(report);
  report.refusals.clear();
  EXPECT_EQ(to_text(report).find("/dev/shm/big"), std::string::npos);
}

}  // namespace
}  // namespace shoal
