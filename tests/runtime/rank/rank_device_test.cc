#include "runtime/rank/rank_device.h"

#include <cstdlib>
#include <gtest/gtest.h>

#include "runtime/device/module_loader.h"

namespace shoal {
namespace {

RankStart start_of(int rank, int world_size, int ranks_per_gpu) {
  RankStart start;
  start.rank = rank;
  start.world_size = world_size;
  start.device = DeviceKind::kCuda;
  start.ranks_per_gpu = ranks_per_gpu;
  start.cuda_module = SHOAL_EMULATED_MODULE;
  return start;
}

/// An exchange in which every rank brings what this one brings, except for the last rank if `last`
/// is given.
Exchange exchange_with(int world_size, std::string last = "") {
  return [=](const std::string& mine) -> Result<std::vector<std::string>> {
    std::vector<std::string> all(static_cast<size_t>(world_size), mine);
    if (!last.empty()) all.back() = last;
    return all;
  };
}

TEST(RankDevice, RanksTakeTheirDevices) {
  for (const auto& [rank, per_gpu, index] :
       {std::tuple{0, 1, 0}, {3, 1, 3}, {3, 2, 1}, {1, 4, 0}}) {
    const auto device = open_rank_device(start_of(rank, 4, per_gpu), exchange_with(4));
    ASSERT_TRUE(device.ok()) << device.status().to_string();
    EXPECT_EQ((*device)->index(), index);
  }
}

/// The UUID of an emulated device.
std::string uuid_of(int device) {
  return cat("GPU-656d756c-6174-6564-2047-50550000000", device);
}

/// Opens the device of the rank while CUDA numbers the devices like this.
Result<std::shared_ptr<Device>> open_among(const char* numbers, const RankStart& start) {
  ::setenv("EMULATED_GPU_NUMBERS", numbers, 1);
  Result<std::shared_ptr<Device>> device = open_rank_device(start, exchange_with(start.world_size));
  ::unsetenv("EMULATED_GPU_NUMBERS");
  return device;
}

TEST(RankDevice, ADeviceIsFoundByItsUuidWhateverItsNumber) {
  RankStart start = start_of(1, 2, 1);
  start.gpus = {{0, uuid_of(0), "first"}, {1, uuid_of(1), "second"}};
  for (const auto& [numbers, number] : {std::pair{"0,1", 1}, {"1,0", 0}, {"3,2,1", 2}}) {
    const auto device = open_among(numbers, start);
    ASSERT_TRUE(device.ok()) << device.status().to_string();
    EXPECT_EQ((*device)->index(), number);
    EXPECT_EQ((*device)->text(), cat("GPU ", number, " (", uuid_of(1), ", second)"));
    EXPECT_NE((*device)->check(719, "sum").message().find((*device)->text()), std::string::npos);
  }
}

TEST(RankDevice, ADeviceThatIsGoneMayComeBackIfRanksHaveHadIt) {
  RankStart start = start_of(0, 1, 1);
  start.gpus = {{4, uuid_of(4), "lost one"}};
  for (const bool has_run : {false, true}) {
    start.has_run = has_run;
    for (const char* numbers : {"0,1", "none"}) {
      const Status status = open_among(numbers, start).status();
      EXPECT_EQ(status.fault(), has_run ? Fault::kShortage : Fault::kOwn) << status.to_string();
      EXPECT_NE(status.to_string().find(cat("GPU 4 (", uuid_of(4), ", lost one)")),
                std::string::npos)
          << status.to_string();
    }
    EXPECT_NE(open_among("0,1", start).status().to_string().find("CUDA shows 2 GPUs now"),
              std::string::npos);
  }
}

TEST(RankDevice, NoSuchDeviceNamesTheFlag) {
  ::setenv("EMULATED_GPU_DEVICES", "1", 1);
  const Status status = open_rank_device(start_of(1, 2, 1), exchange_with(2)).status();
  ::unsetenv("EMULATED_GPU_DEVICES");
  for (const char* said : {"rank 1", "--ranks-per-gpu 1", "GPU 1", "invalid device ordinal"}) {
    EXPECT_NE(status.to_string().find(said), std::string::npos) << status.to_string();
  }
}

TEST(RankDevice, VersionsMustAgree) {
  const Result<const ShoalCudaModule*> module = load_cuda_module(SHOAL_EMULATED_MODULE);
  ASSERT_TRUE(module.ok()) << module.status().to_string();
  const Result<std::string> mine = device_versions(**module);
  ASSERT_TRUE(mine.ok()) << mine.status().to_string();
  EXPECT_EQ(*mine, cat("module ", (*module)->build_id, ", CUDA 13000, driver 13000"));
  EXPECT_TRUE(check_same_versions({*mine, *mine, *mine}).ok());

  const Status status = open_rank_device(start_of(0, 3, 1),
                                         exchange_with(3, "module 9-old, CUDA 12080, driver 13000"))
                            .status();
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  for (const char* said : {"rank 0 has module", "rank 2 has module 9-old, CUDA 12080"}) {
    EXPECT_NE(status.to_string().find(said), std::string::npos) << status.to_string();
  }
}

TEST(RankDevice, AModuleThatIsGoneIsSaidByName) {
  RankStart start = start_of(0, 2, 1);
  start.cuda_module = "/nonexistent/m.so";
  const Status status = open_rank_device(start, exchange_with(2)).status();
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_NE(status.to_string().find("/nonexistent/m.so"), std::string::npos);
}

}  // namespace
}  // namespace shoal
