#include "models/safetensors.h"

#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

#include "models/safetensors_header.h"
#include "runtime/base/archive.h"
#include "runtime/control/descriptors.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

/// The content of a safetensors file: the length, the header, the data.
std::string file_of(const std::string& header, size_t data_bytes = 0) {
  std::string file(8, '\0');
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(header.size() >> (8 * i));
  file += header;
  for (size_t i = 0; i < data_bytes; ++i) file += static_cast<char>(i);
  return file;
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

Result<std::vector<TensorEntry>> parse(const std::string& header, size_t data_bytes = 0) {
  const std::string file = file_of(header, data_bytes);
  return parse_safetensors_header(file, file.size(), "a.safetensors");
}

TEST(SafetensorsHeaderTest, Reads) {
  const std::string header = "{\"__metadata__\":{\"format\":\"pt\"}," +
                             tensor("b", "BF16", "[2, 3]", "[4, 16]") + "," +
                             tensor("a", "F32", "[]", "[0, 4]") + "," +
                             tensor("none", "I64", "[0, 5]", "[16, 16]") + "}   ";
  const auto tensors = parse(header, 16);
  ASSERT_TRUE(tensors.ok()) << tensors.status().to_string();
  ASSERT_EQ(tensors->size(), 3u);
  EXPECT_EQ((*tensors)[0].name, "a");
  EXPECT_EQ((*tensors)[0].dtype, "F32");
  EXPECT_TRUE((*tensors)[0].shape.empty());
  EXPECT_EQ((*tensors)[0].begin, 8 + header.size());
  EXPECT_EQ((*tensors)[0].end, 8 + header.size() + 4);
  EXPECT_EQ((*tensors)[1].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ((*tensors)[1].begin, 8 + header.size() + 4);
  EXPECT_EQ((*tensors)[2].shape, (std::vector<int64_t>{0, 5}));
}

TEST(SafetensorsHeaderTest, HolesAndUnknownKeysAreAllowed) {
  const auto tensors =
      parse("{" + tensor("a", "U8", "[1]", "[0,1]") + "," + tensor("b", "U8", "[1]", "[9,10]") +
                ",\"c\":{\"dtype\":\"U8\",\"note\":{\"x\":[1,{\"y\":null}]},\"shape\":[1]," +
                "\"more\":true,\"data_offsets\":[5,6]}}",
            10);
  ASSERT_TRUE(tensors.ok()) << tensors.status().to_string();
  EXPECT_EQ(tensors->size(), 3u);
}

TEST(SafetensorsHeaderTest, EveryDtypeOfTheFormatHasItsSize) {
  const std::vector<std::pair<std::string, int>> bits = {
      {"BOOL", 8},    {"U8", 8},   {"I8", 8},   {"F8_E4M3", 8}, {"F8_E5M2", 8},
      {"F8_E8M0", 8}, {"U16", 16}, {"I16", 16}, {"F16", 16},    {"BF16", 16},
      {"U32", 32},    {"I32", 32}, {"F32", 32}, {"U64", 64},    {"I64", 64},
      {"F64", 64},    {"C64", 64}, {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6}};
  for (const auto& [dtype, width] : bits) {
    const auto fits =
        parse("{" + tensor("a", dtype, "[8]", "[0," + std::to_string(width) + "]") + "}", 64);
    EXPECT_TRUE(fits.ok()) << fits.status().to_string();
    EXPECT_FALSE(
        parse("{" + tensor("a", dtype, "[8]", "[0," + std::to_string(width - 1) + "]") + "}", 64)
            .ok());
  }
}

struct BadHeader {
  std::string header;
  std::string says;
};

TEST(SafetensorsHeaderTest, DamageNamesTheTensor) {
  const std::string good = tensor("w", "U8", "[4]", "[0,4]");
  const std::vector<BadHeader> cases = {
      {"", "does not start with '{'"},
      {"[]", "does not start with '{'"},
      {" {}", "does not start with '{'"},
      {"{", "not JSON at byte"},
      {"{} {}", "not JSON at byte"},
      {"{\"\xff\":{}}", "not JSON at byte"},
      {"{" + good + "," + good + "}", "tensor \"w\": comes twice"},
      {"{\"__metadata__\":{},\"__metadata__\":{}}", "\"__metadata__\": comes twice"},
      {"{\"w\":3}", "tensor \"w\": a number where {dtype, shape, data_offsets} should be"},
      {"{\"w\":[]}", "tensor \"w\": an array where"},
      {"{\"w\":null}", "tensor \"w\": null where"},
      {"{\"w\":{}}", "tensor \"w\": dtype, shape or data_offsets (two numbers) is missing"},
      {"{\"w\":{\"dtype\":\"U8\",\"shape\":[4]}}", "is missing"},
      {"{\"w\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0]}}", "is missing"},
      {"{\"w\":{\"dtype\":\"U8\",\"shape\":[4],\"shape\":[4],\"data_offsets\":[0,4]}}",
       "shape comes twice"},
      {"{\"w\":{\"dtype\":8,\"shape\":[4],\"data_offsets\":[0,4]}}",
       "tensor \"w\": a number as dtype"},
      {"{\"w\":{\"dtype\":\"U8\",\"shape\":4,\"data_offsets\":[0,4]}}",
       "tensor \"w\": a number as shape"},
      {"{\"w\":{\"dtype\":\"U8\",\"shape\":{},\"data_offsets\":[0,4]}}",
       "tensor \"w\": an object as shape"},
      {"{" + tensor("w", "U8", "[[4]]", "[0,4]") + "}", "tensor \"w\": an array in shape"},
      {"{" + tensor("w", "U8", "[-4]", "[0,4]") + "}", "tensor \"w\": a negative number in shape"},
      {"{" + tensor("w", "U8", "[4.0]", "[0,4]") + "}", "not an integer below 2^64 in shape"},
      {"{" + tensor("w", "U8", "[4]", "[0,\"4\"]") + "}", "a string in data_offsets"},
      {"{" + tensor("w", "U8", "[4]", "[0,2,4]") + "}", "more than 2 numbers"},
      {"{" + tensor("w", "U8", "[4]", "[4,0]") + "}", "data_offsets [4, 0) end before"},
      {"{" + tensor("w", "U8", "[9]", "[0,9]") + "}",
       ": the file ends too early: data_offsets [0, 9) of tensor \"w\" lie outside its 8 B of data"},
      {"{" + tensor("w", "U8", "[4]", "[18446744073709551612,18446744073709551615]") + "}",
       "lie outside its 8 B of data, unless its header is wrong; download it again"},
      {"{" + tensor("w", "U8", "[4]", "[0,18446744073709551616]") + "}", "in data_offsets"},
      {"{" + tensor("w", "U8", "[4]", "[0,5]") + "}",
       "has 5 B of data, its shape and dtype need 4 B"},
      {"{" + tensor("w", "U8", "[9223372036854775808]", "[0,4]") + "}",
       "dimension 9223372036854775808 is larger"},
      {"{" + tensor("w", "F32", "[4611686018427387904]", "[0,4]") + "}", "does not fit 63 bits"},
      {"{" + tensor("w", "U8", "[4294967296,4294967296]", "[0,0]") + "}", "does not fit 63 bits"},
      {"{" + tensor("w", "U8", "[4294967296,0,4294967296]", "[0,0]") + "}", "does not fit 63 bits"},
      {"{" + tensor("w", "U8", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,1]") + "}",
       "more than 16 dimensions"},
      {"{" + tensor("w", "F4", "[3]", "[0,2]") + "}", "has 2 B of data"},
      {"{" + tensor("w", "X9", "[4]", "[0,4]") + "}", "tensor \"w\": unknown dtype \"X9\""},
      {"{" + good + "," + tensor("v", "U8", "[4]", "[3,7]") + "}",
       "tensor \"v\": its bytes overlap those of \"w\""},
      {"{" + good + "," + tensor("v", "U8", "[1]", "[0,1]") + "}", "overlap"},
      {"{\"__metadata__\":" + std::string(100'000, '[') + "}", "\"__metadata__\": an array where"},
      {"{\"__metadata__\":{\"a\":" + std::string(100'000, '[') + "}}", "nested deeper than 64"},
      {"{\"w\":{\"x\":" + std::string(100'000, '[') + "}}", "nested deeper than 64"},
  };
  for (const BadHeader& test : cases) {
    SCOPED_TRACE(test.header.substr(0, 200));
    const auto tensors = parse(test.header, 8);
    ASSERT_FALSE(tensors.ok());
    EXPECT_EQ(tensors.status().code(), Code::kInvalidArgument);
    EXPECT_NE(tensors.status().message().find(test.says), std::string_view::npos)
        << tensors.status().to_string();
    EXPECT_TRUE(tensors.status().message().starts_with("a.safetensors: "))
        << tensors.status().to_string();
  }
}

TEST(SafetensorsHeaderTest, LengthsThatCannotBe) {
  const auto parse_length = [](uint64_t length, uint64_t file_bytes) {
    char head[10] = {0, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    for (int i = 0; i < 8; ++i) head[i] = static_cast<char>(length >> (8 * i));
    return parse_safetensors_header({head, 10}, file_bytes, "a.safetensors");
  };
  EXPECT_TRUE(parse_length(2, 10).ok());
  for (const auto& [length, file_bytes] :
       std::vector<std::pair<uint64_t, uint64_t>>{{3, 10},
                                                  {3, 11},
                                                  {100'000'001, uint64_t{1} << 40},
                                                  {uint64_t{1} << 63, 10},
                                                  {UINT64_MAX, 10},
                                                  {UINT64_MAX - 7, UINT64_MAX},
                                                  {2, 9},
                                                  {2, 0}}) {
    EXPECT_FALSE(parse_length(length, file_bytes).ok()) << length << " in " << file_bytes;
  }
  EXPECT_FALSE(parse_safetensors_header("", 0, "a").ok());
  EXPECT_FALSE(parse_safetensors_header("1234567", 7, "a").ok());
}

TEST(SafetensorsHeaderTest, EveryTruncationOfAFileIsSeen) {
  const std::string file = file_of(
      "{" + tensor("a", "U8", "[4]", "[0,4]") + "," + tensor("b", "F32", "[1]", "[4,8]") + "}", 8);
  ASSERT_TRUE(parse_safetensors_header(file, file.size(), "a").ok());
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_FALSE(parse_safetensors_header(file.substr(0, size), size, "a").ok()) << size;
  }
}

TEST(SafetensorsIndexTest, Reads) {
  const auto index = parse_safetensors_index(
      R"({"metadata": {"total_size": 8}, "weight_map": {"a": "x-1.safetensors", "b": "x-2.safetensors"}})",
      "index");
  ASSERT_TRUE(index.ok()) << index.status().to_string();
  EXPECT_EQ(*index, (std::map<std::string, std::string>{{"a", "x-1.safetensors"},
                                                        {"b", "x-2.safetensors"}}));
}

TEST(SafetensorsIndexTest, OnlyPlainNames) {
  for (const char* file :
       {R"("../x.safetensors")", R"("/etc/passwd")", R"("sub/x.safetensors")", R"("..")", R"(".")",
        R"("")", R"("a\\b")", R"("a\u0000b")", "5", "null", "[]"}) {
    const auto index = parse_safetensors_index(
        std::string(R"({"weight_map": {"some.weight": )") + file + "}}", "index");
    ASSERT_FALSE(index.ok()) << file;
    EXPECT_EQ(index.status().code(), Code::kInvalidArgument);
    EXPECT_NE(index.status().message().find("\"some.weight\""), std::string_view::npos)
        << index.status().to_string();
  }
  for (const char* text :
       {"", "[]", "{}", R"({"weight_map": []})", R"({"weight_map": {}})", "{\"weight_map\""}) {
    EXPECT_FALSE(parse_safetensors_index(text, "index").ok()) << text;
  }
}

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() : dir_(testing::TempDir() + "/shoal-checkpoint-" + std::to_string(getpid())) {
    fs::create_directories(dir_);
  }
  ~CheckpointTest() override { fs::remove_all(dir_); }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(dir_ + "/" + name, std::ios::binary) << content;
  }
  /// The error of opening the directory.
  Status refusal() const {
    const Result<Checkpoint> checkpoint = Checkpoint::open(dir_);
    EXPECT_FALSE(checkpoint.ok());
    return checkpoint.status();
  }
  const std::string dir_;
};

TEST_F(CheckpointTest, SingleFile) {
  const std::string header = "{" + tensor("a", "F32", "[1, 2]", "[0,8]") + "," +
                             tensor("i", "I64", "[1]", "[8,16]") + "," +
                             tensor("empty", "F16", "[0, 7]", "[16,16]") + "}";
  write("model.safetensors", file_of(header, 16));
  Result<Checkpoint> opened = Checkpoint::open(dir_);
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  const Checkpoint checkpoint = std::move(*opened);  // the views must stay valid after the move
  EXPECT_EQ(checkpoint.names(), (std::vector<std::string>{"a", "empty", "i"}));
  EXPECT_EQ(checkpoint.total_bytes(), 16u);
  EXPECT_TRUE(checkpoint.has("a"));
  EXPECT_FALSE(checkpoint.has("b"));

  const Result<TensorView> a = checkpoint.tensor("a", {-1, 2});
  ASSERT_TRUE(a.ok()) << a.status().to_string();
  EXPECT_EQ(a->dtype, Dtype::kF32);
  EXPECT_EQ(a->elements(), 2);
  EXPECT_EQ(a->bytes(), 8u);
  const unsigned char expected[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(std::memcmp(a->data, expected, 8), 0);

  const Result<TensorView> empty = checkpoint.tensor("empty", {0, 7});
  ASSERT_TRUE(empty.ok()) << empty.status().to_string();
  EXPECT_EQ(empty->bytes(), 0u);
}

TEST_F(CheckpointTest, WhatATensorIsNot) {
  write("model.safetensors", file_of("{" + tensor("a", "F32", "[1, 2]", "[0,8]") + "," +
                                         tensor("i", "I64", "[1]", "[8,16]") + "}",
                                     16));
  const Result<Checkpoint> checkpoint = Checkpoint::open(dir_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
  EXPECT_EQ(checkpoint->tensor("b", {1}).status().code(), Code::kNotFound);
  EXPECT_EQ(checkpoint->tensor("i", {1}).status().code(), Code::kUnimplemented);
  for (const auto& shape : std::vector<std::vector<int64_t>>{{2}, {2, 1}, {1, 3}, {1, 2, 1}, {}}) {
    const Status status = checkpoint->tensor("a", shape).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    const std::string said(status.message());
    EXPECT_NE(said.find("\"a\" in " + dir_ + "/model.safetensors has shape [1, 2]"), said.npos);
    EXPECT_TRUE(said.ends_with(" do not belong together; download both again")) << said;
  }
}

TEST_F(CheckpointTest, Shards) {
  write("x-1.safetensors", file_of("{" + tensor("a", "U8", "[2]", "[0,2]") + "}", 2));
  write("x-2.safetensors", file_of("{" + tensor("b", "F16", "[1]", "[0,2]") + "," +
                                       tensor("unlisted", "F16", "[1]", "[2,4]") + "}",
                                   4));
  write("model.safetensors.index.json",
        R"({"weight_map": {"a": "x-1.safetensors", "b": "x-2.safetensors"}})");
  const Result<Checkpoint> checkpoint = Checkpoint::open(dir_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
  EXPECT_EQ(checkpoint->names(), (std::vector<std::string>{"a", "b"}));
  const Result<TensorView> b = checkpoint->tensor("b", {1});
  ASSERT_TRUE(b.ok()) << b.status().to_string();
  EXPECT_EQ(b->dtype, Dtype::kF16);
  EXPECT_EQ(std::to_integer<int>(b->data[1]), 1);
}

TEST_F(CheckpointTest, AnotherProcessMapsTheSameFilesByTheirDescriptors) {
  write("x-1.safetensors", file_of("{" + tensor("a", "U8", "[2]", "[0,2]") + "}", 2));
  write("x-2.safetensors", file_of("{" + tensor("b", "F16", "[1]", "[0,2]") + "," +
                                       tensor("unlisted", "F16", "[1]", "[2,4]") + "}",
                                   4));
  write("model.safetensors.index.json",
        R"({"weight_map": {"a": "x-1.safetensors", "b": "x-2.safetensors"}})");
  const Result<Checkpoint> opened = Checkpoint::open(dir_);
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  ASSERT_EQ(opened->files().size(), 2u);
  for (const auto& file : opened->files()) {
    EXPECT_GE(file->fd(), kFirstWorkFd);
    EXPECT_EQ(::fcntl(file->fd(), F_GETFD), FD_CLOEXEC) << "helpers must not inherit it";
  }
  const auto layout = decode<CheckpointLayout>(encode(opened->layout()), "layout");
  ASSERT_TRUE(layout.ok()) << layout.status().to_string();
  fs::remove_all(dir_);
  const Result<Checkpoint> mapped = Checkpoint::map(*layout);
  ASSERT_TRUE(mapped.ok()) << mapped.status().to_string();
  EXPECT_EQ(mapped->names(), opened->names());
  const Result<TensorView> b = mapped->tensor("b", {1}), original = opened->tensor("b", {1});
  ASSERT_TRUE(b.ok() && original.ok()) << b.status().to_string();
  EXPECT_EQ(std::memcmp(b->data, original->data, 2), 0);
}

TEST_F(CheckpointTest, AFileThatWasCutWhileItWasOpenIsNotMapped) {
  write("model.safetensors", file_of("{" + tensor("a", "F32", "[1, 2]", "[0,8]") + "}", 8));
  const Result<Checkpoint> opened = Checkpoint::open(dir_);
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  CheckpointLayout layout = opened->layout();
  fs::resize_file(dir_ + "/model.safetensors", 20);
  const Status status = Checkpoint::map(layout).status();
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_NE(status.message().find("model.safetensors has 20 B, and had"), std::string_view::npos)
      << status.to_string();
  layout.files.clear();
  EXPECT_EQ(Checkpoint::map(layout).status().code(), Code::kInternal);
}

TEST_F(CheckpointTest, ShardsAsSymbolicLinks) {
  // The layout of the Hugging Face cache, with links into another directory.
  fs::create_directories(dir_ + "/blobs");
  fs::create_directories(dir_ + "/snapshot");
  write("blobs/5f3a", file_of("{" + tensor("a", "F16", "[1]", "[0,2]") + "}", 2));
  fs::create_symlink("../blobs/5f3a", dir_ + "/snapshot/model.safetensors");
  const Result<Checkpoint> checkpoint = Checkpoint::open(dir_ + "/snapshot");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
  EXPECT_TRUE(checkpoint->has("a"));
}

TEST_F(CheckpointTest, ATensorMissingFromItsShardNamesBoth) {
  write("x-1.safetensors", file_of("{" + tensor("a", "U8", "[2]", "[0,2]") + "}", 2));
  write("model.safetensors.index.json", R"({"weight_map": {"lost.weight": "x-1.safetensors"}})");
  const std::string text = refusal().to_string();
  for (const char* part : {"\"lost.weight\"", "x-1.safetensors", "complete, download it again"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST_F(CheckpointTest, AMissingShardIsNamed) {
  write("model.safetensors.index.json", R"({"weight_map": {"a": "x-7.safetensors"}})");
  const Status status = refusal();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("x-7.safetensors"), std::string_view::npos) << status.to_string();
}

TEST_F(CheckpointTest, NoCheckpoint) {
  EXPECT_EQ(refusal().code(), Code::kNotFound);
  write("pytorch_model.bin", "x");
  EXPECT_EQ(refusal().code(), Code::kUnimplemented);
  for (const char* part : {"trust where it comes from, convert it once:\n  python3 ", "=\"auto\""})
    EXPECT_NE(refusal().message().find(part), std::string_view::npos) << part;
  EXPECT_EQ(Checkpoint::open(dir_ + "/absent").status().code(), Code::kNotFound);
}

constexpr const char* kLfsPointer =
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
    "size 269060552\n";

TEST_F(CheckpointTest, AGitLfsPointerIsNamed) {
  for (const char* name : {"model.safetensors", "model.safetensors.index.json"}) {
    write(name, kLfsPointer);
    const Status status = refusal();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    for (const char* part : {name, "Git LFS pointer", "git lfs pull"})
      EXPECT_NE(status.to_string().find(part), std::string::npos) << status.to_string();
    fs::remove(dir_ + "/" + name);
  }
}

TEST_F(CheckpointTest, WhatIsNoFile) {
  write("model.safetensors", "");
  EXPECT_EQ(refusal().code(), Code::kInvalidArgument);
  fs::remove(dir_ + "/model.safetensors");
  fs::create_directory(dir_ + "/model.safetensors");
  EXPECT_EQ(refusal().code(), Code::kInvalidArgument);
  fs::remove(dir_ + "/model.safetensors");
  ASSERT_EQ(mkfifo((dir_ + "/model.safetensors").c_str(), 0600), 0);
  EXPECT_EQ(refusal().code(), Code::kInvalidArgument);
}

TEST_F(CheckpointTest, ASparseFileLargerThanMemoryCostsNothing) {
  write("model.safetensors", file_of("{" + tensor("a", "U8", "[2]", "[0,2]") + "}", 2));
  fs::resize_file(dir_ + "/model.safetensors", uint64_t{1} << 38);
  const Result<Checkpoint> checkpoint = Checkpoint::open(dir_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
  EXPECT_EQ(checkpoint->total_bytes(), 2u);
}

}  // namespace
}  // namespace shoal
