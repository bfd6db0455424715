#include "server/cli/flags.h"

#include <algorithm>
#include <map>

#include "runtime/base/text_values.h"
#include "runtime/transport/needs/nccl_budget.h"
#include "runtime/transport/rungs/rung.h"
#include "server/cli/flag_parser.h"
#include "server/cli/flag_setters.h"
#include "server/cli/shared_flags.h"
#include "server/cli/shmtest_flags.h"

namespace shoal {
namespace {

/// Checks that exactly one of the alternatives was given.
Status exactly_one(const char* command,
                   const std::vector<std::pair<const char*, bool>>& alternatives) {
  std::string names, given;
  int count = 0;
  for (const auto& [name, is_given] : alternatives) {
    names += cat(names.empty() ? "" : ", ", name);
    if (is_given) given += cat(count++ == 0 ? "" : " and ", name);
  }
  if (count == 1) return {};
  return Status::error(Code::kInvalidArgument,
                       count == 0 ? cat(command, " needs one of ", names)
                                  : cat(command, " takes one of ", names, ", not ", given));
}

// One function per command. Each registers its flags, reads them, and checks what concerns several
// of them.

using Words = std::span<const std::string>;

/// Reads the words. If they ask for help, the result is the help instead of the command.
template <typename Flags>
Result<CommandLine> finish(FlagParser& parser, Words words, const LogOptions& log,
                           const Flags& flags, const std::function<Status()>& check = nullptr) {
  SHOAL_ASSIGN_OR_RETURN(const bool help, parser.parse(words));
  if (help)
    return CommandLine{log, PrintText{parser.help(), parser.description(), parser.groups()}};
  if (check != nullptr) SHOAL_RETURN_IF_ERROR(check());
  return CommandLine{log, flags};
}

Result<CommandLine> parse_serve(Words words, LogOptions log) {
  log.level = LogLevel::kInfo;
  ServeFlags flags;
  FlagParser parser("serve",
                    "Serve MODEL over gRPC (openengine.v1, grpc.health.v1) until SIGTERM.");
  add_engine_flags(parser, &flags.engine);
  add_scheduling_flags(parser, &flags.scheduling);
  add_queue_flags(parser, &flags.queue);
  add_restart_flag(parser, &flags.engine);
  parser.group("Server");
  parser.add_value("--host", "ADDRESS", "Address to listen on (127.0.0.1)",
                   words_as_they_are(&flags.host));
  parser.add_value("--grpc-port", "PORT", "Port to listen on (50051); 0: a free one",
                   whole(&flags.grpc_port, 0, 65535));
  parser.add_value("--seed", "N", "Seed of every request that brings none (a random one each)",
                   seed(&flags.engine.seed));
  add_log_flags(parser, &log);
  return finish(parser, words, log, flags, [&]() -> Status {
    SHOAL_RETURN_IF_ERROR(settle_transport(&flags.engine.transport));
    if (!flags.host.empty()) return {};
    return Status::error(Code::kInvalidArgument,
                         "--host must be an address such as 127.0.0.1 or 0.0.0.0, not empty");
  });
}

Result<CommandLine> parse_generate(Words words, LogOptions log) {
  GenerateFlags flags;
  FlagParser parser("generate",
                    "Generate from a prompt, or from a file of requests, without a server.");
  add_engine_flags(parser, &flags.engine);
  add_scheduling_flags(parser, &flags.scheduling);
  add_restart_flag(parser, &flags.engine);
  parser.group("Input and output");
  add_prompt_flags(parser, &flags.request);
  parser.add_value(
      "--jsonl", path("FILE"),
      "One request a line, all in one batch: {\"prompt_ids\":[1,2],\"max_tokens\":8,...}; - is stdin",
      words_as_they_are(&flags.jsonl));
  parser.add_switch("--json", "Print one JSON object instead of the text (always with --jsonl)",
                    &flags.json);
  add_sampling_flags(parser, &flags.request);
  parser.add_value("--seed", "N", "Seed (0)", seed(&flags.engine.seed));
  add_log_flags(parser, &log);
  return finish(parser, words, log, flags, [&]() -> Status {
    SHOAL_RETURN_IF_ERROR(settle_transport(&flags.engine.transport));
    return exactly_one("generate", {{"--prompt", flags.request.prompt.has_value()},
                                    {"--prompt-ids", flags.request.prompt_ids.has_value()},
                                    {"--jsonl", flags.jsonl.has_value()}});
  });
}

Result<CommandLine> parse_logits(Words words, LogOptions log) {
  LogitsFlags flags;
  FlagParser parser(
      "logits",
      "Write the logits of every prompt token as a NumPy file, float32 [tokens, vocabulary].");
  add_engine_flags(parser, &flags.engine);
  parser.group("Input and output");
  parser.add_value("--prompt-ids", "IDS", "The tokens, e.g. 1,2,3", ids(&flags.prompt_ids));
  parser.add_value("--out", path("FILE"), "The .npy file to write", words_as_they_are(&flags.out));
  parser.add_value("--chunk", "N", "Tokens per prefill step (max-num-batched-tokens)",
                   whole(&flags.chunk, 1));
  parser.add_value("--decode-from", "K", "Process tokens from position K on one at a time",
                   whole(&flags.decode_from, 0));
  add_log_flags(parser, &log);
  return finish(parser, words, log, flags, [&]() -> Status {
    SHOAL_RETURN_IF_ERROR(settle_transport(&flags.engine.transport));
    if (flags.prompt_ids.empty())
      return Status::error(Code::kInvalidArgument, "logits needs --prompt-ids 1,2,3");
    if (flags.out.empty())
      return Status::error(Code::kInvalidArgument, "logits needs --out FILE.npy");
    return {};
  });
}

Result<CommandLine> parse_tokenize(Words words, LogOptions log) {
  TokenizeFlags flags;
  FlagParser parser("tokenize", "Text to token ids.");
  parser.add_positional("MODEL", "Model directory, or a tokenizer.json", &flags.model);
  parser.add_value("--text", "TEXT", "The text", words_as_they_are(&flags.text));
  parser.add_value("--file", path("FILE"), "The whole file is the text; - is stdin",
                   words_as_they_are(&flags.file));
  parser.add_value("--jsonl", path("FILE"), "A JSON string a line; gives {\"ids\":[...]} a line",
                   words_as_they_are(&flags.jsonl));
  parser.add_switch("--no-special", "Without the tokens that the post-processor adds (BOS)",
                    &flags.no_special);
  parser.add_switch("--json", "Print {\"ids\":[...]}", &flags.json);
  add_log_flags(parser, &log);
  return finish(parser, words, log, flags, [&] {
    return exactly_one("tokenize", {{"--text", flags.text.has_value()},
                                    {"--file", flags.file.has_value()},
                                    {"--jsonl", flags.jsonl.has_value()}});
  });
}

Result<CommandLine> parse_detokenize(Words words, LogOptions log) {
  DetokenizeFlags flags;
  FlagParser parser("detokenize", "Token ids to text.");
  parser.add_positional("MODEL", "Model directory, or a tokenizer.json", &flags.model);
  parser.add_value("--ids", "IDS", "The ids, e.g. 1,2,3", ids(&flags.ids));
  parser.add_value("--jsonl", path("FILE"),
                   "An array of ids a line; gives {\"text\":\"...\"} a line",
                   words_as_they_are(&flags.jsonl));
  parser.add_switch("--skip-special", "Leave special tokens out", &flags.skip_special);
  add_log_flags(parser, &log);
  return finish(parser, words, log, flags, [&] {
    return exactly_one("detokenize",
                       {{"--ids", flags.ids.has_value()}, {"--jsonl", flags.jsonl.has_value()}});
  });
}

Result<CommandLine> parse_client(Words words, LogOptions log) {
  ClientFlags flags;
  FlagParser parser("client", "Ask a running server, and stream its answer to the terminal.");
  parser.add_value("--server", "HOST:PORT", "The server (127.0.0.1:50051)",
                   words_as_they_are(&flags.server));
  parser.add_value("--model", "NAME", "Its model's name (whatever it serves)",
                   words_as_they_are(&flags.model));
  add_prompt_flags(parser, &flags.request);
  parser.add_switch("--json", "Print one JSON object instead of the text", &flags.json);
  add_sampling_flags(parser, &flags.request);
  parser.add_value("--seed", "N", "Seed (the server's)", seed(&flags.request.seed));
  add_log_flags(parser, &log);
  return finish(parser, words, log, flags, [&] {
    return exactly_one("client", {{"--prompt", flags.request.prompt.has_value()},
                                  {"--prompt-ids", flags.request.prompt_ids.has_value()}});
  });
}

Result<CommandLine> parse_bench_model(Words words, LogOptions log, bool prefill) {
  BenchModelFlags flags;
  flags.prefill = prefill;
  flags.tokens = prefill ? 512 : 64;
  FlagParser parser(
      prefill ? "bench prefill" : "bench decode",
      prefill ? "Time the prefill of one prompt."
              : "Time decoding of one sequence, beside the read bandwidth of this machine.");
  add_engine_flags(parser, &flags.engine);
  parser.group("Bench");
  parser.add_value("--tokens", "N", prefill ? "Prompt length (512)" : "Tokens to decode (64)",
                   whole(&flags.tokens, 1, 1'000'000));
  parser.add_switch("--json", "Print one JSON object", &flags.json);
  add_log_flags(parser, &log);
  return finish(parser, words, log, flags,
                [&] { return settle_transport(&flags.engine.transport); });
}

Result<CommandLine> parse_bench_collectives(Words words, LogOptions log) {
  BenchCollectivesFlags flags;
  TransportFlags transport;
  FlagParser parser("bench collectives",
                    "Time all_reduce between ranks, each a process bound to a CPU.");
  parser.group("Bench");
  add_ranks_flag(parser, &flags.tensor_parallel_size, "2 to 16 (2)");
  add_order_flag(parser, &transport.transport, rung_names(DeviceKind::kCpu));
  parser.add_value("--rounds", "N", "Fresh starts of the ranks, all transports in each (3)",
                   whole(&flags.rounds, 1, 1000));
  parser.add_switch("--json", "Print one JSON object", &flags.json);
  add_log_flags(parser, &log);
  return finish(parser, words, log, flags, [&]() -> Status {
    constexpr int kMost = 16;
    SHOAL_RETURN_IF_ERROR(settle_transport(&transport));
    flags.transport = transport.order;
    if (flags.tensor_parallel_size >= 2 && flags.tensor_parallel_size <= kMost) return {};
    return Status::error(Code::kInvalidArgument,
                         cat("--tensor-parallel-size must be in [2, ", kMost,
                             "] for bench collectives, not ", flags.tensor_parallel_size));
  });
}

Result<CommandLine> parse_doctor(Words words, LogOptions log) {
  DoctorFlags flags;
  FlagParser parser(
      "doctor",
      "Say which transport ranks would use here, why not a better one, and what to do about it. Needs no "
      "model. Exit: 0 the first of the order works, 1 a later one, 69 none.");
  parser.group("Transport");
  add_ranks_flag(parser, &flags.tensor_parallel_size, "1 to 16 (2)");
  add_transport_flags(parser, &flags.transport);
  add_device_flags(parser, &flags.transport.device);
  parser.group("Output");
  parser.add_switch("--json", "Print the report as one JSON document", &flags.json);
  parser.add_switch("--needs", "Only print what each transport, and NCCL, needs for 2 to 16 ranks",
                    &flags.needs);
  parser.add_value(
      "--nccl-version", "V",
      "Only print what NCCL V (2.27.7, or 2.27) would need here for -tp ranks; needs no GPU",
      [&](std::string_view flag, std::string_view text) -> Status {
        const Result<NcclVersion> version = parse_nccl_version(text);
        if (!version.ok())
          return Status::error(Code::kInvalidArgument, cat(flag, ": ", version.status().message()));
        flags.nccl_version = *version;
        return {};
      });
  add_log_flags(parser, &log);
  return finish(parser, words, log, flags, [&]() -> Status {
    constexpr int kMost = 16;
    if (flags.tensor_parallel_size > kMost) {
      return Status::error(Code::kInvalidArgument,
                           cat("--tensor-parallel-size must be in [1, ", kMost, "], not ",
                               flags.tensor_parallel_size));
    }
    return settle_transport(&flags.transport);
  });
}

Result<CommandLine> parse_shmtest(Words words, LogOptions log) {
  // The words after "--" belong to another program.
  const auto separator = std::find(words.begin(), words.end(), "--");
  ShmtestFlags flags;
  if (separator != words.end()) flags.command.assign(separator + 1, words.end());
  FlagParser parser(
      "shmtest",
      "Run a command under a matrix of /dev/shm conditions: shoal shmtest [FLAGS] -- COMMAND ...\n"
      "Exit codes: 0 all pass; 1 some fail; 64 wrong flag or no such command; 69 no namespaces here.");
  add_shmtest_flags(parser, &flags);
  add_log_flags(parser, &log);
  return finish(parser, {words.begin(), separator}, log, flags,
                [&] { return check_shmtest_flags(flags); });
}

Result<CommandLine> parse_version(Words words, LogOptions log) {
  VersionFlags flags;
  FlagParser parser(
      "--version",
      "Say what this program was built from: version, commit, kernel sets, CUDA module.");
  parser.add_switch("--json", "Print one JSON object", &flags.json);
  return finish(parser, words, log, flags);
}

/// One row of the table of commands.
struct Command {
  const char* name;
  Operand operand;
  const char* summary;
  Result<CommandLine> (*parse)(Words, LogOptions);
};

constexpr Command kCommands[] = {
    {"serve", Operand::kModel, "serve a model over gRPC", parse_serve},
    {"generate", Operand::kModel, "generate from a prompt or a file of requests, without a server",
     parse_generate},
    {"client", Operand::kNone, "ask a running server", parse_client},
    {"doctor", Operand::kNone, "which transport ranks would use here, why, and what to do about it",
     parse_doctor},
    {"logits", Operand::kModel, "write the logits of every prompt token as a NumPy file",
     parse_logits},
    {"tokenize", Operand::kModel, "text to token ids", parse_tokenize},
    {"detokenize", Operand::kModel, "token ids to text", parse_detokenize},
    {"bench decode", Operand::kModel,
     "tokens/s and bytes/s of decoding, beside the machine's read bandwidth",
     [](Words words, LogOptions log) { return parse_bench_model(words, log, false); }},
    {"bench prefill", Operand::kModel, "tokens/s of prefill",
     [](Words words, LogOptions log) { return parse_bench_model(words, log, true); }},
    {"bench collectives", Operand::kNone, "latency of all_reduce between ranks",
     parse_bench_collectives},
    {"shmtest", Operand::kCommand, "run any command under a matrix of /dev/shm conditions",
     parse_shmtest},
};

/// Parses `shoal help`, which prints the list of commands, the man page, or a shell's completion
/// script.
Result<CommandLine> parse_help(Words words, const LogOptions& log) {
  using Writer = std::string (*)(const std::vector<CommandEntry>&);
  const std::map<std::string, Writer> shells = {
      {"bash", bash_completion}, {"zsh", zsh_completion}, {"fish", fish_completion}};
  bool man = false;
  Writer write = help_text;
  FlagParser parser("help",
                    "Print the list of commands, or what an installation makes from the flags.");
  parser.add_switch("--man", "Print shoal.1", &man);
  parser.add_value("--completion", one_of({"bash", "zsh", "fish"}),
                   "Print the script that completes for this shell",
                   [&](std::string_view flag, std::string_view text) -> Status {
                     SHOAL_ASSIGN_OR_RETURN(const std::string shell,
                                            parse_choice_flag(flag, text, {"bash", "zsh", "fish"}));
                     write = shells.at(shell);
                     return {};
                   });
  SHOAL_ASSIGN_OR_RETURN(const bool help, parser.parse(words));
  if (help) return CommandLine{log, PrintText{parser.help()}};
  return CommandLine{log, PrintText{man ? man_page(command_table()) : write(command_table())}};
}

Status unknown_command(const std::string& name) {
  std::vector<std::string> known;
  for (const Command& command : kCommands) known.emplace_back(command.name);
  const std::string nearest = nearest_word(name, known);
  return Status::error(Code::kInvalidArgument,
                       cat("unknown command ", shown(name), "; ",
                           nearest.empty() ? "see shoal --help for the commands"
                                           : cat("did you mean shoal ", nearest, "?")));
}

}  // namespace

std::vector<CommandEntry> command_table() {
  std::vector<CommandEntry> table;
  const std::vector<std::string> ask_for_help = {"--help"};
  for (const Command& command : kCommands) {
    const Result<CommandLine> line = command.parse(ask_for_help, {});
    const auto& help =
        std::get<PrintText>(line.value().command);  // --help needs no other flag, so it cannot fail
    table.push_back(
        {command.name, command.operand, command.summary, help.description, help.groups});
  }
  return table;
}

Result<CommandLine> parse_command_line(Words words) {
  if (words.empty()) {
    return Status::error(
        Code::kInvalidArgument,
        "no command; start with shoal serve, generate, client, doctor, shmtest, logits, tokenize, "
        "detokenize or bench (shoal --help lists them)");
  }
  LogOptions log;
  log.level = LogLevel::kWarning;  // one-shot commands print no info lines
  std::string name = words[0];
  if (name == "--help" || name == "-h")
    return CommandLine{log, PrintText{help_text(command_table())}};
  if (name == "help") return parse_help(words.subspan(1), log);
  if (name == "--version" || name == "version") return parse_version(words.subspan(1), log);
  words = words.subspan(1);
  if (name == "bench") {
    if (!words.empty() && (words[0] == "--help" || words[0] == "-h")) {
      return CommandLine{log, PrintText{help_text(command_table())}};
    }
    if (words.empty())
      return Status::error(Code::kInvalidArgument,
                           "bench needs one of decode, prefill, collectives");
    name += " " + words[0];
    words = words.subspan(1);
  }
  const auto command =
      std::find_if(std::begin(kCommands), std::end(kCommands),
                   [&](const Command& candidate) { return candidate.name == name; });
  return command == std::end(kCommands) ? unknown_command(name) : command->parse(words, log);
}

}  // namespace shoal
