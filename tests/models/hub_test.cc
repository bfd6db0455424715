#include "models/hub.h"

#include <gtest/gtest.h>

namespace shoal {
namespace {

TEST(HubTest, ANameOfTheHubGetsTheLineThatDownloadsIt) {
  const std::string first = " of the Hugging Face Hub, download it first.";
  const std::string hf =
      "\nWith hf, which comes with pipx install huggingface_hub (--exclude \"*/*\" takes the files "
      "of the top folder alone; a gated model needs hf auth login):\n  ";
  EXPECT_EQ(how_to_get_model("HuggingFaceTB/SmolLM2-135M-Instruct"),
            ".\nIf you mean HuggingFaceTB/SmolLM2-135M-Instruct" + first +
                "\nIn a checkout of Shoal:\n  scripts/get-model smollm2 && shoal serve "
                "models/smollm2" +
                hf +
                "hf download HuggingFaceTB/SmolLM2-135M-Instruct --exclude \"*/*\" --local-dir "
                "SmolLM2-135M-Instruct && shoal serve SmolLM2-135M-Instruct");
  for (const char* name : {"hf://a/b", "https://huggingface.co/a/b", "hf.co/a/b"})
    EXPECT_EQ(how_to_get_model(name),
              ".\nIf you mean a/b" + first + hf +
                  "hf download a/b --exclude \"*/*\" --local-dir b && shoal serve b");
  for (const char* name : {"a/b:main", "hf://a/b@main"})
    EXPECT_TRUE(how_to_get_model(name).ends_with(
        "):\n  hf download a/b --revision main --exclude \"*/*\" --local-dir b && shoal serve b"))
        << name;
  // The script brings one revision alone.
  EXPECT_EQ(how_to_get_model("HuggingFaceTB/SmolLM2-135M-Instruct@v1").find("get-model"),
            std::string::npos);
  for (const char* path :
       {"", "model", "/models/x", "./x/y", "../x", "a/b/c", "a/", "/a", "a b/c", "a/b\nc", "~/x",
        "$HOME/x", "-a/b", "a/b:", "a/b:c d", "https://example.org/a/b"})
    EXPECT_EQ(how_to_get_model(path), "") << path;
}

TEST(HubTest, AGgufFileGetsItsConverter) {
  EXPECT_NE(how_to_get_model("models/x.gguf").find("scripts/from_gguf.py"), std::string::npos);
}

}  // namespace
}  // namespace shoal
