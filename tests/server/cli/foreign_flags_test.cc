#include "server/cli/foreign_flags.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/cat.h"
#include "server/cli/flags.h"
#include "server/cli/shared_flags.h"
#include "server/serving/generation_request.h"

namespace shoal {
namespace {

using Words = std::vector<std::string>;

std::string error_of(const Words& words) {
  const Result<CommandLine> line = parse_command_line(words);
  EXPECT_FALSE(line.ok()) << words.back();
  EXPECT_EQ(line.status().code(), Code::kInvalidArgument);
  return std::string(line.status().message());
}

/// The flags of a command, in every spelling.
std::set<std::string, std::less<>> flags_of(const std::string& command) {
  std::set<std::string, std::less<>> names;
  for (const CommandEntry& entry : command_table()) {
    for (const FlagGroup& group : entry.groups) {
      for (const FlagEntry& flag : group.flags)
        if (entry.name == command) names.insert(flag.names.begin(), flag.names.end());
    }
  }
  return names;
}

TEST(ForeignFlagsTest, EachHasAHintThatServeOrGenerateCanFollow) {
  const auto serve = flags_of("serve"), generate = flags_of("generate");
  std::set<std::string_view> seen;
  ASSERT_GE(foreign_flags().size(), 150u);
  for (const ForeignFlag& one : foreign_flags()) {
    EXPECT_TRUE(seen.insert(one.name).second) << one.name << " is there twice";
    EXPECT_FALSE(serve.contains(one.name) || generate.contains(one.name)) << one.name;
    EXPECT_FALSE(one.use.empty() && one.hint.empty()) << one.name;
    EXPECT_TRUE(one.use.empty() || serve.contains(one.use) || generate.contains(one.use))
        << one.name << ": no such flag as " << one.use;
    const bool of_serve = one.use.empty() || serve.contains(one.use);
    const std::string error =
        error_of({of_serve ? "serve" : "generate", "m", std::string(one.name), "1"});
    EXPECT_NE(error.find(one.use.empty() ? one.hint : "use " + std::string(one.use)),
              std::string::npos)
        << error;
  }
}

TEST(ForeignFlagsTest, UnderscoresAndAnEqualsSignMakeNoDifference) {
  EXPECT_EQ(error_of({"serve", "m", "--mem_fraction_static=0.9"}),
            "unknown flag \"--mem_fraction_static\" for serve; use --kv-cache-memory: the KV "
            "cache is bounded in bytes of this machine's memory, for example 4g, or by "
            "--gpu-memory-utilization on GPUs");
  EXPECT_EQ(error_of({"serve", "m", "--revision", "main"}),
            "unknown flag \"--revision\" for serve; nothing is downloaded: hf download "
            "OWNER/NAME --exclude \"*/*\" --local-dir DIR, then name DIR as MODEL");
}

TEST(ForeignFlagsTest, NoHintNamesAFlagThatTheCommandLacks) {
  EXPECT_EQ(error_of({"client", "--prompt", "x", "--mem-fraction-static", "1"}),
            "unknown flag \"--mem-fraction-static\" for client; see shoal client --help");
}

TEST(ForeignFlagsTest, AFlagOfAnotherServerIsNoMisspeltOneOfThis) {
  const std::vector<std::pair<const char*, const char*>> wrong = {
      {"--max-log-len", "leave it out: prompts are not in the log"},
      {"--allowed-methods", "use --allowed-origins: pages of these origins may use all methods"},
      {"--allowed-headers", "use --allowed-origins: pages of these origins may use all methods"},
      {"--config-format", "leave it out: MODEL's config.json is read"},
      {"--pooler-config", "leave it out: models generate text"},
      {"--profiler-config", "there is no profiler: shoal bench measures the speed"},
      {"--kernel-config", "leave it out: kernels are chosen for the device"},
      {"--ssl-ciphers", "leave it out: ciphers cannot be chosen"},
      {"--kv-cache-metrics", "leave it out: all figures are at /metrics"}};
  for (const auto& [name, hint] : wrong) {
    const std::string error = error_of({"serve", "m", name, "1"});
    EXPECT_NE(error.find(cat("for serve; ", hint)), std::string::npos) << error;
  }
  // Each is near to a flag of this command, which has no flag for it.
  for (const Words& words : {Words{"client", "--max-total-tokens", "1"},
                             Words{"shmtest", "--ctx-size", "1"}, Words{"render", "m", "--temp"}}) {
    const std::string error = error_of(words);
    EXPECT_NE(error.find(cat("; see shoal ", words[0], " --help")), std::string::npos) << error;
  }
}

TEST(ForeignFlagsTest, FlagsOfTgiAreKnown) {
  const std::vector<std::pair<const char*, const char*>> known = {
      {"--num-shard", "use --tensor-parallel-size"},
      {"--sharded", "use --tensor-parallel-size: it says how many ranks"},
      {"--hostname", "use --host"},
      {"--max-input-length", "use --max-model-len: it bounds prompt and output"},
      {"--max_input_tokens", "use --max-model-len: it bounds prompt and output"},
      {"--max-total-tokens", "use --kv-cache-memory: "},
      {"--max-concurrent-requests", "use --max-num-queued-reqs: "},
      {"--max-batch-prefill-tokens", "use --max-num-batched-tokens: "},
      {"--quantize", "quantised weights are not supported"},
      {"--cuda-memory-fraction", "use --gpu-memory-utilization"},
      {"--huggingface-hub-cache", "nothing is downloaded: "}};
  for (const auto& [name, hint] : known) {
    const std::string error = error_of({"serve", "m", name, "1"});
    EXPECT_NE(error.find(cat("for serve; ", hint)), std::string::npos) << error;
  }
  // What the two servers that have this flag mean by it are two things here.
  EXPECT_NE(error_of({"serve", "m", "--max-total-tokens", "1"}).find("--max-model-len"),
            std::string::npos);
}

TEST(ForeignFlagsTest, AServerLeavesToItsClientsWhatOneRequestAsksFor) {
  for (const char* name : {"-n", "--n-predict", "--max-new-tokens"}) {
    const std::string error = error_of({"serve", "m", name, "1"});
    EXPECT_TRUE(error.ends_with("for serve; clients set max_tokens in their requests")) << error;
  }
  EXPECT_TRUE(error_of({"generate", "m", "--n-predict", "1"}).ends_with("; use --max-tokens"));
  EXPECT_TRUE(
      error_of({"serve", "m", "--temp", "1"}).ends_with("set temperature in their requests"));
  EXPECT_TRUE(error_of({"render", "m", "--n-predict", "1"}).ends_with("see shoal render --help"));
}

TEST(ForeignFlagsTest, FamiliesAreKnownByAPartOfTheirNames) {
  const std::vector<std::pair<const char*, const char*>> members = {
      {"--max-lora-rank", "adapters (LoRA) are not supported"},
      {"--max_loras", "adapters (LoRA) are not supported"},
      {"--enable-lora", "adapters (LoRA) are not supported"},
      {"--data-parallel-size-local", "start a server for each replica"},
      {"--speculative-config", "speculative decoding is not supported"},
      {"--num-speculative-tokens", "speculative decoding is not supported"},
      {"--mm-processor-kwargs", "only text is supported"},
      {"--limit-mm-per-prompt", "only text is supported"},
      {"--mamba-block-size", "models of state spaces (Mamba) are not supported"},
      {"--enable-expert-parallel", "mixtures of experts are not supported"},
      {"--eplb-config", "mixtures of experts are not supported"},
      {"--cudagraph-capture-sizes", "leave it out: steps are not captured in graphs"},
      {"--disable-cuda-graph", "leave it out: steps are not captured in graphs"}};
  for (const auto& [name, hint] : members) {
    const std::string error = error_of({"serve", "m", name, "1"});
    EXPECT_NE(error.find(cat("for serve; ", hint)), std::string::npos) << error;
  }
}

TEST(ForeignFlagsTest, NoFlagOfShoalIsTakenForAnothersFamily) {
  for (const CommandEntry& entry : command_table()) {
    for (const FlagGroup& group : entry.groups) {
      for (const FlagEntry& flag : group.flags) {
        const std::string misspelt = flag.names.front() + "-";
        const auto none = [](std::string_view) { return false; };
        EXPECT_EQ(foreign_flag_hint(misspelt, none), std::nullopt) << misspelt;
      }
    }
  }
}

TEST(ForeignFlagsTest, TheHintOfLogprobsHasTheirGreatestNumber) {
  EXPECT_NE(error_of({"serve", "m", "--max-logprobs", "20"})
                .find(cat("a request may ask for ", kMaxLogprobs, " logprobs of a token")),
            std::string::npos);
}

TEST(ForeignFlagsTest, OthersNamesOfMODEL) {
  for (const char* name : {"--model", "--model-path", "--model-id", "-m", "--model_path"}) {
    const auto line = parse_command_line(Words{"serve", name, "dir", "-tp", "2"});
    ASSERT_TRUE(line.ok()) << line.status().to_string();
    EXPECT_EQ(std::get<ServeFlags>(line->command).engine.model, "dir") << name;
  }
  const auto tokenize = parse_command_line(Words{"tokenize", "--model=dir", "--text", "x"});
  EXPECT_EQ(std::get<TokenizeFlags>(tokenize.value().command).model, "dir");
  EXPECT_EQ(error_of({"serve", "a", "--model", "b"}),
            "MODEL is given twice: as \"a\" and as --model \"b\"; leave one out");
  EXPECT_EQ(error_of({"serve", "--model"}), "--model needs a value: --model MODEL");
  // It is a flag of client, and --version has no model.
  const auto client = parse_command_line(Words{"client", "--model", "name", "--prompt", "x"});
  EXPECT_EQ(std::get<ClientFlags>(client.value().command).model, "name");
  EXPECT_NE(error_of({"--version", "--model", "m"}).find("unknown flag"), std::string::npos);
}

TEST(ForeignFlagsTest, OthersWordsForDtype) {
  const std::vector<std::pair<const char*, const char*>> words = {
      {"half", "float16"},  {"fp16", "float16"}, {"float", "float32"},  {"fp32", "float32"},
      {"bf16", "bfloat16"}, {"auto", "auto"},    {"float16", "float16"}};
  for (const auto& [word, meant] : words) {
    const auto line = parse_command_line(Words{"serve", "m", "--dtype", word});
    ASSERT_TRUE(line.ok()) << line.status().to_string();
    EXPECT_EQ(std::get<ServeFlags>(line->command).engine.dtype, meant) << word;
  }
}

TEST(StrayWordsTest, AreExplained) {
  EXPECT_EQ(error_of({"client", "hello there"}),
            "unexpected argument \"hello there\" for client; did you mean --prompt \"hello "
            "there\"?");
  EXPECT_NE(error_of({"generate", "m", "hello"}).find("did you mean --prompt \"hello\"?"),
            std::string::npos);
  EXPECT_NE(error_of({"tokenize", "m", "hello"}).find("did you mean --text \"hello\"?"),
            std::string::npos);
  const std::string missing = "-- is missing before the command: shoal shmtest ";
  for (const auto& [words, line] : std::vector<std::pair<Words, std::string>>{
           {{"shmtest", "true"}, "-- true"},
           {{"shmtest", "--jobs", "2", "true", "-m", "x"}, "--jobs 2 -- true -m x"},
           {{"shmtest", "true", "--wibble"}, "-- true --wibble"},
           {{"shmtest", "--matrix", "no-*", "sh", "-c", "echo it's"},
            R"(--matrix 'no-*' -- sh -c 'echo it'\''s')"},
           // Which of them the command is, or how to show it, is not known.
           {{"shmtest", "--matrix", "host", "host"}, "[FLAGS] -- host ..."},
           {{"shmtest", "true", "a\nb"}, "[FLAGS] -- true ..."},
           {{"shmtest", "true", "--", "false"}, "[FLAGS] -- true ..."}})
    EXPECT_TRUE(error_of(words).ends_with(missing + line)) << error_of(words);
}

TEST(NumbersTest, BoundsAreThoseThatMeanSomething) {
  const Words generate = {"generate", "m", "--prompt", "x"};
  const auto with = [&](const char* flag, const char* value) {
    Words words = generate;
    words.insert(words.end(), {flag, value});
    return error_of(words);
  };
  EXPECT_EQ(with("--max-tokens", "abc"),
            "--max-tokens must be a whole number of at least 1, not \"abc\"");
  EXPECT_EQ(with("--max-tokens", "0"),
            "--max-tokens must be a whole number of at least 1, not \"0\"");
  EXPECT_EQ(with("--top-k", "many"), "--top-k must be a whole number of at least -1, not \"many\"");
  EXPECT_EQ(with("-tp", "99999999999"),
            "--tensor-parallel-size must be a whole number in [1, 2147483647], not "
            "\"99999999999\"");
}

TEST(WishedLogOptionsTest, AreReadFromWordsThatAreWrong) {
  const auto format = [](const Words& words, const Environment& environment = {}) {
    return wished_log_options(words, environment).format;
  };
  EXPECT_EQ(format({"serve", "--wibble", "--log-format", "json"}), LogFormat::kJson);
  EXPECT_EQ(format({"generate", "--log_format=json", "--x"}), LogFormat::kJson);
  EXPECT_EQ(format({"serve", "--log-format", "xml"}), LogFormat::kText);
  EXPECT_EQ(format({"serve", "--log-format"}), LogFormat::kText);
  EXPECT_EQ(format({"serve"}, {{"SHOAL_LOG_FORMAT", "json"}}), LogFormat::kJson);
  EXPECT_EQ(format({"client"}, {{"SHOAL_LOG_FORMAT", "json"}}), LogFormat::kText);
  EXPECT_EQ(wished_log_options(Words{"x", "--log-level", "debug"}, {}).level, LogLevel::kDebug);
}

}  // namespace
}  // namespace shoal
