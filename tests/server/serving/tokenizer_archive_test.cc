// The archive of a tokenizer's files, read by Python's zipfile.

#include "server/serving/tokenizer_archive.h"

#include <cstdlib>
#include <fstream>
#include <gtest/gtest.h>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

namespace shoal {
namespace {

class TokenizerArchiveTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/shoal-archive-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override { (void)std::system(("rm -r " + folder_).c_str()); }

  void write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << content;
  }

  /// Runs Python with these lines and the folder as its argument.
  bool python(const std::string& lines) const {
    write("look.py", lines);
    return std::system(("python3 " + folder_ + "/look.py " + folder_).c_str()) == 0;
  }

  std::string folder_;
};

TEST_F(TokenizerArchiveTest, HasTheFilesAsTheyAre) {
  std::string binary;
  for (unsigned i = 0; i < 100'000; ++i) binary.push_back(static_cast<char>(i * i));
  write("tokenizer.json", binary);
  write("chat_template.jinja", "");
  write("model.safetensors", "weights");
  const Result<TokenizerArchive> archive = make_tokenizer_archive(folder_);
  ASSERT_TRUE(archive.ok()) << archive.status().to_string();
  write("archive.zip", archive->zip);
  write("sha256", archive->sha256);
  EXPECT_TRUE(python(R"(import hashlib, sys, zipfile
folder = sys.argv[1] + "/"
archive = zipfile.ZipFile(folder + "archive.zip")
assert archive.testzip() is None
assert archive.namelist() == ["tokenizer.json", "chat_template.jinja"], archive.namelist()
for name in archive.namelist():
    assert archive.read(name) == open(folder + name, "rb").read(), name
digest = hashlib.sha256(open(folder + "archive.zip", "rb").read()).hexdigest()
assert digest == open(folder + "sha256").read()
)"));
  const Result<TokenizerArchive> again = make_tokenizer_archive(folder_);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->sha256, archive->sha256) << "equal files give equal archives";
}

TEST_F(TokenizerArchiveTest, SaysThatThereIsNone) {
  const Result<TokenizerArchive> archive = make_tokenizer_archive(folder_);
  ASSERT_FALSE(archive.ok());
  EXPECT_EQ(archive.status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace shoal
