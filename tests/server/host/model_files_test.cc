// A model directory as the front opens it, also one that somebody writes to.
#include "server/host/model_files.h"

#include <filesystem>
#include <fstream>
#include <future>
#include <gtest/gtest.h>
#include <string>
#include <thread>
#include <unistd.h>

#include "tests/guard.h"
#include "tests/held_reads.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDemo = SHOAL_SOURCE_DIR "/models/demo";

TEST(OpenModelTest, NamesTheDirectory) {
  EXPECT_EQ(open_model(kDemo).value().name, "demo");
  EXPECT_EQ(open_model(SHOAL_SOURCE_DIR "/models/demo/").value().name, "demo");
  EXPECT_EQ(open_model(SHOAL_SOURCE_DIR "/models/../models/demo/.").value().name, "demo");
}

TEST(OpenModelTest, SaysWhatIsMissing) {
  for (const char* dir : {"", "/no/such/model", SHOAL_SOURCE_DIR "/models/demo/config.json"}) {
    const Result<ModelFiles> files = open_model(dir);
    ASSERT_FALSE(files.ok()) << dir;
    EXPECT_EQ(files.status().code(), Code::kNotFound) << dir;
    EXPECT_NE(files.status().to_string().find("MODEL"), std::string::npos);
  }
}

TEST(OpenModelTest, QuantizedWeightsAreNoDamage) {
  const std::filesystem::path dir = testing::TempDir() + cat("/shoal-quantized-", ::getpid());
  std::filesystem::create_directories(dir);
  std::filesystem::create_symlink(SHOAL_SOURCE_DIR "/models/demo/config.json", dir / "config.json");
  const std::string header =
      R"({"model.layers.0.self_attn.q_proj.weight":{"dtype":"F8_E4M3","shape":[2,2],"data_offsets":[0,4]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  std::ofstream(dir / "model.safetensors", std::ios::binary) << file + header + "data";
  const Status why = open_model(dir.string()).status();
  std::filesystem::remove_all(dir);
  EXPECT_EQ(why.code(), Code::kUnimplemented) << why.to_string();
  EXPECT_EQ(why.causes().size(), 1u) << why.to_string();
  EXPECT_NE(why.message().find("a quantized checkpoint is not supported"), std::string_view::npos)
      << why.to_string();
}

class WrittenModelTest : public testing::Test {
 protected:
  WrittenModelTest() : dir_(testing::TempDir() + cat("/shoal-written-", ::getpid())) {
    fs::create_directories(dir_);
  }
  ~WrittenModelTest() override { fs::remove_all(dir_); }

  /// The first bytes of the demo's weights, as a copy has them that is not done.
  void write_part(uint64_t bytes) const {
    std::ofstream(weights_) << std::ifstream(fs::path(kDemo) / "model.safetensors").rdbuf();
    fs::resize_file(weights_, bytes);
  }
  void check_changed(const HeldFiles& files, const Status& error, const std::string& path) const {
    const Status changed = unless_changed(files, error);
    EXPECT_EQ(changed.code(), Code::kDataLoss);
    EXPECT_EQ(changed.fault(), Fault::kModelChanged);
    EXPECT_NE(changed.to_string().find(path + " was changed in place while it was opened"),
              std::string::npos)
        << changed.to_string();
    EXPECT_NE(changed.to_string().find(std::string(error.message())), std::string::npos);
  }

  const fs::path dir_;
  const fs::path weights_ = dir_ / "model.safetensors";
};

TEST_F(WrittenModelTest, WhatIsDamagedIsDamaged) {
  write_part(10'000'000);
  HeldFiles opened;
  const Status damaged = Checkpoint::open(dir_, &opened).status();
  ASSERT_EQ(damaged.code(), Code::kInvalidArgument) << damaged.to_string();
  ASSERT_EQ(opened.size(), 1u);
  EXPECT_EQ(unless_changed(opened, damaged).to_string(), damaged.to_string());
  EXPECT_TRUE(unless_changed(opened, {}).ok());
  EXPECT_EQ(unless_changed({}, damaged).to_string(), damaged.to_string());
}

