#include "server/cli/flags.h"

#include <algorithm>
#include <map>

#include "runtime/base/text_values.h"
#include "runtime/transport/needs/nccl_budget.h"
#include "runtime/transport/rungs/rung.h"
#include "server/cli/configuration_text.h"
#include "server/cli/doctor_flags.h"
#include "server/cli/examples.h"
#include "server/cli/flag_parser.h"
#include "server/cli/flag_setters.h"
#include "server/cli/parse_command.h"
#include "server/cli/prompt_flags.h"
#include "server/cli/serve_flags.h"
#include "server/cli/shared_flags.h"
#include "server/cli/shmtest_flags.h"
#include "server/cli/text_flags.h"

namespace shoal {
namespace {

/// What ends by itself prints no info lines.
constexpr LogOptions kOneShotLog = {.level = LogLevel::kWarning};

// One function per command. Each registers its flags, reads them, and checks what concerns several
// of them.

Result<CommandLine> parse_serve(Words words, LogOptions log, const Environment& environment) {
  log.level = LogLevel::kInfo;
  ServeFlags flags;
  ConfigurationFlags configuration;
  FlagParser parser("serve", "Serve MODEL over HTTP (OpenAI's API) and gRPC until SIGTERM.");
  // Who starts a server looks first for where it listens.
  for (const char* first : {kModelGroup, kServerGroup, kHttpGroup, kAccessGroup})
    parser.group(first);
  add_serve_flags(parser, &flags);
  add_log_flags(parser, &log);
  add_configuration_flags(parser, &configuration);
  parser.look_elsewhere([&](const std::vector<Setting>& given) {
    return settings_elsewhere(parser, environment, given);
  });
  Result<CommandLine> line = finish(parser, words, log, flags, [&]() -> Status {
    flags.set_elsewhere = list_of_settings(parser.settings());
    SHOAL_RETURN_IF_ERROR(check_configuration_flags(configuration));
    return with_settings(check_serve_flags(&flags), parser.settings());
  });
  if (!line.ok() || !configuration.print) return line;
  return CommandLine{log, PrintText{configuration.json ? configuration_json(parser, environment)
                                                       : configuration_yaml(parser, environment)}};
}

Result<CommandLine> parse_generate(Words words, LogOptions log, const Environment&) {
  GenerateFlags flags;
  FlagParser parser("generate",
                    "Generate from a prompt, or from a file of requests, without a server.");
  add_engine_flags(parser, &flags.engine);
  add_scheduling_flags(parser, &flags.scheduling);
  add_restart_flag(parser, &flags.engine);
  parser.group("Input and output");
  add_generate_io_flags(parser, &flags);
  add_sampling_flags(parser, &flags.request);
  parser.add_value("--seed", "N",
                   "Seed, also of each line of --jsonl that brings none (0: the same answer every "
                   "time; serve draws one for each request)",
                   seed(&flags.engine.seed));
  add_log_flags(parser, &log);
  return finish(parser, words, log, flags, [&]() -> Status {
    SHOAL_RETURN_IF_ERROR(settle_transport(&flags.engine.transport));
    return check_generate_flags(flags);
  });
}

bool has_flag(const FlagParser& parser, const std::string& flag) {
  const std::vector<FlagGroup>& groups = parser.groups();
  return std::any_of(groups.begin(), groups.end(), [&flag](const FlagGroup& group) {
    return std::any_of(group.flags.begin(), group.flags.end(),
                       [&flag](const FlagEntry& one) { return one.names[0] == flag; });
  });
}

bool is_given(const std::vector<Setting>& settings, std::string_view flag) {
  return std::any_of(settings.begin(), settings.end(),
                     [flag](const Setting& one) { return one.flag == flag; });
}

/// Without a model most flags of serve would decide nothing.
Status check_doctor_without_model(const std::vector<Setting>& settings, DoctorFlags* flags) {
  FlagParser place("doctor", "");
  DoctorFlags unused;
  LogOptions unused_log;
  add_place_flags(place, &unused, &unused_log);
  for (const Setting& one : settings) {
    if (!has_flag(place, one.flag))
      return Status::error(Code::kInvalidArgument,
                           cat(name_of(one), " is about serving a model: name it too, as in ",
                               as_typed("doctor"), " MODEL ", one.flag, " ..."));
  }
  return check_place_flags(settings, flags);
}

Status check_doctor_flags(const std::vector<Setting>& settings, DoctorFlags* flags) {
  if (flags->serve.engine.model.empty()) return check_doctor_without_model(settings, flags);
  if (flags->needs || flags->nccl_version)
    return Status::error(
        Code::kInvalidArgument,
        "--needs and --nccl-version only compute, and need no MODEL; leave it out");
  SHOAL_RETURN_IF_ERROR(check_report_flags(*flags));
  flags->serve.set_elsewhere = list_of_settings(settings);
  return with_settings(check_serve_flags(&flags->serve), settings);
}

Result<CommandLine> parse_doctor(Words words, LogOptions log, const Environment& environment) {
  DoctorFlags flags;
  std::string config_file;
  FlagParser parser(
      "doctor",
      cat("Say which transport ranks would use here, why not a better one, and what to do about it. "
          "With MODEL: whether shoal serve would start here with these flags, which it does all but "
          "load the weights for, on ports of its own. It then reads variables and --config as serve "
          "does. Without MODEL there are 2 ranks, and only flags about ranks and transports count. "
          "Exit: 0 the first of the order works or another one that is as good, 1 a slower one (0 if "
          "--min-transport allows it), 69 none; with MODEL also 64, 65 and 66 as serve; ",
          kPlanExit));
  add_report_flags(parser, &flags);
  add_serve_flags(parser, &flags.serve);
  add_log_flags(parser, &log);
  add_config_flag(parser, &config_file);
  parser.make_positional_optional();
  parser.look_elsewhere([&](const std::vector<Setting>& given) -> Result<std::vector<Setting>> {
    if (!is_given(given, "MODEL") && !is_given(given, "--config")) return std::vector<Setting>();
    return settings_elsewhere(parser, environment, given);
  });
  return finish(parser, words, log, flags,
                [&] { return check_doctor_flags(parser.settings(), &flags); });
}

Result<CommandLine> parse_logits(Words words, LogOptions log, const Environment&) {
  LogitsFlags flags;
  FlagParser parser(
      "logits",
      "Write the logits of every token of a prompt, or of several, as NumPy files, float32 "
      "[tokens, vocabulary]. Row i is about the token that follows token i.");
  add_engine_flags(parser, &flags.engine);
  parser.group("Input and output");
  add_logits_io_flags(parser, &flags);
  parser.add_value("--chunk", "N", "Tokens per prefill step (max-num-batched-tokens)",
                   whole(&flags.chunk, 1));
  parser.add_value("--decode-from", "K", "Process tokens from position K on one at a time",
                   whole(&flags.decode_from, 0));
  add_log_flags(parser, &log);
  return finish(parser, words, log, flags, [&]() -> Status {
    SHOAL_RETURN_IF_ERROR(settle_transport(&flags.engine.transport));
    return check_logits_flags(flags);
  });
}

Result<CommandLine> parse_tokenize(Words words, LogOptions log, const Environment&) {
  TokenizeFlags flags;
  FlagParser parser("tokenize", "Text to token ids.");
  add_tokenize_flags(parser, &flags);
  add_log_flags(parser, &log);
  return finish(parser, words, log, flags, [&] { return check_tokenize_flags(flags); });
}

Result<CommandLine> parse_detokenize(Words words, LogOptions log, const Environment&) {
  DetokenizeFlags flags;
  FlagParser parser("detokenize", "Token ids to text.");
  add_detokenize_flags(parser, &flags);
  add_log_flags(parser, &log);
  return finish(parser, words, log, flags, [&] { return check_detokenize_flags(flags); });
}

Result<CommandLine> parse_render(Words words, LogOptions log, const Environment&) {
  RenderFlags flags;
  FlagParser parser("render", "Chat messages to the prompt that a model's chat template gives.");
  add_render_flags(parser, &flags);
  add_log_flags(parser, &log);
  return finish(parser, words, log, flags, [&] { return check_render_flags(flags); });
}

Result<CommandLine> parse_client(Words words, LogOptions log, const Environment&) {
  ClientFlags flags;
  FlagParser parser("client", "Ask a running server, and stream its answer to the terminal.");
  add_client_flags(parser, &flags);
  add_log_flags(parser, &log);
  return finish(parser, words, log, flags, [&] { return check_client_flags(&flags); });
}

Result<CommandLine> parse_bench_model(Words words, LogOptions log, bool prefill) {
  BenchModelFlags flags;
  flags.prefill = prefill;
  flags.tokens = prefill ? 512 : 64;
  FlagParser parser(
      prefill ? "bench prefill" : "bench decode",
      prefill
          ? "Time the prefill of one prompt: the median of 5 runs, after one that only warms up. "
            "--json has every run."
          : "Time decoding of one sequence, in turns of 8 tokens, beside the read bandwidth of "
            "this machine, which is measured before and after each. All figures are of the turn "
            "that has the median fraction of that bandwidth; --json has every turn.");
  add_engine_flags(parser, &flags.engine);
  parser.group("Bench");
  parser.add_value("--tokens", "N", prefill ? "Prompt length (512)" : "Tokens to decode (64)",
                   whole(&flags.tokens, 1, 1'000'000));
  parser.add_switch("--json", "Print one JSON object", &flags.json);
  add_log_flags(parser, &log);
  return finish(parser, words, log, flags,
                [&] { return settle_transport(&flags.engine.transport); });
}

Result<CommandLine> parse_bench_collectives(Words words, LogOptions log, const Environment&) {
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

Result<CommandLine> parse_version(Words words, LogOptions log, const Environment&) {
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
  Result<CommandLine> (*parse)(Words, LogOptions, const Environment&);
};

constexpr Command kCommands[] = {
    {"serve", Operand::kModel, "serve a model over HTTP and gRPC", parse_serve},
    {"generate", Operand::kModel, "generate from a prompt or a file of requests, without a server",
     parse_generate},
    {"client", Operand::kNone, "ask a running server", parse_client},
    {"doctor", Operand::kModelOrNone,
     "which transport ranks would use here, why, and what to do about it", parse_doctor},
    {"logits", Operand::kModel, "write the logits of every prompt token as a NumPy file",
     parse_logits},
    {"tokenize", Operand::kModel, "text to token ids", parse_tokenize},
    {"detokenize", Operand::kModel, "token ids to text", parse_detokenize},
    {"render", Operand::kModel, "chat messages to a prompt", parse_render},
    {"bench decode", Operand::kModel,
     "tokens/s and bytes/s of decoding, beside the machine's read bandwidth",
     [](Words words, LogOptions log, const Environment&) {
       return parse_bench_model(words, log, false);
     }},
    {"bench prefill", Operand::kModel, "tokens/s of prefill",
     [](Words words, LogOptions log, const Environment&) {
       return parse_bench_model(words, log, true);
     }},
    {"bench collectives", Operand::kNone, "latency of all_reduce between ranks",
     parse_bench_collectives},
    {"shmtest", Operand::kCommand, "run any command under a matrix of /dev/shm conditions",
     parse_shmtest},
};

/// Parses `shoal help`, which prints the list of commands, the help of one, the man page, or a
/// shell's completion script.
Result<CommandLine> parse_help(Words words, const LogOptions& log) {
  if (!words.empty() && !words[0].starts_with('-')) {  // a command, whose help this is as in git
    std::vector<std::string> asked(words.begin(), words.end());
    asked.emplace_back("--help");
    return parse_command_line(asked, {});
  }
  using Writer = std::string (*)(const std::vector<CommandEntry>&);
  const std::map<std::string, Writer> shells = {
      {"bash", bash_completion}, {"zsh", zsh_completion}, {"fish", fish_completion}};
  bool man = false, json = false;
  Writer write = nullptr;
  FlagParser parser("help",
                    "Print the list of commands, the help of one (shoal help serve), or what an "
                    "installation makes from the flags.");
  parser.add_switch("--man", "Print shoal.1", &man);
  parser.add_switch("--json", "Print every command and flag as one JSON object", &json);
  parser.add_value("--completion", one_of({"bash", "zsh", "fish"}),
                   "Print the script that completes for this shell",
                   [&](std::string_view flag, std::string_view text) -> Status {
                     SHOAL_ASSIGN_OR_RETURN(const std::string shell,
                                            parse_choice_flag(flag, text, {"bash", "zsh", "fish"}));
                     write = shells.at(shell);
                     return {};
                   });
  SHOAL_ASSIGN_OR_RETURN(const bool help, parser.parse(words));
  if (help) return CommandLine{log, PrintHelp{{parser.entry()}}};
  if (man) write = man_page;
  if (json) write = help_json;
  if (write == nullptr) return CommandLine{log, PrintHelp{command_table()}};
  return CommandLine{log, PrintText{write(command_table())}};
}

CommandFamily benches() {
  std::vector<CommandEntry> all = command_table();
  std::erase_if(all, [](const CommandEntry& one) { return !one.name.starts_with("bench "); });
  return {
      "bench",
      "Measure how fast a model or the transports between ranks are here; decode and collectives "
      "beside what this machine can do in the same run.\n"
      "Each takes -tp N (ranks) and --json. decode and prefill take --tokens N, and collectives "
      "takes --rounds N and --transport LIST. shoal bench decode --help lists all flags of "
      "decode, and so for the others.",
      std::move(all)};
}

/// The table's entry of the command whose help is asked for. A command that is not in the table
/// stays as it is.
void complete_help(CommandLine* line) {
  auto* help = std::get_if<PrintHelp>(&line->command);
  if (help == nullptr || help->commands.size() != 1) return;
  for (CommandEntry& entry : command_table()) {
    if (entry.name == help->commands[0].name) help->commands[0] = std::move(entry);
  }
}

/// choice: what to say of a name that is like none.
Status unknown_command(const std::string& name, const char* choice) {
  std::vector<std::string> known;
  for (const Command& command : kCommands) known.emplace_back(command.name);
  const std::string nearest = nearest_word(name, known);
  return Status::error(Code::kInvalidArgument,
                       cat("unknown command ", shown(name), "; ",
                           nearest.empty() ? choice : cat("did you mean shoal ", nearest, "?")));
}

}  // namespace

std::vector<CommandEntry> command_table() {
  std::vector<CommandEntry> table;
  const std::vector<std::string> ask_for_help = {"--help"};
  for (const Command& command : kCommands) {
    const Result<CommandLine> line = command.parse(ask_for_help, kOneShotLog, {});
    // --help needs no other flag, so it cannot fail.
    CommandEntry entry = std::get<PrintHelp>(line.value().command).commands[0];
    entry.operand = command.operand;
    entry.summary = command.summary;
    entry.examples = examples_of(command.name);
    table.push_back(std::move(entry));
  }
  return table;
}

Result<CommandLine> parse_command_line(Words words, const Environment& environment) {
  if (words.empty()) {
    return Status::error(
        Code::kInvalidArgument,
        "no command; start with shoal serve, generate, client, doctor, shmtest, logits, tokenize, "
        "detokenize, render or bench (shoal --help lists them)");
  }
  const LogOptions log = kOneShotLog;
  std::string name = words[0];
  if (name == "--help" || name == "-h") return CommandLine{log, PrintHelp{command_table()}};
  if (name == "help") return parse_help(words.subspan(1), log);
  if (name == "--version" || name == "-V" || name == "version")
    return parse_version(words.subspan(1), log, environment);
  words = words.subspan(1);
  const char* choice = "see shoal --help for the commands";
  if (name == "bench") {
    choice = "bench needs one of decode, prefill, collectives";
    if (!words.empty() && (words[0] == "--help" || words[0] == "-h")) {
      return CommandLine{log, PrintFamily{benches()}};
    }
    if (words.empty()) return Status::error(Code::kInvalidArgument, choice);
    name += " " + words[0];
    words = words.subspan(1);
  }
  const auto command =
      std::find_if(std::begin(kCommands), std::end(kCommands),
                   [&](const Command& candidate) { return candidate.name == name; });
  if (command == std::end(kCommands)) return unknown_command(name, choice);
  SHOAL_ASSIGN_OR_RETURN(CommandLine line, command->parse(words, log, environment));
  complete_help(&line);
  return line;
}

}  // namespace shoal
