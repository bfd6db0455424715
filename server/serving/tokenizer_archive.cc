#include "server/serving/tokenizer_archive.h"

#include <array>
#include <cstdint>
#include <openssl/evp.h>
#include <zlib.h>

#include "runtime/base/json.h"

namespace shoal {

namespace {

/// What transformers reads for a tokenizer and its template, and two files that say what its ids
/// mean to the model.
constexpr const char* kFiles[] = {"tokenizer.json",
                                  "tokenizer_config.json",
                                  "config.json",
                                  "generation_config.json",
                                  "chat_template.jinja",
                                  "chat_template.json",
                                  "special_tokens_map.json",
                                  "vocab.json",
                                  "merges.txt",
                                  "tokenizer.model"};
constexpr size_t kMaxBytes = size_t{256} << 20;

void put(uint64_t value, int bytes, std::string* out) {
  for (int i = 0; i < bytes; ++i) out->push_back(static_cast<char>(value >> (8 * i) & 0xFF));
}

// The two records of a file in the archive differ in what stands around these fields. The numbers
// are those of PKWARE's APPNOTE.TXT, sections 4.3.7 and 4.3.12.
void put_common(const std::string& name, const std::string& content, std::string* out) {
  constexpr uint64_t kVersionNeeded = 10;
  constexpr uint64_t kFirstOf1980 = 0x0021;  // the date, because equal files give equal archives
  const auto crc = ::crc32_z(0, reinterpret_cast<const Bytef*>(content.data()), content.size());
  put(kVersionNeeded, 2, out);
  put(0, 2, out);  // flags
  put(0, 2, out);  // method: stored
  put(0, 2, out);  // time
  put(kFirstOf1980, 2, out);
  put(crc, 4, out);
  put(content.size(), 4, out);
  put(content.size(), 4, out);
  put(name.size(), 2, out);
  put(0, 2, out);  // extra fields
}

std::string sha256_hex(const std::string& bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned length = 0;
  ::EVP_Digest(bytes.data(), bytes.size(), digest.data(), &length, ::EVP_sha256(), nullptr);
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (unsigned i = 0; i < length; ++i) {
    hex += kDigits[digest[i] >> 4];
    hex += kDigits[digest[i] & 15];
  }
  return hex;
}

}  // namespace

std::string make_zip(const std::vector<std::pair<std::string, std::string>>& files) {
  constexpr uint64_t kLocalHeader = 0x04034B50, kCentralHeader = 0x02014B50, kEnd = 0x06054B50;
  std::string zip, directory;
  for (const auto& [name, content] : files) {
    put(kCentralHeader, 4, &directory);
    put(20, 2, &directory);  // made by version
    put_common(name, content, &directory);
    put(0, 2, &directory);  // comment
    put(0, 2, &directory);  // disk
    put(0, 2, &directory);  // internal attributes
    put(0, 4, &directory);  // external attributes
    put(zip.size(), 4, &directory);
    directory += name;
    put(kLocalHeader, 4, &zip);
    put_common(name, content, &zip);
    zip += name;
    zip += content;
  }
  const size_t directory_at = zip.size();
  zip += directory;
  put(kEnd, 4, &zip);
  put(0, 4, &zip);  // numbers of disks
  put(files.size(), 2, &zip);
  put(files.size(), 2, &zip);
  put(directory.size(), 4, &zip);
  put(directory_at, 4, &zip);
  put(0, 2, &zip);  // comment
  return zip;
}

Result<TokenizerArchive> make_tokenizer_archive(const std::string& model_dir) {
  std::vector<std::pair<std::string, std::string>> files;
  size_t left = kMaxBytes;
  for (const char* name : kFiles) {
    Result<std::string> content = read_file(cat(model_dir, "/", name), left);
    if (content.status().code() == Code::kNotFound) continue;
    SHOAL_RETURN_IF_ERROR(content.status());
    left -= content->size();
    files.emplace_back(name, std::move(content).value());
  }
  if (files.empty())
    return Status::error(Code::kNotFound, cat(model_dir, " has no files of a tokenizer any more"));
  TokenizerArchive archive{.zip = make_zip(files), .sha256 = {}};
  archive.sha256 = sha256_hex(archive.zip);
  return archive;
}

}  // namespace shoal
