#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "server/cli/flags.h"

namespace shoal {
namespace {

using Arguments = std::vector<std::string>;

/// The words with these after the command that they are for.
Arguments with(Arguments words, const Arguments& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// client and generate take --chat with the same meaning, and refuse the same beside it.
const std::vector<Arguments> kCommands = {{"client"}, {"generate", "m"}};

TEST(ChatFlagsTest, AConversationMayBeginWithAFile) {
  for (const Arguments& command : kCommands) {
    for (const Arguments& more : {Arguments{"--chat"}, Arguments{"--chat", "--messages", "f"}}) {
      const Result<CommandLine> line =
          parse_command_line(with(with(command, more), {"--chat-template-kwargs", "{}"}));
      ASSERT_TRUE(line.ok()) << command[0] << ": " << line.status().to_string();
      const auto* client = std::get_if<ClientFlags>(&line->command);
      EXPECT_TRUE(client != nullptr ? client->chat
                                    : std::get<GenerateFlags>(line->command).converses);
    }
  }
}

TEST(ChatFlagsTest, AConversationIsTheOnlyInputAndHasNoJson) {
  const std::vector<std::pair<Arguments, std::string>> cases = {
      {{"--prompt", "x"}, "not --prompt and --chat"},
      {{"--prompt-ids", "1"}, "not --prompt-ids and --chat"},
      {{"--json"}, "--json is for one answer"},
      {{"--messages", "-"}, "name a file"},
  };
  for (const Arguments& command : kCommands) {
    for (const auto& [more, says] : cases) {
      const Status status = parse_command_line(with(with(command, {"--chat"}), more)).status();
      EXPECT_EQ(status.code(), Code::kInvalidArgument);
      EXPECT_NE(status.message().find(says), std::string::npos) << status.to_string();
    }
  }
  // Lines of a batch may have messages for this template.
  const Arguments lines = {"generate", "m", "--jsonl", "f", "--chat-template", "t"};
  EXPECT_TRUE(parse_command_line(lines).ok());
  const Arguments batch = {"generate", "m", "--chat", "--jsonl", "f"};
  EXPECT_NE(parse_command_line(batch).status().message().find("not --chat and --jsonl"),
            std::string::npos);
}

}  // namespace
}  // namespace shoal
