// The real probe process (this program, see main below) over the emulated module, whose environment
// sets what it pretends to be.
#include "runtime/supervisor/gpu_probe.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <gtest/gtest.h>
#include <map>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/deadline.h"
#include "runtime/base/fd.h"
#include "runtime/supervisor/gpu_facts_main.h"
#include "runtime/supervisor/gpu_findings.h"
#include "runtime/supervisor/process_end.h"
#include "runtime/transport/facts/fact_names.h"
#include "runtime/transport/rungs/gpu_checks.h"
#include "tests/guard.h"

namespace shoal {
namespace {

constexpr char kModule[] = SHOAL_EMULATED_MODULE;

using Environment = std::map<std::string, std::string>;

GpuFacts probed(const Environment& environment, const GpuProbeRequest& request) {
  for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
  GpuFacts facts;
  probe_gpus(request, &facts);
  for (const auto& [name, value] : environment) ::unsetenv(name.c_str());
  return facts;
}

GpuProbeRequest over_fake(int ranks = 2) {
  return {.cuda_module = kModule,
          .nccl_library = "libnosuchnccl.so.2",
          .cublas_libraries = {},
          .ranks = ranks,
          .ranks_per_gpu = 1,
          .deadline_s = kGuardSeconds};
}

/// True if this process has no children, not even a dead one that was not reaped.
bool no_children() {
  return ::waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD;
}

TEST(GpuProbe, FactsOfDevices) {
  const GpuFacts facts = probed({{"EMULATED_GPU_DEVICES", "3"},
                                 {"EMULATED_GPU_PEERS", "all"},
                                 {"EMULATED_GPU_TAKEN", "73741824"}},
                                over_fake(2));
  EXPECT_TRUE(facts.asked);
  EXPECT_EQ(facts.error, "");
  EXPECT_EQ(facts.ranks, 2);
  EXPECT_EQ(facts.module_path, kModule);
  EXPECT_NE(facts.module_build_id, "");
  EXPECT_EQ(facts.cuda_runtime, 13000);
  EXPECT_EQ(facts.cuda_driver, 13000);
  ASSERT_EQ(facts.devices.size(), 3u);
  EXPECT_EQ(facts.devices[2].name, "Emulated GPU");
  EXPECT_EQ(facts.devices[2].pci_bus_id, "0000:12:00.0");
  EXPECT_EQ(facts.devices[2].compute_capability, "9.0");
  EXPECT_EQ(facts.devices[2].bytes, 1073741824);
  EXPECT_EQ(facts.devices[2].why_unusable, "");
  EXPECT_EQ(facts.devices[1].free_bytes, 1'000'000'000);
  EXPECT_EQ(facts.devices[2].free_bytes, -1) << "only the group's devices are asked";
  ASSERT_EQ(facts.peers.size(), 3u);
  EXPECT_TRUE(facts.peers[0][2]);
  EXPECT_FALSE(facts.peers[2][2]);
  const std::vector<GpuPeerVerdict> both = {{0, 1, GpuPeerVerdict::Outcome::kOk},
                                            {1, 0, GpuPeerVerdict::Outcome::kOk}};
  EXPECT_EQ(facts.verdicts, both) << "of the group's devices alone";
  EXPECT_TRUE(check_peers(facts).ok()) << check_peers(facts).to_string();
  EXPECT_EQ(facts.nccl_version, 0);
  EXPECT_NE(facts.nccl_error.find("libnosuchnccl.so.2"), std::string::npos) << facts.nccl_error;
  EXPECT_TRUE(no_children());
}

TEST(GpuProbe, TheModuleIsAbsentOrOfAnotherBuildOrNone) {
  GpuProbeRequest request = over_fake();
  request.cuda_module = "/nonexistent/libshoal_cuda.so";
  GpuFacts facts = probed({}, request);
  EXPECT_EQ(facts.error_at, GpuErrorAt::kFind);
  EXPECT_EQ(check_devices(facts).code(), Code::kNotFound);
  EXPECT_NE(facts.error.find("/nonexistent/libshoal_cuda.so"), std::string::npos) << facts.error;
  EXPECT_NE(facts.error.find("No such file"), std::string::npos) << facts.error;

  facts = probed({{"EMULATED_GPU_BUILD_ID", "9-old"}}, over_fake());
  EXPECT_EQ(facts.error_at, GpuErrorAt::kLoad);
  EXPECT_NE(facts.error.find("9-old"), std::string::npos) << facts.error;

  request.cuda_module = SHOAL_SOURCE_DIR "/CMakeLists.txt";
  facts = probed({}, request);
  EXPECT_EQ(facts.error_at, GpuErrorAt::kLoad);
  EXPECT_NE(facts.error.find("invalid ELF header"), std::string::npos) << facts.error;
}

TEST(GpuProbe, WhatCudaSaysIsKept) {
  GpuFacts facts = probed({{"EMULATED_GPU_FAIL", "cudaGetDeviceCount:35"}}, over_fake());
  EXPECT_EQ(facts.error_at, GpuErrorAt::kFacts);
  EXPECT_EQ(
      facts.error,
      "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version");
  facts = probed({{"EMULATED_GPU_DEVICES", "0"}}, over_fake());
  EXPECT_EQ(facts.error, "cudaErrorNoDevice: no CUDA-capable device is detected");
  facts = probed({{"EMULATED_GPU_DRIVER", "12080"}}, over_fake());
  EXPECT_NE(check_devices(facts).to_string().find("too old"), std::string::npos)
      << check_devices(facts).to_string();
  facts = probed({{"EMULATED_GPU_CAPABILITY", "7.0"}}, over_fake());
  EXPECT_NE(facts.devices[0].why_unusable.find("7.0"), std::string::npos);
  EXPECT_EQ(check_devices(facts).code(), Code::kFailedPrecondition);
}

TEST(GpuProbe, SilentCorruptionIsAVerdict) {
  const GpuFacts facts =
      probed({{"EMULATED_GPU_PEERS", "all"}, {"EMULATED_GPU_PEER_WRONG", "*-*"}}, over_fake());
  ASSERT_EQ(facts.verdicts.size(), 2u);
  EXPECT_EQ(to_text(facts.verdicts[0]).rfind("corrupt ", 0), 0u) << to_text(facts.verdicts[0]);
  EXPECT_TRUE(check_devices(facts).ok());
  EXPECT_EQ(check_peers(facts).code(), Code::kDataLoss);
}

TEST(GpuProbe, AFailingPairIsSaidInCudasWords) {
  const GpuFacts facts = probed(
      {{"EMULATED_GPU_PEERS", "all"}, {"EMULATED_GPU_FAIL", "cudaDeviceEnablePeerAccess:719"}},
      over_fake());
  ASSERT_EQ(facts.verdicts.size(), 2u);
  EXPECT_EQ(to_text(facts.verdicts[1]),
            "failed: cudaErrorLaunchFailure: unspecified launch failure");
}

TEST(GpuProbe, ThePairThatHangsIsNamedWithinTheDeadline) {
  GpuProbeRequest request = over_fake(3);
  // Long, because a busy machine may take time to start a process, and a sanitizer for a pattern.
#ifdef SHOAL_SANITIZED
  request.deadline_s = 30;
#else
  request.deadline_s = 6;
#endif
  const Clock::time_point began = Clock::now();
  const GpuFacts facts =
      probed({{"EMULATED_GPU_PEERS", "all"}, {"EMULATED_GPU_PEER_HANG", "1-2"}}, request);
  EXPECT_LT(seconds_since(began), kGuardSeconds + request.deadline_s);
  EXPECT_EQ(facts.error, "") << "devices and NCCL are known";
  EXPECT_EQ(facts.devices.size(), 8u);
  const std::vector<GpuPeerVerdict> verdicts = {
      {0, 1, GpuPeerVerdict::Outcome::kOk},       {0, 2, GpuPeerVerdict::Outcome::kOk},
      {1, 0, GpuPeerVerdict::Outcome::kOk},       {1, 2, GpuPeerVerdict::Outcome::kHung},
      {2, 0, GpuPeerVerdict::Outcome::kNotTried}, {2, 1, GpuPeerVerdict::Outcome::kNotTried}};
  EXPECT_EQ(facts.verdicts, verdicts);
  const Status status = check_peers(facts);
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  const std::vector<GpuName> gpus = group_gpus(facts);
  ASSERT_GE(gpus.size(), 3u);
  EXPECT_NE(gpus[2].uuid, "");
  EXPECT_NE(status.to_string().find(cat(to_text(gpus[1]), " and ", to_text(gpus[2]), ": hung")),
            std::string::npos)
      << status.to_string();
  EXPECT_TRUE(no_children());
}

TEST(GpuProbe, ProcessesThatHangOrDieAreBlamedForWhatTheyWereAt) {
  GpuFacts facts;
  GpuFindings findings{&facts, ""};
  EXPECT_TRUE(findings.take(R"({"doing": "load NCCL"})").ok());
  EXPECT_EQ(findings.doing, "load NCCL");
  for (const char* bad :
       {"", "{}", "[]", "7", R"({"later": 1})", R"({"memory": {"device": 7}})", R"({"peer": 1})",
        R"({"peer": {"from": "x"}})", R"({"driver": {}})", R"({"driver": {"devices": [1]}})",
        R"({"driver": {"devices": [], "can_access_peer": [[true, false]]}})",
        "NCCL version 2.28.9"}) {
    EXPECT_EQ(findings.take(bad).code(), Code::kInvalidArgument) << bad;
  }
  EXPECT_FALSE(findings.done);
  std::string line = gpu_done_line();
  EXPECT_TRUE(findings.take(line).ok());
  EXPECT_TRUE(findings.done);

  GpuProbeRequest request = over_fake();
  request.cuda_module = "dies";
  facts = probed({}, request);
  EXPECT_EQ(facts.error_at, GpuErrorAt::kProbe);
  EXPECT_EQ(
      facts.error,
      "a try to ask the CUDA driver for its devices was killed by signal 11 (Segmentation fault)");
  request.cuda_module = "hangs";
  request.deadline_s = 1;
  facts = probed({}, request);
  EXPECT_EQ(check_devices(facts).code(), Code::kDeadlineExceeded);
  EXPECT_NE(facts.error.find("did not end within 1 s"), std::string::npos) << facts.error;
  EXPECT_TRUE(no_children());
}

TEST(GpuProbe, EndsIfNobodyReads) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ::close(ends[0]);  // before the child can write
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGPIPE, SIG_IGN);  // as in shoal's main()
    ::dup2(ends[1], STDOUT_FILENO);
    ::close(ends[1]);
    gpu_facts_main(kModule, "libnosuchnccl.so.2", "2", "1", {});
  }
  ::close(ends[1]);
  const std::optional<ProcessEnd> end = await_end(child, Fd(), Deadline::after_ms(kGuardMs));
  if (!end) ::kill(child, SIGKILL);
  ASSERT_TRUE(end) << "it goes on without a reader";
  EXPECT_EQ(describe_exit(end->code, end->status), "exited with code 1");
}

}  // namespace
}  // namespace shoal

int main(int argc, char** argv) {
  const std::string module = argc >= 6 && std::string(argv[1]) == "gpu-facts" ? argv[2] : "";
  if (module == "dies" || module == "hangs") {
    const std::string line = shoal::gpu_doing_line("ask the CUDA driver for its devices");
    if (::write(STDOUT_FILENO, line.data(), line.size()) < 0) return 1;
    if (module == "hangs") ::pause();
    std::signal(SIGSEGV, SIG_DFL);
    std::raise(SIGSEGV);
  }
  if (!module.empty())
    return shoal::gpu_facts_main(argv[2], argv[3], argv[4], argv[5], {argv + 6, argv + argc});
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
