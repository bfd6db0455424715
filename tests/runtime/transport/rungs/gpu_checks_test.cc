#include "runtime/transport/rungs/gpu_checks.h"

#include <gtest/gtest.h>

namespace shoal {
namespace {

constexpr char kInsufficient[] =
    "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version";

/// A machine with four GPUs on which all is well.
GpuFacts good(int ranks = 4) {
  GpuFacts facts;
  facts.count = 4;
  facts.driver_version = "580.159.03";
  facts.asked = true;
  facts.ranks = ranks;
  facts.module_path = "/opt/libshoal_cuda.so";
  facts.module_architectures = "80-virtual 80-real 90-real 100-real 120-real";
  facts.cuda_runtime = facts.cuda_driver = 13000;
  facts.peers.assign(4, std::vector<bool>(4, true));
  for (int from = 0; from < 4; ++from) {
    facts.devices.push_back({"H100", cat("0000:", 10 + from, ":00.0"), cat("GPU-", from), "9.0",
                             int64_t{80} << 30, ""});
    for (int to = 0; to < 4; ++to) {
      if (from != to) facts.verdicts.push_back({from, to, GpuPeerVerdict::Outcome::kOk});
    }
  }
  facts.nccl_version = 22809;
  facts.nccl_path = "/usr/lib/libnccl.so.2";
  return facts;
}

struct Refusal {
  const char* name;
  void (*spoil)(GpuFacts&);
  Status (*check)(const GpuFacts&);
  Code code;
  std::vector<const char*> said;
};

TEST(GpuChecks, AGoodMachinePasses) {
  for (const auto check : {check_devices, check_nccl, check_peers}) EXPECT_TRUE(check(good()).ok());
  GpuFacts one = good(4);
  one.devices.resize(1);
  one.peers = {{false}};
  one.verdicts.clear();
  one.ranks_per_gpu = 4;
  EXPECT_TRUE(check_peers(one).ok()) << check_peers(one).to_string();
}

TEST(GpuChecks, AGroupKnowsItsDevicesByUuid) {
  GpuFacts facts = good(3);
  facts.ranks_per_gpu = 2;
  const std::vector<GpuName> gpus = group_gpus(facts);
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(to_text(gpus[0]), "GPU 0 (GPU-0, H100)");
  EXPECT_EQ(to_text(gpus[1]), "GPU 1 (GPU-1, H100)");
  EXPECT_TRUE(group_gpus(good(5)).empty()) << "too few";
  EXPECT_TRUE(group_gpus(GpuFacts()).empty()) << "nobody has asked";
}

TEST(GpuChecks, TensorCoresThatDifferAreNamedByUuid) {
  GpuFacts facts = good();
  EXPECT_TRUE(check_same_arithmetic(facts).ok());
  facts.devices[2].compute_capability = "8.6";
  const std::string said = check_same_arithmetic(facts).to_string();
  for (const char* named : {"GPU 0 (GPU-0, H100) of compute capability 9.0",
                            "GPU 2 (GPU-2, H100) of compute capability 8.6 are published to sum "
                            "differently"})
    EXPECT_NE(said.find(named), std::string::npos) << said;
}

TEST(GpuChecks, EveryRefusalHasItsWordsAndOneAdvice) {
  const Refusal table[] = {
      {"not asked",
       [](GpuFacts& f) { f = GpuFacts(); },
       check_devices,
       Code::kFailedPrecondition,
       {"--device cuda"}},
      {"module absent",
       [](GpuFacts& f) {
         f.error_at = GpuErrorAt::kFind, f.error = "the CUDA module /x.so: No such file";
       },
       check_devices,
       Code::kNotFound,
       {"/x.so: No such file", "--cuda-module"}},
      {"module of another build",
       [](GpuFacts& f) {
         f.error_at = GpuErrorAt::kLoad, f.error = "/x.so is of build 1-a, this program of 1-b";
       },
       check_nccl,
       Code::kFailedPrecondition,
       {"build 1-a", "1-b", "--device cpu"}},
      {"no driver",
       [](GpuFacts& f) {
         f.driver_version = "", f.cuda_driver = f.count = 0, f.devices.clear();
         f.error_at = GpuErrorAt::kFacts, f.error = kInsufficient;
       },
       check_devices,
       Code::kFailedPrecondition,
       {"no NVIDIA driver is here; the CUDA module is", "CUDA 13.0", "580.65.06",
        " or newer on the host, and give a container the GPUs"}},
      {"old driver, by its own version",
       [](GpuFacts& f) {
         f.driver_version = "535.104.05", f.cuda_driver = 0, f.devices.clear();
         f.error_at = GpuErrorAt::kFacts, f.error = kInsufficient;
       },
       check_devices,
       Code::kFailedPrecondition,
       {"535.104.05", "too old", kInsufficient, "580.65.06"}},
      {"old driver, by its CUDA",
       [](GpuFacts& f) { f.driver_version = "", f.cuda_driver = 12080; },
       check_peers,
       Code::kFailedPrecondition,
       {"CUDA up to 12.8", "too old", "CUDA 13.0", "580.65.06"}},
      {"driver in the kernel alone",
       [](GpuFacts& f) {
         f.cuda_driver = 0, f.devices.clear(), f.error_at = GpuErrorAt::kFacts,
         f.error = kInsufficient;
       },
       check_devices,
       Code::kFailedPrecondition,
       {"libcuda.so.1", "NVIDIA_DRIVER_CAPABILITIES"}},
      {"no device",
       [](GpuFacts& f) {
         f.devices.clear(), f.error_at = GpuErrorAt::kFacts,
                            f.error = "cudaErrorNoDevice: no CUDA-capable device is detected";
       },
       check_devices,
       Code::kFailedPrecondition,
       {"no CUDA-capable device is detected", "CUDA_VISIBLE_DEVICES"}},
      {"hung before anything",
       [](GpuFacts& f) { f.error_at = GpuErrorAt::kProbe, f.error = "no answer within 20 s"; },
       check_devices,
       Code::kDeadlineExceeded,
       {"20 s", "dmesg"}},
      {"no code for a device",
       [](GpuFacts& f) { f.devices[2].why_unusable = why_no_code(f.module_architectures, "7.0"); },
       check_devices,
       Code::kFailedPrecondition,
       {"GPU 2 (GPU-2, H100) at 0000:12:00.0", "7.0",
        "80-virtual 80-real 90-real 100-real 120-real", "CUDA_VISIBLE_DEVICES can leave it out",
        "--device cpu does without GPUs"}},
      {"more ranks than devices",
       [](GpuFacts& f) { f.ranks = 8; },
       check_devices,
       Code::kFailedPrecondition,
       {"8 ranks", "8 GPUs", "4 are here", "--ranks-per-gpu 2"}},
      {"NCCL absent",
       [](GpuFacts& f) {
         f.nccl_version = 0, f.nccl_error = "libnccl.so.2: cannot open shared object file";
       },
       check_nccl,
       Code::kFailedPrecondition,
       {"cannot open shared object file"}},
      {"NCCL too old",
       [](GpuFacts& f) { f.nccl_version = 22304; },
       check_nccl,
       Code::kFailedPrecondition,
       {"2.23.4", "/usr/lib/libnccl.so.2", "2.27.5"}},
      {"peers forbidden",
       [](GpuFacts& f) { f.peers[1][3] = false; },
       check_peers,
       Code::kFailedPrecondition,
       {"GPU 1 (GPU-1, H100) reach the memory of GPU 3 (GPU-3, H100)", "nvidia-smi topo"}},
      {"peers corrupt",
       [](GpuFacts& f) {
         f.verdicts[5].outcome = GpuPeerVerdict::Outcome::kCorrupt,
         f.verdicts[5].detail = "17 bytes";
       },
       check_peers,
       Code::kDataLoss,
       {"corrupt 17 bytes", "ACS"}},
      {"peers hang",
       [](GpuFacts& f) {
         f.verdicts[1].outcome = GpuPeerVerdict::Outcome::kHung;
         for (size_t i = 2; i < f.verdicts.size(); ++i)
           f.verdicts[i].outcome = GpuPeerVerdict::Outcome::kNotTried;
       },
       check_peers,
       Code::kDeadlineExceeded,
       {"between GPU 0 (GPU-0, H100) and GPU 2 (GPU-2, H100)", "hung"}},
      {"peers not tried",
       [](GpuFacts& f) { f.verdicts.clear(); },
       check_peers,
       Code::kFailedPrecondition,
       {"GPU 0 (GPU-0, H100) and GPU 1 (GPU-1, H100)", "not tried"}},
  };
  for (const Refusal& refusal : table) {
    GpuFacts facts = good();
    refusal.spoil(facts);
    const Status status = refusal.check(facts);
    const std::string text = status.to_string();
    EXPECT_EQ(status.code(), refusal.code) << refusal.name << ": " << text;
    for (const char* said : refusal.said)
      EXPECT_NE(text.find(said), std::string::npos) << refusal.name << ": " << text;
    EXPECT_EQ(text.find("docker"), std::string::npos) << "remedies know the container: " << text;
  }
}

TEST(GpuChecks, PeersOfOtherDevicesDoNotMatter) {
  GpuFacts facts = good(2);
  facts.peers[2][3] = false;
  facts.devices[3].why_unusable = "no code";
  std::erase_if(facts.verdicts, [](const GpuPeerVerdict& v) { return v.from > 1 || v.to > 1; });
  EXPECT_TRUE(check_peers(facts).ok()) << check_peers(facts).to_string();
}

TEST(GpuChecks, CodeForADevice) {
  constexpr char kShipped[] = "80-virtual 80-real 90-real 100-real 120-real";
  for (const char* fits : {"8.0", "8.6", "8.9", "9.0", "10.0", "12.1"})
    EXPECT_EQ(why_no_code(kShipped, fits), "") << fits;
  for (const char* old : {"7.5", "7.0", "6.1", "5.2"})
    EXPECT_NE(why_no_code(kShipped, old), "") << old;
  EXPECT_EQ(why_no_code("80-real", "8.6"), "");
  EXPECT_NE(why_no_code("86-real", "8.0"), "") << "machine code of a later minor version";
  EXPECT_NE(why_no_code("80-real", "9.0"), "") << "machine code of another major version";
  EXPECT_NE(why_no_code("90a-real", "10.0"), "");
  EXPECT_EQ(why_no_code("90a-real", "9.0"), "");
  EXPECT_EQ(why_no_code("80", "9.0"), "") << "no suffix: both kinds";
  EXPECT_EQ(why_no_code("80-real", "12.0 or so"),
            "compute capability 12.0 or so has no code in the module, compiled for 80-real");
}

TEST(GpuChecks, ArchitecturesForPeople) {
  EXPECT_EQ(shown_architectures("80-virtual 80-real 90-real 100-real 120-real"),
            "compute capability 8.0, 9.0, 10.0, 12.0, and others from 8.0 on");
  EXPECT_EQ(shown_architectures("86-real"), "compute capability 8.6");
  EXPECT_EQ(shown_architectures("90-virtual 80-virtual"), "compute capability 8.0 and later");
  for (const char* other : {"", "80", "native", "80-real 90a-real"})
    EXPECT_EQ(shown_architectures(other), other);
}

TEST(GpuChecks, DevicesWhoseDriverHasToCompile) {
  GpuFacts facts = good();
  EXPECT_EQ(devices_to_compile_for(facts), "");
  facts.devices[1].compute_capability = "13.0";
  EXPECT_EQ(devices_to_compile_for(facts), "GPU 1 (GPU-1, H100) of compute capability 13.0");
  EXPECT_TRUE(check_devices(facts).ok()) << "it is slow to start and no reason to refuse";
  facts.module_architectures = "80-virtual 130-real";
  EXPECT_EQ(devices_to_compile_for(facts).find("GPU 1"), std::string::npos);
  facts.module_architectures = "80-real 90-real";
  EXPECT_EQ(devices_to_compile_for(facts), "") << "without virtual code it is refused instead";
  facts.ranks = 1;
  facts.module_architectures = "80-virtual 90-real";
  EXPECT_EQ(devices_to_compile_for(facts), "") << "the group does not use GPU 1";
}

TEST(GpuChecks, DriverFloors) {
  EXPECT_EQ(oldest_driver(13000), "580.65.06");
  EXPECT_EQ(oldest_driver(12080), "525.60.13");
  EXPECT_EQ(oldest_driver(99000), "");
  GpuFacts facts = good();
  facts.driver_version = "535.104.05";
  EXPECT_TRUE(check_devices(facts).ok())
      << "with a library that runs CUDA 13 over it (cuda-compat)";
  facts.cuda_driver = 0;
  facts.devices.clear();
  facts.error_at = GpuErrorAt::kFacts;
  facts.error = kInsufficient;
  for (const auto& [version, old] :
       {std::pair{"580.65.05", true}, {"580.105.08", false}, {"580.65.06", false}}) {
    facts.driver_version = version;  // 105 is greater than 65 as a number, but smaller as text
    const std::string text = check_devices(facts).to_string();
    EXPECT_EQ(text.find("too old") != std::string::npos, old) << version << ": " << text;
  }
}

}  // namespace
}  // namespace shoal
