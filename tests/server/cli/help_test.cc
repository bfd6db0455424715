#include <algorithm>
#include <gtest/gtest.h>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/cat.h"
#include "runtime/base/json.h"
#include "runtime/base/text_values.h"
#include "server/cli/exit_code.h"
#include "server/cli/flag_variables.h"
#include "server/cli/flags.h"
#include "server/cli/help_text.h"

namespace shoal {
namespace {

using Words = std::vector<std::string>;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// The words of a text, whatever is between them. A backslash at the end of a line joins lines.
Words words_of(const std::string& text) {
  Words words;
  std::istringstream stream(text);
  for (std::string word; stream >> word;)
    if (word != "\\") words.push_back(word);
  return words;
}

std::string joined(const Words& words) {
  std::string text;
  for (const std::string& word : words) text += word;
  return text;
}

/// The words as a shell reads them; only double quotes and backslashes at ends of lines are known.
Words shell_words(const std::string& line) {
  Words words;
  std::string word;
  bool quoted = false;
  for (const char c : line + " ") {
    if (c == '"') {
      quoted = !quoted;
    } else if (c == ' ' && !quoted) {
      if (!word.empty()) words.push_back(word);
      word.clear();
    } else {
      word += c;
    }
  }
  EXPECT_FALSE(quoted) << line;
  return words;
}

TEST(HelpTest, LinesFitAndNoWordIsBroken) {
  const std::vector<CommandEntry> all = command_table();
  for (const size_t columns : {60u, 80u, 140u, 400u}) {
    Words texts = {help_text(all, {.columns = columns})};
    for (const CommandEntry& command : all)
      texts.push_back(help_text(command, {.columns = columns}));
    for (const std::string& text : texts) {
      for (const std::string& line : lines_of(text)) EXPECT_LE(line.size(), columns) << line;
      EXPECT_EQ(text.find('\x1b'), std::string::npos);
      EXPECT_EQ(text.find(" \n"), std::string::npos) << text;
    }
    for (const CommandEntry& command : all) {
      const Words whole = words_of(help_text(command, {.columns = 10'000}));
      const Words words = words_of(help_text(command, {.columns = columns}));
      EXPECT_EQ(joined(words), joined(whole)) << command.name;
      std::string before;
      for (const std::string& word : words) {
        // A list that is wider than the line is broken after a comma.
        const bool is_part = word.ends_with(',') || before.ends_with(',');
        EXPECT_TRUE(is_part || std::find(whole.begin(), whole.end(), word) != whole.end()) << word;
        before = word;
      }
    }
  }
}

TEST(HelpTest, WhatGoesOnIsIndentedLikeWhatItExplains) {
  CommandEntry command{.name = "x"};
  command.groups.push_back(
      {"Some", {{.names = {"--one", "--two"}, .help = "aaaa bbbb cccc dddd eeee ffff gggg hhhh"}}});
  EXPECT_EQ(help_text(command, {.columns = 40}),
            "\n\nUsage: shoal x [FLAGS]\n\nSome:\n"
            "  --one, --two  aaaa bbbb cccc dddd eeee\n"
            "                ffff gggg hhhh\n");
}

TEST(HelpTest, TheFirstScreenOfALongHelpHasTheUseAndTheNamesOfTheGroups) {
  constexpr size_t kScreen = 24;
  const CommandEntry serve = command_table()[0];
  std::vector<std::string> lines = lines_of(help_text(serve, {.columns = 80}));
  ASSERT_GT(lines.size(), kScreen);
  lines.resize(kScreen);
  std::string screen;
  for (const std::string& line : lines) screen += line + "\n";
  EXPECT_NE(screen.find("Usage: shoal serve MODEL [FLAGS]\n"), std::string::npos) << screen;
  for (const Example& example : serve.examples)
    EXPECT_NE(screen.find(example.what + "\n"), std::string::npos) << screen;
  const Words words = words_of(screen.substr(screen.find("Flags below:")));
  std::string names = "Flagsbelow:";
  for (const FlagGroup& group : serve.groups)
    names += joined(words_of(group.heading)) + (&group == &serve.groups.back() ? "" : ",");
  EXPECT_TRUE(joined(words).starts_with(names + "Avalueinparentheses")) << screen;
}

TEST(HelpTest, WhereAServerListensComesBeforeHowItComputes) {
  Words headings;
  const std::vector<CommandEntry> table = command_table();
  for (const FlagGroup& group : table[0].groups) headings.push_back(group.heading);
  ASSERT_GT(headings.size(), 5u);
  headings.resize(5);
  EXPECT_EQ(headings, (Words{"Model", "Server", "HTTP", "Access (HTTP and gRPC)",
                             "Parallelism and transports"}));
}

TEST(HelpTest, TheDefaultLevelOfTheLogIsThatOfTheCommand) {
  for (const CommandEntry& command : command_table()) {
    for (const FlagGroup& group : command.groups) {
      for (const FlagEntry& flag : group.flags) {
        if (flag.names[0] != "--log-level") continue;
        EXPECT_EQ(flag.initial, command.name == "serve" ? "info" : "warning") << command.name;
      }
    }
  }
}

TEST(HelpTest, HeadingsArePaintedOnlyIfTheReaderWantsIt) {
  const CommandEntry command = command_table()[0];
  const std::string text = help_text(command, {.columns = 80, .colour = true});
  EXPECT_NE(text.find("\x1b[1mMemory:\x1b[0m\n"), std::string::npos) << text;
}

TEST(HelpTest, EveryFlagOfEveryCommandHasAText) {
  const std::vector<CommandEntry> all = command_table();
  EXPECT_GE(all.size(), 12u);
  for (const CommandEntry& command : all) {
    EXPECT_FALSE(command.summary.empty() || command.description.empty()) << command.name;
    const bool model =
        command.operand == Operand::kModel || command.operand == Operand::kModelOrNone;
    EXPECT_EQ(model, !command.operand_help.empty()) << command.name;
    std::set<std::string> names;
    for (const FlagGroup& group : command.groups) {
      EXPECT_LE(group.flags.size(), 14u) << command.name << ": " << group.heading;
      for (const FlagEntry& flag : group.flags) {
        EXPECT_GE(flag.help.size(), 5u) << command.name << " " << flag.names[0];
        for (const std::string& name : flag.names)
          EXPECT_TRUE(names.insert(name).second) << command.name << " has " << name << " twice";
      }
    }
  }
}

TEST(HelpTest, ExamplesAreCommandLinesOfTheirCommand) {
  for (const CommandEntry& command : command_table()) {
    EXPECT_GE(command.examples.size(), 2u) << command.name;
    EXPECT_LE(command.examples.size(), 4u) << command.name;
    for (const Example& example : command.examples) {
      EXPECT_TRUE(example.words.starts_with(command.name + " ")) << example.words;
      EXPECT_FALSE(example.what.empty()) << example.words;
      Words words = shell_words(example.words);
      // This one reads a file that is not there.
      if (std::erase(words, "--config") > 0) std::erase(words, "shoal.yaml");
      const Result<CommandLine> line = parse_command_line(words);
      EXPECT_TRUE(line.ok()) << example.words << "\n" << line.status().to_string();
    }
  }
}

/// Whether the text in parentheses is this default, perhaps as a size: 16k for 16384.
bool says(const std::string& text, const std::string& value) {
  if (text == value) return true;
  const Result<uint64_t> size = parse_size_flag("", text);
  return size.ok() && std::to_string(*size) == value;
}

/// The values that a help gives as defaults: what begins a parenthesis, up to a comma, a semicolon
/// or a colon that follows.
Words defaults_in(const std::string& help) {
  Words found;
  for (size_t at = help.find('('); at != std::string::npos; at = help.find('(', at + 1)) {
    const std::string inside = help.substr(at + 1, help.find(')', at) - at - 1);
    found.push_back(inside);
    found.push_back(inside.substr(0, inside.find(';')));
    if (inside.starts_with("auto: ")) found.push_back(inside.substr(6));
  }
  return found;
}

TEST(HelpTest, DefaultsAreThoseOfTheParser) {
  // What these are is decided after the flags have been read.
  const std::set<std::string> later = {"serve --port", "doctor --port", "generate --seed"};
  int checked = 0;
  for (const CommandEntry& command : command_table()) {
    for (const FlagGroup& group : command.groups) {
      for (const FlagEntry& flag : group.flags) {
        const Words said = defaults_in(flag.help);
        const std::string where = command.name + " " + flag.names[0] + ": " + flag.help;
        const auto is_number = [](const std::string& text) {
          return parse_number_flag("", text).ok() || parse_size_flag("", text).ok();
        };
        if (flag.initial && flag.takes_value) {
          const bool agrees = std::any_of(said.begin(), said.end(), [&](const std::string& text) {
            return says(text, *flag.initial);
          });
          EXPECT_TRUE(agrees) << where << "\nbut it is " << *flag.initial;
          ++checked;
        } else if (!later.contains(command.name + " " + flag.names[0])) {
          EXPECT_TRUE(std::none_of(said.begin(), said.end(), is_number)) << where;
        }
        if (!flag.takes_value && flag.names[0] != "-h") {
          EXPECT_EQ(flag.initial, "false") << where;
        }
      }
    }
  }
  EXPECT_GE(checked, 40);
}

TEST(HelpTest, OfOneCommandAndOfSeveral) {
  const auto commands = [](const Words& words) {
    return std::get<PrintHelp>(parse_command_line(words).value().command).commands;
  };
  for (const Words& words : {Words{"--help"}, Words{"-h"}, Words{"help"}})
    EXPECT_EQ(commands(words).size(), command_table().size());
  for (const CommandEntry& entry : command_table()) {
    Words words = shell_words(entry.name);
    words.emplace_back("-h");
    ASSERT_EQ(commands(words).size(), 1u) << entry.name;
    EXPECT_EQ(commands(words)[0].examples.size(), entry.examples.size()) << entry.name;
  }
  EXPECT_EQ(commands({"logits", "m", "--help"})[0].name, "logits");
}

/// One flag of serve, as the only one of a command.
CommandEntry with_one_flag(const std::string& name) {
  CommandEntry command{.name = "serve"};
  const CommandEntry serve = command_table()[0];
  for (const FlagGroup& group : serve.groups) {
    for (const FlagEntry& flag : group.flags)
      if (flag.names[0] == name) command.groups.push_back({group.heading, {flag}});
  }
  return command;
}

TEST(HelpTest, WhatSeemsHardIsSaidInThreeLines) {
  const std::pair<const char*, const char*> kSaid[] = {
      {"--max-model-len", "(default: the model's max_position_embeddings)"},
      {"--min-transport", "The last rung (transport of the order)"},
      {"--kv-cache-memory", "(the largest of 1g, the weights and one longest request; at most a"},
      {"--decode-stretch", "at 2, running answers keep half of their speed"},
      {"--config", "flags over both"}};
  constexpr size_t kAbove = 5;  // the use, the heading, and lines without text
  for (const auto& [name, said] : kSaid) {
    const CommandEntry command = with_one_flag(name);
    ASSERT_EQ(command.groups.size(), 1u) << name;
    EXPECT_NE(command.groups[0].flags[0].help.find(said), std::string::npos) << name;
    EXPECT_LE(lines_of(help_text(command, {.columns = 100})).size(), kAbove + 3) << name;
  }
}

TEST(HelpTest, FlagsWithoutAVariableAreNamed) {
  const std::string said = with_one_flag("--config").groups[0].flags[0].help;
  const CommandEntry serve = command_table()[0];
  int seen = 0;
  for (const FlagGroup& group : serve.groups) {
    for (const FlagEntry& flag : group.flags) {
      const std::string& name = flag.names[0];
      if (of_one_run(name) || !variable_of(name).empty()) continue;
      EXPECT_NE(said.find(name), std::string::npos) << name;
      ++seen;
    }
  }
  EXPECT_EQ(seen, 4);
}

TEST(HelpTest, EachExitCodeHasALine) {
  const std::string text = help_text(command_table(), {.columns = 10'000});
  std::string codes = "\nExit codes:\n";
  for (const ExitEntry& entry : kExitEntries)
    codes += cat("  ", entry.code, entry.code < 10 ? "   " : "  ", entry.meaning, "\n");
  EXPECT_TRUE(text.ends_with(codes)) << text;
}

TEST(HelpTest, HelpTakesACommand) {
  const auto text = [](const Words& words) {
    const Result<CommandLine> line = parse_command_line(words);
    EXPECT_TRUE(line.ok()) << line.status().to_string();
    const auto* help = line.ok() ? std::get_if<PrintHelp>(&line->command) : nullptr;
    return help != nullptr && help->commands.size() == 1 ? help_text(help->commands[0])
                                                         : std::string();
  };
  for (const CommandEntry& entry : command_table()) {
    Words first = {"help"}, last = shell_words(entry.name);
    first.insert(first.end(), last.begin(), last.end());
    last.emplace_back("--help");
    EXPECT_EQ(text(first), text(last)) << entry.name;
  }
  EXPECT_EQ(text({"help", "help"}), text({"help", "--help"}));
  const Result<CommandLine> benches = parse_command_line(Words{"help", "bench"});
  ASSERT_TRUE(benches.ok()) << benches.status().to_string();
  EXPECT_EQ(std::get<PrintFamily>(benches->command).family.name, "bench");
  EXPECT_EQ(parse_command_line(Words{"help", "serv"}).status().plain_text(),
            "unknown command \"serv\"; did you mean shoal serve?");
}

TEST(HelpTest, ABenchWithoutItsNameIsAnsweredWithTheNames) {
  const Status status = parse_command_line(Words{"bench", "models/demo"}).status();
  EXPECT_EQ(
      status.plain_text(),
      "unknown command \"bench models/demo\"; bench needs one of decode, prefill, collectives");
}

TEST(HelpTest, WhatOneNeedsToCompareFiguresIsThere) {
  const std::pair<Words, const char*> kSaid[] = {
      {{"generate", "-h"}, "the tokens that the tokenizer adds (BOS) are added"},
      {{"generate", "-h"}, "e.g. 1,2,3; nothing is added"},
      {{"generate", "-h"}, "Natural log probabilities of each token and the K most likely, before"},
      {{"generate", "-h"}, "Its fields are named as the flags, with underscores, and the flags"},
      {{"generate", "-h"}, "(0: the same answer every time; serve draws one for each request)"},
      {{"logits", "-h"}, "Row i is about the token that follows token i."},
      {{"bench", "prefill", "-h"}, "the median of 5 runs, after one that only warms up"},
      {{"bench", "decode", "-h"}, "of the turn that has the median fraction of that bandwidth"}};
  for (const auto& [words, said] : kSaid) {
    const Result<CommandLine> line = parse_command_line(words);
    ASSERT_TRUE(line.ok()) << words[0];
    const CommandEntry command = std::get<PrintHelp>(line->command).commands[0];
    EXPECT_NE(help_text(command, {.columns = 10'000}).find(said), std::string::npos) << said;
  }
}

TEST(HelpTest, OfBenchShowsFlagsThatItsCommandsHaveAndAnExampleOfEach) {
  for (const char* flag : {"--help", "-h"}) {
    const CommandLine line = parse_command_line(Words{"bench", flag}).value();
    const auto& family = std::get<PrintFamily>(line.command).family;
    ASSERT_EQ(family.commands.size(), 3u);
    const std::string text = help_text(family);
    for (const std::string& one : lines_of(text)) EXPECT_LE(one.size(), 100u) << one;
    std::set<std::string> known = {"-tp"};
    for (const CommandEntry& command : family.commands) {
      EXPECT_NE(text.find("\n  " + command.name), std::string::npos) << text;
      EXPECT_NE(text.find("\n  shoal " + command.examples[0].words + "\n"), std::string::npos)
          << text;
      for (const FlagGroup& group : command.groups)
        for (const FlagEntry& entry : group.flags)
          known.insert(entry.names.begin(), entry.names.end());
    }
    for (std::string word : words_of(family.description)) {
      while (word.ends_with('.') || word.ends_with(',')) word.pop_back();
      EXPECT_TRUE(!word.starts_with('-') || known.contains(word)) << word;
    }
    EXPECT_NE(family.description.find("shoal bench decode --help"), std::string::npos);
  }
}

TEST(HelpTest, JsonHasEveryCommand) {
  const std::string text =
      std::get<PrintText>(parse_command_line(Words{"help", "--json"}).value().command).text;
  const Result<Json> json = parse_json(text, "help --json");
  ASSERT_TRUE(json.ok()) << json.status().to_string();
  ASSERT_EQ((*json)["commands"].size(), command_table().size());
  const Json& serve = (*json)["commands"][0];
  EXPECT_EQ(serve["name"], "serve");
  const auto flag = std::find_if(serve["flags"].begin(), serve["flags"].end(), [](const Json& one) {
    return one["names"][0] == "--max-num-seqs";
  });
  ASSERT_NE(flag, serve["flags"].end());
  EXPECT_EQ((*flag)["default"], "64");
  EXPECT_EQ((*flag)["value"], "N");
}

}  // namespace
}  // namespace shoal
