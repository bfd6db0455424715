#include "server/cli/flags.h"

#include <gtest/gtest.h>

#include "runtime/transport/rungs/rung.h"

namespace shoal {
namespace {

using Words = std::vector<std::string>;

template <typename Flags>
Flags parsed(const Words& words) {
  const Result<CommandLine> line = parse_command_line(words);
  EXPECT_TRUE(line.ok()) << line.status().to_string();
  if (!line.ok() || !std::holds_alternative<Flags>(line->command)) {
    ADD_FAILURE() << "not the wanted command";
    return {};
  }
  return std::get<Flags>(line->command);
}

TEST(FlagsTest, ServeDefaults) {
  const ServeFlags flags = parsed<ServeFlags>({"serve", "m"});
  EXPECT_EQ(flags.engine.model, "m");
  EXPECT_EQ(flags.engine.tensor_parallel_size, 1);
  EXPECT_EQ(flags.engine.dtype, "auto");
  EXPECT_EQ(flags.engine.max_num_seqs, 64);
  EXPECT_EQ(flags.engine.max_num_batched_tokens, 512);
  EXPECT_EQ(flags.engine.cpu_kernels, "auto");
  Words every_rung;
  for (const Rung& rung : rungs()) every_rung.emplace_back(rung.name);
  EXPECT_EQ(flags.engine.transport.order, every_rung);
  EXPECT_TRUE(flags.engine.transport.degrade_on_shm_shortage);
  EXPECT_EQ(flags.engine.transport.min_transport, "");
  EXPECT_EQ(flags.engine.transport.startup_timeout_s, 600);
  EXPECT_EQ(flags.engine.transport.step_timeout_s, 10);
  EXPECT_FALSE(flags.engine.transport.clean_stale);
  EXPECT_EQ(flags.engine.max_restarts, 3);
  EXPECT_FALSE(flags.engine.max_model_len || flags.engine.kv_cache_memory ||
               flags.engine.threads_per_rank || flags.engine.seed);
  EXPECT_EQ(flags.scheduling.decode_stretch, 2);
  EXPECT_EQ(flags.scheduling.max_step_ms, 500);
  EXPECT_EQ(flags.scheduling.policy, SchedulingPolicy::kFcfs);
  EXPECT_EQ(flags.host, "127.0.0.1");
  EXPECT_EQ(flags.grpc_port, 50051);
}

TEST(FlagsTest, SchedulingFlags) {
  const SchedulingFlags flags =
      parsed<ServeFlags>({"serve", "m", "--decode-stretch", "1.5", "--max-step-ms=20",
                          "--scheduling-policy", "priority"})
          .scheduling;
  EXPECT_EQ(flags.decode_stretch, 1.5);
  EXPECT_EQ(flags.max_step_ms, 20);
  EXPECT_EQ(flags.policy, SchedulingPolicy::kPriority);
  EXPECT_EQ(parsed<ServeFlags>({"serve", "m", "--decode-stretch", "0"}).scheduling.decode_stretch,
            0);
  // A file of requests has no reader who waits for the next token.
  EXPECT_EQ(parsed<GenerateFlags>({"generate", "m", "--prompt", "x"}).scheduling.decode_stretch, 0);
}

TEST(FlagsTest, EngineFlagsInEverySpelling) {
  const ServeFlags flags = parsed<ServeFlags>(
      {"serve", "--tensor_parallel_size=4", "--dtype", "float32", "m", "--max-model-len=128",
       "--max_num_seqs", "3", "--max-num-batched-tokens=7", "--kv-cache-memory", "64MiB",
       "--threads-per-rank=2", "--cpu-kernels=reference", "--host=0.0.0.0", "--grpc_port=0",
       "--transport=tcp,shm", "--seed=5"});
  EXPECT_EQ(flags.engine.model, "m");
  EXPECT_EQ(flags.engine.tensor_parallel_size, 4);
  EXPECT_EQ(flags.engine.dtype, "float32");
  EXPECT_EQ(flags.engine.max_model_len, 128);
  EXPECT_EQ(flags.engine.max_num_seqs, 3);
  EXPECT_EQ(flags.engine.max_num_batched_tokens, 7);
  EXPECT_EQ(flags.engine.kv_cache_memory, 64u << 20);
  EXPECT_EQ(flags.engine.threads_per_rank, 2);
  EXPECT_EQ(flags.engine.cpu_kernels, "reference");
  EXPECT_EQ(flags.engine.transport.order, (Words{"tcp", "shm"}));
  EXPECT_EQ(flags.engine.seed, 5u);
  EXPECT_EQ(flags.host, "0.0.0.0");
  EXPECT_EQ(flags.grpc_port, 0);

  for (const Words& spelling :
       {Words{"-tp", "3"}, Words{"-tp=3"}, Words{"--tp", "3"}, Words{"--tp=3"},
        Words{"--tp-size", "3"}, Words{"--tp_size=3"}, Words{"--tensor-parallel-size", "3"},
        Words{"--tp", "2", "--tp", "3"}}) {
    Words words = {"serve", "m"};
    words.insert(words.end(), spelling.begin(), spelling.end());
    EXPECT_EQ(parsed<ServeFlags>(words).engine.tensor_parallel_size, 3) << spelling[0];
  }
}

TEST(FlagsTest, GenerateTakesEverySamplingField) {
  const GenerateFlags flags = parsed<GenerateFlags>({"generate",
                                                     "m",
                                                     "--prompt",
                                                     "hi",
                                                     "--max-tokens",
                                                     "8",
                                                     "--temperature",
                                                     "0.5",
                                                     "--top-p=0.9",
                                                     "--top-k",
                                                     "-1",
                                                     "--min-p",
                                                     "0.1",
                                                     "--repetition-penalty",
                                                     "1.1",
                                                     "--presence-penalty",
                                                     "-1.5",
                                                     "--frequency-penalty=-0.5",
                                                     "--stop",
                                                     "a",
                                                     "--stop",
                                                     "b,c",
                                                     "--stop-token-ids",
                                                     "1,2",
                                                     "--seed",
                                                     "18446744073709551615",
                                                     "--logprobs",
                                                     "3",
                                                     "--ignore-eos",
                                                     "--json"});
  const GenerationRequest& request = flags.request;
  EXPECT_EQ(request.prompt, "hi");
  EXPECT_EQ(request.max_tokens, 8);
  EXPECT_EQ(request.temperature, 0.5);
  EXPECT_EQ(request.top_p, 0.9);
  EXPECT_EQ(request.top_k, -1);
  EXPECT_EQ(request.min_p, 0.1);
  EXPECT_EQ(request.repetition_penalty, 1.1);
  EXPECT_EQ(request.presence_penalty, -1.5);
  EXPECT_EQ(request.frequency_penalty, -0.5);
  EXPECT_EQ(request.stop, (Words{"a", "b,c"}));
  EXPECT_EQ(request.stop_token_ids, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(request.logprobs, 3);
  EXPECT_TRUE(request.ignore_eos);
  EXPECT_EQ(flags.engine.seed, UINT64_MAX);
  EXPECT_TRUE(flags.json);

  const GenerationRequest none =
      parsed<GenerateFlags>({"generate", "m", "--prompt-ids", "1,2,3"}).request;
  EXPECT_EQ(none.prompt_ids, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_FALSE(none.prompt || none.max_tokens || none.temperature || none.top_p || none.top_k ||
               none.min_p || none.repetition_penalty || none.presence_penalty ||
               none.frequency_penalty || none.logprobs || none.seed);
  EXPECT_FALSE(none.ignore_eos);
}

TEST(FlagsTest, ValuesAreTakenAsTheyAre) {
  for (const char* prompt :
       {"", " ", "[a,b]", "-tp", "--json", "a=b", "-", "{}", "\"q\"", "x\ny", "_", "%%", "serve"}) {
    EXPECT_EQ(parsed<GenerateFlags>({"generate", "m", "--prompt", prompt}).request.prompt, prompt);
    EXPECT_EQ(parsed<GenerateFlags>({"generate", "m", cat("--prompt=", prompt)}).request.prompt,
              prompt);
    EXPECT_EQ(
        parsed<GenerateFlags>({"generate", "m", "--prompt", "x", "--stop", prompt}).request.stop,
        Words{prompt});
  }
  // A model may be called like a command or a flag.
  EXPECT_EQ(parsed<ServeFlags>({"serve", "serve"}).engine.model, "serve");
  EXPECT_EQ(parsed<ServeFlags>({"serve", "--", "--tp"}).engine.model, "--tp");
  EXPECT_EQ(parsed<ServeFlags>({"serve", "my_model"}).engine.model, "my_model");
}

TEST(FlagsTest, OtherCommands) {
  const LogitsFlags logits =
      parsed<LogitsFlags>({"logits", "m", "--prompt-ids", "5,6", "--out", "f.npy", "--chunk", "7",
                           "--decode-from=0", "-tp", "2"});
  EXPECT_EQ(logits.request.prompt_ids, (std::vector<int64_t>{5, 6}));
  EXPECT_EQ(logits.out, "f.npy");
  EXPECT_EQ(logits.chunk, 7);
  EXPECT_EQ(logits.decode_from, 0);
  EXPECT_EQ(logits.engine.tensor_parallel_size, 2);

  const TokenizeFlags tokenize =
      parsed<TokenizeFlags>({"tokenize", "m", "--text", "x", "--no-special", "--json"});
  EXPECT_EQ(tokenize.text, "x");
  EXPECT_TRUE(tokenize.no_special && tokenize.json);
  const DetokenizeFlags detokenize =
      parsed<DetokenizeFlags>({"detokenize", "m", "--ids=1,2", "--skip-special"});
  EXPECT_EQ(detokenize.ids, (std::vector<int64_t>{1, 2}));
  EXPECT_TRUE(detokenize.skip_special);
  EXPECT_FALSE(detokenize.ids_from_stdin);
  EXPECT_TRUE(parsed<DetokenizeFlags>({"detokenize", "m", "--ids", "-"}).ids_from_stdin);
  const RenderFlags render = parsed<RenderFlags>(
      {"render", "m", "--messages", "f", "--chat-template", "t", "--chat-template-kwargs={}",
       "--no-generation-prompt", "--trust-message-tokens", "--ids"});
  EXPECT_EQ(render.chat.messages, "f");
  EXPECT_EQ(render.chat.chat_template, "t");
  EXPECT_EQ(render.chat.kwargs, "{}");
  EXPECT_TRUE(render.chat.no_generation_prompt && render.chat.trust_message_tokens && render.ids);
  EXPECT_EQ(parsed<GenerateFlags>({"generate", "m", "--messages", "f"}).chat.messages, "f");
  const ClientFlags client =
      parsed<ClientFlags>({"client", "--server", "h:1", "--prompt", "p", "--seed", "9"});
  EXPECT_EQ(client.server, "h:1");
  EXPECT_EQ(client.request.seed, 9u);
  EXPECT_FALSE(parsed<BenchModelFlags>({"bench", "decode", "m"}).prefill);
  EXPECT_TRUE(parsed<BenchModelFlags>({"bench", "prefill", "m", "--tokens", "100"}).prefill);
  EXPECT_EQ(
      parsed<BenchCollectivesFlags>({"bench", "collectives", "-tp", "3"}).tensor_parallel_size, 3);
}

TEST(FlagsTest, Version) {
  for (const char* word : {"--version", "-V", "version"})
    EXPECT_FALSE(parsed<VersionFlags>({word}).json) << word;
  EXPECT_TRUE(parsed<VersionFlags>({"--version", "--json"}).json);
}

TEST(FlagsTest, LogFlags) {
  const auto level = [](const Words& words) { return parse_command_line(words).value().log.level; };
  EXPECT_EQ(level({"serve", "m"}), LogLevel::kInfo);
  EXPECT_EQ(level({"generate", "m", "--prompt", "x"}), LogLevel::kWarning);
  EXPECT_EQ(level({"generate", "m", "--prompt", "x", "--log-level", "debug"}), LogLevel::kDebug);
  EXPECT_EQ(level({"serve", "m", "--log_level=error"}), LogLevel::kError);
  EXPECT_EQ(parse_command_line(Words{"serve", "m", "--log-format", "json"}).value().log.format,
            LogFormat::kJson);
}

TEST(FlagsTest, DeviceAndItsRungs) {
  const DeviceFlags none = parsed<ServeFlags>({"serve", "m"}).engine.transport.device;
  EXPECT_EQ(none.kind, DeviceKind::kCpu);
  EXPECT_EQ(none.cuda_module + none.nccl_library, "libnccl.so.2");
  EXPECT_EQ(none.cublas_library, "");  // the supported versions, in turn
  EXPECT_EQ(none.ranks_per_gpu, 1);
  EXPECT_TRUE(none.reproducible);
  const auto automatic = parsed<ServeFlags>({"serve", "m", "--device", "auto"}).engine.transport;
  EXPECT_EQ(automatic.device.kind, DeviceKind::kCpu);

  // The order of the flags does not matter.
  for (const Words& words : {Words{"doctor", "--device", "cuda", "--transport", "tcp"},
                             Words{"doctor", "--transport", "tcp", "--device", "cuda"}}) {
    const auto flags = parsed<DoctorFlags>(words).serve.engine.transport;
    EXPECT_EQ(flags.device.kind, DeviceKind::kCuda);
    EXPECT_EQ(flags.order, Words{"tcp"});
  }
  Words cuda_rungs;
  for (const Rung& rung : rungs(DeviceKind::kCuda)) cuda_rungs.emplace_back(rung.name);
  EXPECT_EQ(parsed<DoctorFlags>({"doctor", "--device=cuda"}).serve.engine.transport.order,
            cuda_rungs);

  const Words all = {"--device=cuda",
                     "--cuda-module",
                     "./m.so",
                     "--nccl-library=libnccl.so",
                     "--cublas-library=./libcublasLt.so",
                     "--ranks-per-gpu",
                     "4",
                     "--reproducible=off"};
  for (const Words& command :
       {Words{"serve", "m"}, Words{"generate", "m", "--prompt", "x"}, Words{"bench", "decode", "m"},
        Words{"logits", "m", "--prompt-ids", "1", "--out", "f"}, Words{"doctor"}}) {
    Words words = command;
    words.insert(words.end(), all.begin(), all.end());
    EXPECT_TRUE(parse_command_line(words).ok()) << command[0];
  }
  Words words = {"generate", "m", "--prompt", "x"};
  words.insert(words.end(), all.begin(), all.end());
  const DeviceFlags given = parsed<GenerateFlags>(words).engine.transport.device;
  EXPECT_EQ(given.cuda_module, "./m.so");
  EXPECT_EQ(given.nccl_library, "libnccl.so");
  EXPECT_EQ(given.cublas_library, "./libcublasLt.so");
  EXPECT_EQ(given.ranks_per_gpu, 4);
  EXPECT_FALSE(given.reproducible);
}

struct BadCase {
  Words words;
  const char* said;  ///< text that the error must contain
};

TEST(FlagsTest, TransportPolicy) {
  const auto flags =
      parsed<DoctorFlags>({"doctor", "-tp", "4", "--transport", "shm,tcp", "--on-shm-shortage=fail",
                           "--min-transport", "shm", "--shm-headroom=1m", "--startup-timeout",
                           "2.5", "--step-timeout=0.5", "--clean-stale", "--json"});
  const TransportFlags& transport = flags.serve.engine.transport;
  EXPECT_EQ(flags.serve.engine.tensor_parallel_size, 4);
  EXPECT_FALSE(transport.degrade_on_shm_shortage);
  EXPECT_EQ(transport.min_transport, "shm");
  EXPECT_EQ(transport.shm_headroom_bytes, 1u << 20);
  EXPECT_EQ(transport.startup_timeout_s, 2.5);
  EXPECT_EQ(transport.step_timeout_s, 0.5);
  EXPECT_TRUE(transport.clean_stale);
  EXPECT_TRUE(flags.json);
  EXPECT_FALSE(parsed<DoctorFlags>({"doctor"}).nccl_version.has_value());
  EXPECT_EQ(parsed<DoctorFlags>({"doctor", "--nccl-version", "2.27"}).nccl_version->code(), 22707);
  EXPECT_EQ(parsed<ServeFlags>({"serve", "m", "--max-restarts", "0"}).engine.max_restarts, 0);
}

TEST(FlagsTest, ErrorsAreOneLineThatNamesTheFault) {
  const BadCase kCases[] = {
      {{}, "no command"},
      {{""}, "unknown command"},
      {{"genrate"}, "did you mean shoal generate"},
      {{"frobnicate"}, "shoal --help"},
      {{"bench"}, "decode, prefill, collectives"},
      {{"bench", "decod"}, "did you mean shoal bench decode"},
      {{"serve"}, "serve needs MODEL"},
      {{"serve", "m", "n"}, "unexpected argument \"n\""},
      {{"serve", "m", "--max-num-seq", "3"}, "did you mean --max-num-seqs"},
      {{"serve", "m", "--wibble"}, "unknown flag \"--wibble\""},
      {{"serve", "m", "-x"}, "unknown flag \"-x\""},
      {{"serve", "m", "-tp"}, "--tensor-parallel-size needs a value"},
      {{"serve", "m", "-tp", "0"},
       "--tensor-parallel-size must be a whole number of at least 1, not \"0\""},
      {{"serve", "m", "-tp", "two"}, "not \"two\""},
      {{"serve", "m", "--dtype", "int8"},
       "--dtype must be one of auto, float32, float16, bfloat16, not \"int8\""},
      {{"serve", "m", "--transport", "rdma"}, "--transport: unknown transport \"rdma\"; known"},
      {{"serve", "m", "--transport", ""}, "--transport"},
      {{"serve", "m", "--transport", "shm,shm"}, "twice"},
      {{"serve", "m", "--grpc-port", "65536"}, "[0, 65535]"},
      {{"serve", "m", "--grpc-port", "-1"}, "[0, 65535]"},
      {{"serve", "m", "--host", ""}, "--host"},
      {{"serve", "m", "--kv-cache-memory", "1.5g"}, "--kv-cache-memory must be a size"},
      {{"serve", "m", "--max-model-len", "1"}, "of at least 2"},
      {{"serve", "m", "--max-num-batched-tokens", "0"}, "[1, 65536]"},
      {{"serve", "m", "--decode-stretch", "1"},
       "--decode-stretch must be 0, or above 1 and at most 1000, not 1"},
      {{"serve", "m", "--decode-stretch", "-2"}, "not -2"},
      {{"serve", "m", "--decode-stretch", "nan"}, "--decode-stretch"},
      {{"serve", "m", "--max-step-ms", "0"}, "[1, 3600000]"},
      {{"serve", "m", "--scheduling-policy", "lifo"},
       "--scheduling-policy must be one of fcfs, priority, not \"lifo\""},
      {{"serve", "m", "--threads-per-rank", "99999999999"},
       "--threads-per-rank must be a whole number in [1, 1024]"},
      {{"serve", "m", "--prompt", "x"}, "unknown flag \"--prompt\" for serve"},
      {{"generate", "m", "--prompt", "x", "--jsonl", "f"}, "not --prompt and --jsonl"},
      {{"generate", "m", "--prompt", "x", "--ignore-eos=1"}, "--ignore-eos takes no value"},
      {{"generate", "m", "--prompt", "x", "--temperature", "hot"},
       "--temperature must be a finite number, not \"hot\""},
      {{"generate", "m", "--prompt", "x", "--top-p", "nan"}, "--top-p must be a finite number"},
      {{"generate", "m", "--prompt-ids", "1,,2"}, "--prompt-ids must be token ids"},
      {{"generate", "m", "--prompt", "x", "--seed", "-1"}, "--seed must be"},
      {{"logits", "m", "--prompt-ids", "1"}, "logits needs --out"},
      {{"logits", "m", "--prompt", "x", "--prompt-ids", "1", "--out", "f"},
       "not --prompt and --prompt-ids"},
      {{"logits", "m", "--jsonl", "f"}, "logits needs --out-dir"},
      {{"logits", "m", "--jsonl", "f", "--out", "g"}, "--out-dir is for --jsonl"},
      {{"logits", "m", "--prompt", "x", "--out-dir", "d"}, "--out-dir is for --jsonl"},
      {{"generate", "m", "--prompt", "x", "--keep-going"}, "--keep-going is only for --jsonl"},
      {{"logits", "m", "--prompt-ids", "1", "--out", "f", "--chunk", "0"}, "--chunk"},
      {{"tokenize", "m"}, "tokenize needs one of --text, --file, --jsonl"},
      {{"detokenize", "m", "--ids", "1", "--jsonl", "f"}, "not --ids and --jsonl"},
      {{"render", "m"}, "render needs --messages"},
      {{"generate", "m", "--prompt", "x", "--chat-template", "f"}, "need --messages"},
      {{"generate", "m", "--prompt", "x", "--messages", "f"}, "not --prompt and --messages"},
      {{"client", "--prompt", "x", "--chat"}, "client takes one of --prompt, --prompt-ids"},
      {{"client", "--prompt", "x", "--wait", "-1"}, "--wait must be in [0, "},
      {{"bench", "collectives", "-tp", "17"}, "[2, 16]"},
      {{"doctor", "-tp", "17"}, "[1, 16]"},
      {{"doctor", "m", "n"}, "unexpected argument"},
      {{"doctor", "--max-num-seqs", "8"}, "shoal doctor MODEL --max-num-seqs ..."},
      {{"doctor", "m", "--needs"}, "need no MODEL"},
      {{"doctor", "m", "--port", "5", "--grpc-port", "5"}, "--port and --grpc-port must differ"},
      {{"doctor", "m", "--communicators", "2"}, "give --nccl-version too"},
      {{"doctor", "--nccl-version", "2.27", "--communicators", "0"}, "[1, 1024]"},
      {{"doctor", "--nccl-version", "two"}, "--nccl-version: NCCL version \"two\""},
      {{"serve", "m", "--transport", "shm", "--min-transport", "tcp"},
       "--min-transport tcp is not in the order of --transport, shm"},
      {{"serve", "m", "--on-shm-shortage", "hang"},
       "--on-shm-shortage must be one of degrade, fail"},
      {{"doctor", "--device", "gpu"}, "--device must be one of auto, cpu, cuda"},
      {{"doctor", "--device", "cuda", "--transport", "shm,tcp"},
       "--transport: transport \"shm\" is for --device cpu, not for --device cuda"},
      {{"serve", "m", "--transport", "nccl-p2p,tcp"},
       "\"nccl-p2p\" is for --device cuda, not for --device cpu"},
      {{"doctor", "--device", "cuda", "--min-transport", "shm"},
       "--min-transport shm is not in the order"},
      {{"serve", "m", "--cuda-module", "libshoal_cuda.so"},
       "--cuda-module must be a path with a slash"},
      {{"serve", "m", "--ranks-per-gpu", "0"}, "--ranks-per-gpu must be a whole number in [1, 16]"},
      {{"serve", "m", "--reproducible", "yes"}, "--reproducible must be one of on, off"},
      {{"serve", "m", "--step-timeout", "0"}, "--step-timeout must be above 0 seconds"},
      {{"serve", "m", "--step-timeout", "1e18"},
       "--step-timeout must be at most 1000000000 seconds, not 1e18"},
      {{"doctor", "--startup-timeout", "1e17"},
       "--startup-timeout must be at most 1000000000 seconds"},
      {{"logits", "m", "--max-restarts", "1"}, "unknown flag \"--max-restarts\""},
      {{"serve", "m", "--log-format", "xml"}, "--log-format must be one of text, json"},
      {{"serve", "m", std::string(5000, 'x')}, "unexpected argument"},
      {{"serve", "m", "--" + std::string(5000, 'x')}, "unknown flag"},
      {{"serve", "m", "a\nb"}, "\"a?b\""},
  };
  for (const BadCase& c : kCases) {
    std::string shown;
    for (const std::string& word : c.words) shown += word.substr(0, 40) + " ";
    const Result<CommandLine> line = parse_command_line(c.words);
    ASSERT_FALSE(line.ok()) << shown;
    EXPECT_EQ(line.status().code(), Code::kInvalidArgument) << shown;
    const std::string text = line.status().to_string();
    EXPECT_NE(text.find(c.said), std::string::npos) << shown << "gave: " << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    EXPECT_LT(text.size(), 400u) << shown;
  }
}

}  // namespace
}  // namespace shoal