TEST_F(WrittenModelTest, WeightsThatGrowWereChanged) {
  for (const uint64_t bytes : {0, 4, 1000, 10'000'000}) {
    write_part(bytes);
    HeldFiles opened;
    const Status damaged = Checkpoint::open(dir_, &opened).status();
    EXPECT_EQ(damaged.code(), Code::kInvalidArgument) << damaged.to_string();
    fs::resize_file(weights_, bytes + 1);
    check_changed(opened, damaged, weights_);
  }
}

TEST_F(WrittenModelTest, WeightsThatAreEmptiedWhileTheyAreOpenedWereChanged) {
  fs::copy(fs::path(kDemo) / "config.json", dir_);
  fs::copy(fs::path(kDemo) / "model.safetensors", dir_);
  std::promise<HeldReads*> made;
  Status status;
  std::thread opens([&] {
    HeldReads* const reads = HeldReads::make();
    made.set_value(reads);
    if (reads->can_be_held()) status = open_model(dir_).status();
  });
  HeldReads* const reads = made.get_future().get();
  if (reads->can_be_held()) {
    EXPECT_TRUE(reads->hold(kGuardMs)) << "of the header's length";
    fs::resize_file(weights_, 0);
    reads->let_go();
    EXPECT_TRUE(reads->hold(kGuardMs)) << "of the header";
    reads->let_go();
  }
  opens.join();
  if (!reads->can_be_held()) GTEST_SKIP() << "the kernel holds no calls here";
  EXPECT_EQ(status.fault(), Fault::kModelChanged) << status.to_string();
  EXPECT_NE(status.message().find(weights_.string() + " was changed in place"), std::string::npos)
      << status.to_string();
}

TEST_F(WrittenModelTest, ATokenizerThatIsWrittenAfterTheModelWasOpenedWasChanged) {
  fs::copy(kDemo, dir_);
  const ModelFiles files = open_model(dir_).value();
  EXPECT_TRUE(load_tokenizer(files).ok());
  std::ofstream(dir_ / "tokenizer.json") << "{";
  const Status changed = load_tokenizer(files).status();
  EXPECT_EQ(changed.fault(), Fault::kModelChanged) << changed.to_string();
  EXPECT_NE(changed.message().find("tokenizer.json was changed in place"), std::string::npos);
  const Status damaged = load_tokenizer(open_model(dir_).value()).status();
  EXPECT_EQ(damaged.code(), Code::kInvalidArgument) << damaged.to_string();
  EXPECT_EQ(damaged.fault(), Fault::kOwn);
}

TEST_F(WrittenModelTest, AShardThatGrowsWasChanged) {
  write_part(10'000'000);
  fs::rename(weights_, dir_ / "a.safetensors");
  std::ofstream(dir_ / "model.safetensors.index.json") << R"({"weight_map":{"t":"a.safetensors"}})";
  HeldFiles opened;
  const Status damaged = Checkpoint::open(dir_, &opened).status();
  EXPECT_EQ(damaged.code(), Code::kInvalidArgument) << damaged.to_string();
  fs::resize_file(dir_ / "a.safetensors", 10'000'001);
  check_changed(opened, damaged, dir_ / "a.safetensors");
}

TEST_F(WrittenModelTest, AConfigThatIsRewrittenWasChanged) {
  std::ofstream(dir_ / "config.json") << "{\"model_";
  const HeldFiles held = {std::make_shared<HeldFile>(HeldFile::open(dir_ / "config.json").value())};
  const Status damaged = load_model_config(dir_).status();
  EXPECT_EQ(damaged.code(), Code::kInvalidArgument) << damaged.to_string();
  std::ofstream(dir_ / "config.json") << "{}";
  check_changed(held, damaged, dir_ / "config.json");
}

}  // namespace
}  // namespace shoal
