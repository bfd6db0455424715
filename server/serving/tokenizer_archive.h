#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/status.h"

namespace shoal {

/// The files of a model from which another program can make its tokenizer and chat template.
struct TokenizerArchive {
  std::string zip;     ///< not compressed
  std::string sha256;  ///< of the archive, in hexadecimal
};

/// Reads them from the model's directory. NOT_FOUND: there is none of them. RESOURCE_EXHAUSTED:
/// they have more than 256 MiB. Other errors are those of reading a file.
Result<TokenizerArchive> make_tokenizer_archive(const std::string& model_dir);

/// A zip archive of files (name, content) without compression. All of them together must have less
/// than 4 GiB.
std::string make_zip(const std::vector<std::pair<std::string, std::string>>& files);

}  // namespace shoal
