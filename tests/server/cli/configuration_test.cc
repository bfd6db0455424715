#include "server/cli/configuration.h"

#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <random>
#include <unistd.h>

#include "server/cli/config_file.h"
#include "server/cli/flags.h"
#include "server/cli/serve_flags.h"
#include "server/cli/shared_flags.h"

namespace shoal {
namespace {

using Arguments = std::vector<std::string>;

/// A file that is there as long as the object.
class File {
 public:
  explicit File(const std::string& text) { std::ofstream(path_) << text; }
  ~File() { std::filesystem::remove(path_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  const std::string& path() const { return path_; }

 private:
  const std::string path_ = testing::TempDir() + "configuration_test." + std::to_string(::getpid());
};

Arguments with_file(const File& file, Arguments words) {
  words.insert(words.begin(), {"serve", "--config", file.path()});
  return words;
}

ServeFlags serve(const Arguments& words, const Environment& environment = {}) {
  const Result<CommandLine> line = parse_command_line(words, environment);
  EXPECT_TRUE(line.ok()) << line.status().to_string();
  if (!line.ok() || !std::holds_alternative<ServeFlags>(line->command)) {
    ADD_FAILURE() << "not a server";
    return {};
  }
  return std::get<ServeFlags>(line->command);
}

std::string error(const Arguments& words, const Environment& environment = {}) {
  const Result<CommandLine> line = parse_command_line(words, environment);
  EXPECT_EQ(line.status().code(), Code::kInvalidArgument) << line.status().to_string();
  return line.status().to_string();
}

std::string printed(const Arguments& words, const Environment& environment = {}) {
  const Result<CommandLine> line = parse_command_line(words, environment);
  EXPECT_TRUE(line.ok()) << line.status().to_string();
  if (!line.ok() || !std::holds_alternative<PrintText>(line->command)) return "";
  return std::get<PrintText>(line->command).text;
}

TEST(ConfigurationTest, FlagsWinOverTheEnvironmentAndThatOverTheFile) {
  const File file("max-num-seqs: 1\ndtype: float32\nmax-step-ms: 10\nclean-stale: true\n");
  const Environment environment = {{"SHOAL_MAX_NUM_SEQS", "2"}, {"SHOAL_DTYPE", "bfloat16"}};
  const ServeFlags flags = serve(with_file(file, {"m", "--max-num-seqs", "3"}), environment);
  EXPECT_EQ(flags.engine.max_num_seqs, 3);
  EXPECT_EQ(flags.engine.dtype, "bfloat16");
  EXPECT_EQ(flags.scheduling.max_step_ms, 10);
  EXPECT_TRUE(flags.engine.transport.clean_stale);
  EXPECT_EQ(flags.set_elsewhere, cat("dtype (SHOAL_DTYPE), max-step-ms (", file.path(),
                                     ":3), clean-stale (", file.path(), ":4)"));
}

TEST(ConfigurationTest, ASwitchCanBeUndone) {
  const File file("clean-stale: true\nmetrics-without-key: true\n");
  const ServeFlags flags =
      serve(with_file(file, {"m", "--clean-stale=false"}), {{"SHOAL_METRICS_WITHOUT_KEY", "0"}});
  EXPECT_FALSE(flags.engine.transport.clean_stale);
  EXPECT_FALSE(flags.access.metrics_without_key);
  EXPECT_NE(error({"serve", "m", "--clean-stale=maybe"}).find("no value but true and false"),
            std::string::npos);
}

TEST(ConfigurationTest, TheModelMayStandElsewhere) {
  const File file("model: from-file\n");
  EXPECT_EQ(serve(with_file(file, {})).engine.model, "from-file");
  EXPECT_EQ(serve(with_file(file, {}), {{"SHOAL_MODEL", "from-environment"}}).engine.model,
            "from-environment");
  EXPECT_EQ(serve(with_file(file, {"m"}), {{"SHOAL_MODEL", "from-environment"}}).engine.model, "m");
  EXPECT_EQ(serve({"serve", "m"}, {{"SHOAL_TP", "3"}}).engine.tensor_parallel_size, 3)
      << "another name of the flag";
  EXPECT_NE(error({"serve"}).find("serve needs MODEL"), std::string::npos);
}

TEST(ConfigurationTest, ListsAndSpellings) {
  const File file(
      "# a comment\n\"tp\": '2'\nmax_model_len: 64\nserved-model-name: [a, b]\n"
      "transport:\n  - tcp\n  - shm\nallowed-hosts: x.example,y.example\n"
      "api-key: [first, 'sec,ond']\nseed: 18446744073709551615\nreproducible: on\n");
  const ServeFlags flags = serve(with_file(file, {"m"}), {{"SHOAL_ALLOWED_ORIGINS", "o1,o2"}});
  EXPECT_EQ(flags.engine.tensor_parallel_size, 2);
  EXPECT_EQ(flags.engine.max_model_len, 64);
  EXPECT_EQ(flags.served_model_names, (Arguments{"a", "b"}));
  EXPECT_EQ(flags.engine.transport.order, (Arguments{"tcp", "shm"}));
  EXPECT_EQ(flags.http.allowed_hosts, (Arguments{"x.example", "y.example"}));
  EXPECT_EQ(flags.http.allowed_origins, (Arguments{"o1", "o2"}));
  EXPECT_EQ(flags.access.api_keys, (Arguments{"first", "sec,ond"}));
  EXPECT_EQ(flags.engine.seed, UINT64_MAX);
  EXPECT_TRUE(flags.engine.transport.device.reproducible);
  // A better source replaces a list, and adds nothing to it.
  EXPECT_EQ(serve(with_file(file, {"m", "--served-model-name", "c"})).served_model_names,
            Arguments{"c"});
}

TEST(ConfigurationTest, WhatKubernetesSetsIsNotRead) {
  const ServeFlags flags = serve({"serve", "m"}, {{"SHOAL_PORT", "tcp://10.0.0.1:8000"},
                                                  {"SHOAL_GRPC_PORT", "tcp://10.0.0.1:50051"},
                                                  {"SHOAL_HOST", "tcp"},
                                                  {"SHOAL_PORT_8000_TCP", "tcp://10.0.0.1:8000"},
                                                  {"SHOAL_SERVICE_HOST", "10.0.0.1"},
                                                  {"SHOAL_TEST_FAULT", "x"},
                                                  {"SHOAL_JSON", "true"},
                                                  {"SHOAL_DTYPE", ""}});
  EXPECT_EQ(flags.http.port, kHttpPort);
  EXPECT_EQ(flags.grpc_port, 50051);
  EXPECT_EQ(flags.host, "127.0.0.1");
  EXPECT_EQ(flags.engine.dtype, "auto");
  EXPECT_EQ(flags.set_elsewhere, "");
}

TEST(ConfigurationTest, OnlyServeReadsVariables) {
  const Result<CommandLine> line = parse_command_line(Arguments{"generate", "m", "--prompt", "x"},
                                                      {{"SHOAL_MAX_NUM_SEQS", "none"}});
  EXPECT_TRUE(line.ok()) << line.status().to_string();
}

TEST(ConfigurationTest, ErrorsNameTheVariable) {
  EXPECT_NE(error({"serve", "m"}, {{"SHOAL_MAX_NUM_SEQS", "many"}})
                .find("SHOAL_MAX_NUM_SEQS must be a whole number in [1, 65536], not \"many\""),
            std::string::npos);
  EXPECT_NE(error({"serve", "m"}, {{"SHOAL_CLEAN_STALE", "yes"}})
                .find("SHOAL_CLEAN_STALE must be true, false, 1 or 0, not \"yes\""),
            std::string::npos);
  // Checks of several flags name the flag, and then where it was set.
  const std::string text = error({"serve", "m"}, {{"SHOAL_TRANSPORT", "rdma"}});
  EXPECT_NE(text.find("unknown transport \"rdma\""), std::string::npos) << text;
  EXPECT_NE(text.find("transport (SHOAL_TRANSPORT)"), std::string::npos) << text;
}

struct BadFile {
  std::string text;
  const char* said;  ///< what follows the name of the file, which each error must have
};

TEST(ConfigurationTest, ErrorsNameTheLine) {
  std::string bomb = "a: &a [x, x]\n";
  for (char c = 'b'; c < 'z'; ++c)
    bomb += cat(c, ": &", c, " [*", char(c - 1), ", *", char(c - 1), "]\n");
  const BadFile files[] = {
      {"dtype: float32\nmax-num-seq: 3\n",
       ":2: unknown key \"max-num-seq\"; did you mean max-num-seqs?"},
      {"wibble: 3\n", ":1: unknown key \"wibble\"; the keys are the flags"},
      {"max-log-len: 3\n",
       ":1: unknown key \"max-log-len\"; leave it out: prompts are not in the log"},
      {"swap_space: 4\n",
       ":1: unknown key \"swap_space\"; use --kv-cache-memory: the KV cache is not swapped"},
      {"tp: 2\n\ntensor_parallel_size: 3\n", ":3: tensor-parallel-size is set at "},
      {"max-num-seqs: many\n",
       ":1: max-num-seqs must be a whole number in [1, 65536], not \"many\""},
      {"max-num-seqs: [1, 2]\n", ":1: max-num-seqs takes one value, not a list"},
      {"transport: {a: b}\n", ":1: \"transport\" is a map"},
      {"\ntransport: [[shm], tcp]\n", ":2: the list \"transport\" may only have words"},
      {"dtype:\n", ":1: \"dtype\" has no value"},
      {"clean-stale: often\n", ":1: clean-stale must be true, false, 1 or 0, not \"often\""},
      {"config: other.yaml\n", ":1: config belongs on the command line"},
      {"print_config: true\n", ":1: print-config belongs on the command line"},
      {"[a]: 1\n", ":1: a key must be the name of a flag"},
      {"- a\n- b\n", ":1: must be a map"},
      {"just words\n", ":1: must be a map"},
      {"dtype: float32\n---\nseed: 1\n", ": has more than one YAML document"},
      {"dtype: {float32\n", ": is not YAML"},
      {"dtype: float32\n  seed: 1\n", ":2: is not YAML"},
      {"seed: *nothing\n", ": is not YAML"},
      {std::string("a\0b: 1\n", 7), ": is no text file"},
      {std::string(20'000, '['), "is not YAML"},
      {bomb, ":2: the list \"b\" may only have words"},
      {std::string(kMaxConfigBytes + 1, '#'), "KiB"},
      {"transport: shm\nmin-transport: tcp\n", "min-transport ("},
  };
  for (const BadFile& bad : files) {
    const File file(bad.text);
    const std::string text = error(with_file(file, {"m"}));
    EXPECT_NE(text.find(file.path()), std::string::npos) << text;
    EXPECT_NE(text.find(bad.said), std::string::npos) << bad.text.substr(0, 100) << "gave " << text;
    EXPECT_LT(text.size(), 700u) << text;
  }
  EXPECT_NE(error({"serve", "m", "--config", "/no/such.yaml"}).find("--config /no/such.yaml"),
            std::string::npos);
  EXPECT_NE(
      error({"serve", "m"}, {{"SHOAL_CONFIG", "/no/such.yaml"}}).find("SHOAL_CONFIG /no/such"),
      std::string::npos);
  EXPECT_NE(error({"serve", "m", "--config", "/"}).find("not a regular file"), std::string::npos);
}

TEST(ConfigurationTest, AnyBytesAreRead) {
  const std::string seed = "a: 1\nb: [x, 'y']\n# c\nd: \"z\\u00e4\"\ne:\n  - |\n    f\n  - &g h\n";
  std::mt19937 random(11);
  int readable = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string text = seed;
    for (int changes = 0; changes < 3; ++changes)
      text[random() % text.size()] = ":-[]{}#&*!|>'\"%@? \n\t\\x\xff\xc3"[random() % 25];
    readable += parse_config(text, "f.yaml").ok() ? 1 : 0;
  }
  EXPECT_GT(readable, 0);
  EXPECT_LT(readable, 3000);
}

TEST(ConfigurationTest, NoErrorHasAKeyOfTheApiInIt) {
  for (const char* text :
       {"api-key: {s3cret: s3cret}\n", "api-key: [[s3cret]]\n", "api-key: \"s3cret\n",
        "api-key: *s3cret\n", "api-key: 's3cret\tx'\n", "api-key: 's3cret'\napi-key: s3cret\n",
        "api-key: \"s3cret\\q\"\n", "api-key: !<s3cret\n", "api-key: s3cret: x\n"}) {
    const File file(text);
    EXPECT_EQ(error(with_file(file, {"m"})).find("s3cret"), std::string::npos) << text;
  }
}

TEST(ConfigurationTest, WhatIsPrintedIsReadAgain) {
  const Environment environment = {{"SHOAL_MAX_NUM_SEQS", "7"}, {"SHOAL_API_KEY", "s3cret"}};
  const File file(
      "api-key: s3cret\nserved-model-name: [\"null\", \"two words\", \"\\u00e4\\\"\", -x]\n"
      "kv-cache-memory: 64m\n");
  const std::string first = printed(
      with_file(file, {"my model", "--print-config", "--uds", "/tmp/s", "--seed=5"}), environment);
  EXPECT_NE(first.find("model: \"my model\"  # command line\n"), std::string::npos) << first;
  EXPECT_NE(first.find("max-num-seqs: 7  # environment: SHOAL_MAX_NUM_SEQS\n"), std::string::npos);
  EXPECT_NE(first.find(cat("kv-cache-memory: 64m  # file: ", file.path(), ":3\n")),
            std::string::npos);
  EXPECT_NE(first.find("dtype: auto  # default\n"), std::string::npos);
  EXPECT_NE(first.find("max-restarts: 3  # default\n"), std::string::npos);
  EXPECT_NE(first.find("# max-model-len is not set (default)\n"), std::string::npos);
  EXPECT_NE(first.find(cat("# api-key is set, and not shown (file: ", file.path(),
                           ":1, environment: SHOAL_API_KEY)\n")),
            std::string::npos)
      << first;
  EXPECT_EQ(first.find("s3cret"), std::string::npos);

  const File again(first);
  const std::string second = printed(with_file(again, {"--print-config"}));
  const auto without_sources = [](const std::string& text) {
    std::string out;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = text.find('\n', begin);
      const std::string line = text.substr(begin, end - begin);
      if (!line.starts_with('#')) out += line.substr(0, line.find("  # ")) + "\n";
      begin = end + 1;
    }
    return out;
  };
  EXPECT_EQ(without_sources(first), without_sources(second));
  EXPECT_EQ(serve(with_file(again, {})).served_model_names,
            (Arguments{"null", "two words", "\u00e4\"", "-x"}));
}

TEST(ConfigurationTest, AListThatIsGivenTwiceIsShownAsItIsInForce) {
  const Arguments twice{"serve", "m", "--transport", "shm", "--transport", "tcp", "--print-config"};
  const std::string text = printed(twice);
  EXPECT_NE(text.find("transport: tcp  # command line\n"), std::string::npos) << text;
  const std::string names = printed(
      {"serve", "m", "--served-model-name", "a", "--served-model-name", "b", "--print-config"});
  EXPECT_NE(names.find("served-model-name: \"a,b\"  # command line\n"), std::string::npos) << names;
}

TEST(ConfigurationTest, EveryFlagCanShowItsValue) {
  ServeFlags flags;
  LogOptions log;
  FlagParser parser("serve", "a test");
  add_serve_flags(parser, &flags);
  add_log_flags(parser, &log);
  int count = 0;
  for (const FlagGroup& group : parser.groups()) {
    for (const FlagEntry& flag : group.flags) {
      if (flag.names[0] == "-h" || flag.value.is_secret) continue;
      EXPECT_TRUE(parser.shows(flag.names[0]))
          << flag.names[0] << ": its setter needs the second function, which shows the value";
      ++count;
    }
  }
  EXPECT_GT(count, 40);
}

TEST(ConfigurationTest, PrintedAsJson) {
  const std::string text = printed({"serve", "m", "--print-config", "--json", "--api-key", "s3cret",
                                    "--clean-stale", "--served-model-name", "a"},
                                   {{"SHOAL_MAX_STEP_MS", "9"}});
  for (const char* part :
       {R"("model":{"value":"m","source":"command line"})",
        R"("max-step-ms":{"value":"9","source":"environment: SHOAL_MAX_STEP_MS"})",
        R"("clean-stale":{"value":true,"source":"command line"})",
        R"("served-model-name":{"value":["a"],"source":"command line"})",
        R"("api-key":{"value":null,"source":"command line"})",
        R"("seed":{"value":null,"source":"default"})"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  EXPECT_EQ(text.find("s3cret"), std::string::npos);
  EXPECT_NE(error({"serve", "m", "--json"}).find("--json needs --print-config"), std::string::npos);
}

TEST(ConfigurationTest, NamesOfVariables) {
  EXPECT_EQ(variable_of("--max-num-seqs"), "SHOAL_MAX_NUM_SEQS");
  EXPECT_EQ(variable_of("MODEL"), "SHOAL_MODEL");
  EXPECT_EQ(variable_of("--allowed-hosts"), "SHOAL_ALLOWED_HOSTS");
  for (const char* flag :
       {"--port", "--host", "--grpc-port", "--any-port", "--any-host", "--json", "--print-config"})
    EXPECT_EQ(variable_of(flag), "") << flag;
}

}  // namespace
}  // namespace shoal
