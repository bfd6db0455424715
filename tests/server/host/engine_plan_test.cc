// What is planned for a start, with the bundled demo model and invented machines.
#include "server/host/engine_plan.h"

#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <unistd.h>

#include "runtime/base/json.h"

namespace shoal {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;
/// One block of the demo model: 6 layers, 4 KV heads of 32, bf16, K and V, 16 tokens.
constexpr int64_t kDemoBlockBytes = 6 * 4 * 32 * 2 * 2 * 16;

const ModelFiles& demo() {
  static const ModelFiles files = open_model(SHOAL_SOURCE_DIR "/models/demo").value();
  return files;
}

HostResources machine(int cpus, uint64_t memory_bytes) {
  HostResources host;
  for (int cpu = 0; cpu < cpus; ++cpu) host.cpus.push_back(10 + cpu);
  host.memory_bytes = memory_bytes;
  return host;
}

std::string refusal(const EngineFlags& flags, const HostResources& host) {
  const Result<EnginePlan> plan = plan_engine(flags, demo(), host);
  EXPECT_FALSE(plan.ok());
  if (plan.ok()) return {};
  EXPECT_EQ(plan.status().code(), Code::kInvalidArgument);
  return plan.status().to_string();
}

TEST(EnginePlanTest, RanksUpToTheLeaves) {
  EngineFlags flags;
  for (const int size : {1, 2, 3, 5, 8}) {
    flags.tensor_parallel_size = size;
    const Result<EnginePlan> plan = plan_engine(flags, demo(), machine(4, 64 * kGiB));
    ASSERT_TRUE(plan.ok()) << size << ": " << plan.status().to_string();
    EXPECT_EQ(plan->world_size, size);
    EXPECT_EQ(plan->model.threads, std::max(1, 4 / size));
    EXPECT_GT(plan->memory.weight_bytes, 0);
    EXPECT_GE(plan->memory.largest_weight_bytes, plan->memory.weight_bytes / size);
  }
  flags.tensor_parallel_size = 9;
  const std::string text = refusal(flags, machine(4, 64 * kGiB));
  EXPECT_NE(text.find("--tensor-parallel-size must be in [1, 8] for this model, not 9"),
            std::string::npos)
      << text;
}

// 4096 ids: on rank 0 whole rows of all of them, and elsewhere the rank's own part of each row.
TEST(EnginePlanTest, CountsTheRowsOfLogits) {
  EngineFlags flags;
  flags.max_num_seqs = 1;
  const auto bytes = [&] {
    return plan_engine(flags, demo(), machine(4, 64 * kGiB)).value().memory.activation_bytes;
  };
  const int64_t one = bytes();
  flags.max_num_seqs = 65;
  EXPECT_EQ(bytes() - one, 64 * 4096 * 4);
  flags.max_num_seqs = 5000;  // a step has no more rows than tokens
  EXPECT_EQ(bytes() - one, (flags.max_num_batched_tokens - 1) * 4096 * 4);

  flags.tensor_parallel_size = 2;
  flags.max_num_seqs = 1;
  const int64_t two = bytes();
  flags.max_num_seqs = 65;
  EXPECT_EQ(bytes() - two, 64 * (4096 + 2048) * 4);
}

TEST(EnginePlanTest, BindsThreadsThatFillTheMachine) {
  struct Case {
    int ranks, threads, cpus;
    double quota;
    size_t bound;
  };
  constexpr Case kCases[] = {
      {2, 1, 2, 0, 2}, {1, 2, 2, 0, 2}, {1, 1, 2, 0, 0}, {2, 2, 2, 0, 0},
      {2, 1, 3, 0, 2}, {2, 2, 8, 0, 0}, {2, 1, 2, 1, 0}, {2, 1, 2, 4, 2},
  };
  for (const Case& c : kCases) {
    EngineFlags flags;
    flags.tensor_parallel_size = c.ranks;
    flags.threads_per_rank = c.threads;
    HostResources host = machine(c.cpus, 64 * kGiB);
    host.cpu_quota = c.quota;
    const std::vector<int32_t> cpus = plan_engine(flags, demo(), host).value().cpus;
    ASSERT_EQ(cpus.size(), c.bound) << c.ranks << " x " << c.threads << " on " << c.cpus;
    for (size_t i = 0; i < cpus.size(); ++i) EXPECT_EQ(cpus[i], 10 + static_cast<int>(i));
  }
}

TEST(EnginePlanTest, TheCacheTakesAtMostAQuarterAndNoMoreThanIsUseful) {
  EngineFlags flags;
  EnginePlan plan = plan_engine(flags, demo(), machine(2, 64 * kGiB)).value();
  EXPECT_EQ(plan.memory.kv_bytes_per_block, kDemoBlockBytes);
  // Enough for every sequence at its full length.
  EXPECT_EQ(plan.model.limits.kv_blocks, 64 * 512 / 16);
  EXPECT_EQ(plan.model.limits.max_model_len, 512);

  plan = plan_engine(flags, demo(), machine(2, 40 * kDemoBlockBytes)).value();
  EXPECT_EQ(plan.model.limits.kv_blocks, 10);
  // The default is reduced to what the memory allows.
  EXPECT_EQ(plan.model.limits.max_model_len, 160);

  flags.max_num_seqs = 65536;  // the cache could use 96 GiB, but a small model starts with 1 GiB
  plan = plan_engine(flags, demo(), machine(2, 64 * kGiB)).value();
  EXPECT_EQ(plan.model.limits.kv_blocks, static_cast<int64_t>(kGiB) / kDemoBlockBytes);
  flags.max_num_seqs = 64;

  flags.kv_cache_memory = 3 * kDemoBlockBytes + 5;
  plan = plan_engine(flags, demo(), machine(2, kGiB)).value();
  EXPECT_EQ(plan.model.limits.kv_blocks, 3);
  EXPECT_EQ(plan.kv_bytes(), 3 * kDemoBlockBytes);

  flags.kv_cache_memory.reset();
  flags.tensor_parallel_size = 8;  // two ranks read each KV head
  EXPECT_EQ(plan_engine(flags, demo(), machine(2, 64 * kGiB)).value().memory.kv_bytes_per_block,
            2 * kDemoBlockBytes);
}

TEST(EnginePlanTest, AGpuThatIsNotThereHasNoSize) {
  EngineFlags flags;
  flags.transport.device.kind = DeviceKind::kCuda;
  HostResources host = machine(2, 64 * kGiB);
  EXPECT_TRUE(plan_engine(flags, demo(), host)->describe_memory().ends_with(", no usable GPU"));
  host.devices = {DevicePart{10 * kGiB}};
  EXPECT_TRUE(plan_engine(flags, demo(), host)
                  ->describe_memory()
                  .ends_with(", 9.0 GiB of its GPU for each rank"));
  const EnginePlan with_gpu = plan_engine(flags, demo(), host).value();
  EXPECT_EQ(with_gpu.available_bytes(), with_gpu.memory.device_bytes);
  host.devices.clear();
  EXPECT_EQ(plan_engine(flags, demo(), host)->available_bytes(), std::nullopt);
  flags.transport.device.kind = DeviceKind::kCpu;
  EXPECT_EQ(plan_engine(flags, demo(), host)->available_bytes(), static_cast<int64_t>(64 * kGiB));
}

TEST(EnginePlanTest, LengthsThatDoNotFitAreRefusedWithTheNumbers) {
  EngineFlags flags;
  flags.max_model_len = 513;
  EXPECT_NE(refusal(flags, machine(2, kGiB)).find("--max-model-len must be in [2, 512]"),
            std::string::npos);
  flags.max_model_len = 100;  // a sequence needs 7 blocks
  flags.kv_cache_memory = 6 * kDemoBlockBytes;
  EXPECT_NE(refusal(flags, machine(2, kGiB)).find(cat("--kv-cache-memory ", 7 * kDemoBlockBytes)),
            std::string::npos);
  flags.kv_cache_memory = 7 * kDemoBlockBytes;
  EXPECT_EQ(plan_engine(flags, demo(), machine(2, kGiB)).value().model.limits.max_model_len, 100);
  flags.max_model_len.reset();
  flags.kv_cache_memory = 100;
  EXPECT_NE(refusal(flags, machine(2, kGiB)).find(cat("--kv-cache-memory ", kDemoBlockBytes)),
            std::string::npos);
  EXPECT_NE(refusal(flags, machine(2, kGiB)).find(", but has 100 B, as --kv-cache-memory says"),
            std::string::npos);
  flags.kv_cache_memory = 2 * kGiB;
  EXPECT_NE(refusal(flags, machine(2, kGiB))
                .find("--kv-cache-memory 2147483648 B (2048.0 MiB) is more than the 1073741824 B "
                      "(1024.0 MiB) of memory that are available"),
            std::string::npos);
}

TEST(EnginePlanTest, ADeviceGivesItsShareLessWhatOthersHave) {
  EngineFlags flags;
  flags.transport.device.kind = DeviceKind::kCuda;
  flags.gpu_memory_utilization = 0.75;
  HostResources host = machine(2, kGiB);
  host.devices = {DevicePart{kGiB}};
  const auto device_bytes = [&] {
    return plan_engine(flags, demo(), host).value().memory.device_bytes;
  };
  EXPECT_EQ(device_bytes(), int64_t{768} << 20);
  host.devices[0].taken_bytes = uint64_t{512} << 20;
  EXPECT_EQ(device_bytes(), int64_t{256} << 20);
  flags.kv_cache_memory = uint64_t{300} << 20;
  const EnginePlan plan = plan_engine(flags, demo(), host).value();
  EXPECT_EQ(plan.memory.device_bytes, int64_t{512} << 20) << "the share is for the default";
  EXPECT_EQ(plan.model.device_memory_share, 1);
  host.devices[0].taken_bytes = kGiB;
  EXPECT_NE(refusal(flags, host).find("is more than the 0 B of memory"), std::string::npos)
      << refusal(flags, host);
  flags.kv_cache_memory.reset();
  constexpr char kAdvice[] = "or a larger --gpu-memory-utilization";
  for (const char* said : {"0 B of its GPU, where others have 1073741824 B", kAdvice}) {
    EXPECT_NE(refusal(flags, host).find(said), std::string::npos) << refusal(flags, host);
  }
  flags.gpu_memory_utilization = 1;
  EXPECT_EQ(refusal(flags, host).find(kAdvice), std::string::npos) << refusal(flags, host);
}

TEST(EnginePlanTest, WhatOthersHaveOfOneDeviceIsNotTakenFromAnother) {
  EngineFlags flags;
  flags.transport.device.kind = DeviceKind::kCuda;
  flags.tensor_parallel_size = 2;
  flags.gpu_memory_utilization = 0.75;
  HostResources host = machine(2, 64 * kGiB);
  host.devices = {{80 * kGiB, 40 * kGiB}, {48 * kGiB, 0}};
  MemoryEstimate memory = plan_engine(flags, demo(), host).value().memory;
  EXPECT_EQ(memory.device_bytes, int64_t{20} << 30) << "60 less 40 on the first, 36 on the second";
  EXPECT_EQ(memory.device_taken_bytes, int64_t{40} << 30);
  host.devices[0].taken_bytes = 4 * kGiB;
  memory = plan_engine(flags, demo(), host).value().memory;
  EXPECT_EQ(memory.device_bytes, int64_t{36} << 30) << "56 on the first";
  EXPECT_EQ(memory.device_taken_bytes, 0);
}

TEST(EnginePlanTest, AStretchedContextIsUsedOnlyIfTheFlagAsksForIt) {
  const std::string demo_dir = SHOAL_SOURCE_DIR "/models/demo";
  const std::filesystem::path dir = testing::TempDir() + cat("/shoal-stretched-", ::getpid());
  std::filesystem::create_directories(dir);
  Json config = parse_json(read_file(demo_dir + "/config.json", 1 << 20).value(), "config").value();
  config["rope_scaling"] = {
      {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 512}};
  std::ofstream(dir / "config.json") << config.dump();
  std::filesystem::create_symlink(demo_dir + "/model.safetensors", dir / "model.safetensors");
  const Result<ModelFiles> files = open_model(dir.string());
  std::filesystem::remove_all(dir);
  ASSERT_TRUE(files.ok()) << files.status().to_string();

  EngineFlags flags;
  EXPECT_EQ(plan_engine(flags, *files, machine(2, 64 * kGiB)).value().model.limits.max_model_len,
            512);
  flags.max_model_len = 2048;
  EXPECT_EQ(plan_engine(flags, *files, machine(2, 64 * kGiB)).value().model.limits.max_model_len,
            2048);
  flags.max_model_len = 2049;
  const Status refused = plan_engine(flags, *files, machine(2, 64 * kGiB)).status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_NE(refused.message().find("[2, 2048], to which rope scaling stretches"),
            std::string_view::npos)
      << refused.to_string();
}

TEST(EnginePlanTest, TypesAndKernels) {
  EngineFlags flags;
  EXPECT_EQ(plan_engine(flags, demo(), machine(2, kGiB)).value().model.dtype, Dtype::kBf16);
  flags.dtype = "float32";
  EXPECT_EQ(plan_engine(flags, demo(), machine(2, kGiB)).value().model.dtype, Dtype::kF32);
  flags.dtype = "float16";
  EXPECT_NE(refusal(flags, machine(2, kGiB)).find("--dtype float16"), std::string::npos);
  flags.dtype = "auto";
  flags.cpu_kernels = "reference";
  EXPECT_EQ(plan_engine(flags, demo(), machine(2, kGiB)).value().model.kernels, "reference");
  flags.cpu_kernels = "sse9";
  EXPECT_NE(refusal(flags, machine(2, kGiB)).find("--cpu-kernels"), std::string::npos);
}

TEST(EnginePlanTest, CommandsCutTheCacheToTheirRequests) {
  EnginePlan plan = plan_engine({}, demo(), machine(2, 64 * kGiB)).value();
  plan.limit_kv_blocks(5);
  EXPECT_EQ(plan.model.limits.kv_blocks, 5);
  plan.limit_kv_blocks(1000);  // the limit never raises the number
  EXPECT_EQ(plan.model.limits.kv_blocks, 5);
  EXPECT_EQ(blocks_for_tokens(0), 0);
  EXPECT_EQ(blocks_for_tokens(16), 1);
  EXPECT_EQ(blocks_for_tokens(17), 2);
  EXPECT_NE(plan.describe_memory().find("5 blocks of 16 tokens"), std::string::npos)
      << plan.describe_memory();
}

TEST(FormatBytesTest, PicksTheUnit) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(3.0 * kGiB), "3.0 GiB");
}

}  // namespace
}  // namespace shoal
