#include "server/commands/npy.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>
#include <unistd.h>

namespace shoal {
namespace {

class NpyTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "npy_test_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const char* name) const { return (folder_ / name).string(); }
  static std::string bytes(const std::string& file) {
    std::ostringstream text;
    text << std::ifstream(file, std::ios::binary).rdbuf();
    return text.str();
  }

  std::filesystem::path folder_;
};

TEST_F(NpyTest, WritesHeaderAndRows) {
  const std::string file = path("a.npy");
  const std::vector<float> values = {0.0f, -0.0f, 1.5f, -2.25f, 1e-40f, 3e38f};
  {
    Result<NpyWriter> out = NpyWriter::open(file);
    ASSERT_TRUE(out.ok()) << out.status().to_string();
    ASSERT_TRUE(out->begin(3, 2).ok());
    ASSERT_TRUE(out->append({values.data(), 2}).ok());
    ASSERT_TRUE(out->append({values.data() + 2, 4}).ok());
    ASSERT_TRUE(out->finish().ok());
  }
  const std::string text = bytes(file);
  ASSERT_GE(text.size(), 10u);
  EXPECT_EQ(text.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
  const size_t header =
      static_cast<unsigned char>(text[8]) + 256u * static_cast<unsigned char>(text[9]);
  EXPECT_EQ((10 + header) % 64, 0u);
  const std::string dictionary = text.substr(10, header);
  EXPECT_EQ(dictionary.find("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }"), 0u)
      << dictionary;
  EXPECT_EQ(dictionary.back(), '\n');
  ASSERT_EQ(text.size(), 10 + header + 24);
  EXPECT_EQ(std::memcmp(text.data() + 10 + header, values.data(), 24), 0);
}

TEST_F(NpyTest, HeaderStaysAlignedForLargeShapes) {
  const std::string file = path("large.npy");
  Result<NpyWriter> out = NpyWriter::open(file);
  ASSERT_TRUE(out.ok());
  ASSERT_TRUE(out->begin(123456789012, 1234567).ok());
  EXPECT_EQ(bytes(file).size() % 64, 0u);
  EXPECT_EQ(out->finish().code(), Code::kInternal);  // no value was appended
}

TEST_F(NpyTest, UnfinishedFilesAreRemovedUnlessTheyWereThere) {
  const std::string created = path("created.npy"), kept = path("kept.npy");
  std::ofstream(kept) << "older";
  {
    Result<NpyWriter> a = NpyWriter::open(created), b = NpyWriter::open(kept);
    ASSERT_TRUE(a.ok());
    ASSERT_TRUE(b.ok());
    EXPECT_TRUE(std::filesystem::exists(created));
  }
  EXPECT_FALSE(std::filesystem::exists(created));
  EXPECT_EQ(bytes(kept), "older");
}

TEST_F(NpyTest, ReplacesALongerFile) {
  const std::string file = path("b.npy");
  std::ofstream(file) << std::string(10000, 'x');
  Result<NpyWriter> out = NpyWriter::open(file);
  ASSERT_TRUE(out.ok());
  ASSERT_TRUE(out->begin(1, 1).ok());
  const float one = 1;
  ASSERT_TRUE(out->append({&one, 1}).ok());
  ASSERT_TRUE(out->finish().ok());
  EXPECT_EQ(bytes(file).size() % 64, 4u);
}

TEST_F(NpyTest, BadPathsNameThePath) {
  for (const std::string& bad : {path("no/such/dir.npy"), folder_.string(), std::string()}) {
    const Result<NpyWriter> out = NpyWriter::open(bad);
    ASSERT_FALSE(out.ok());
    EXPECT_EQ(out.status().code(), Code::kInvalidArgument);
    EXPECT_NE(out.status().to_string().find(bad + " cannot be opened"), std::string::npos);
  }
}

TEST_F(NpyTest, AFullDiskIsAnError) {
  Result<NpyWriter> out = NpyWriter::open("/dev/full");
  if (!out.ok()) GTEST_SKIP() << out.status().to_string();
  const Status status = out->begin(1, 1);
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_NE(status.to_string().find("No space left"), std::string::npos);
}

}  // namespace
}  // namespace shoal
