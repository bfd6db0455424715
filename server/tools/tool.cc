#include "server/tools/tool.h"

#include <cstdlib>
#include <unistd.h>

#include "runtime/base/json.h"
#include "runtime/base/last_words.h"
#include "runtime/base/log.h"
#include "runtime/rank/rank.h"
#include "runtime/supervisor/trial.h"
#include "server/cli/command_io.h"
#include "server/cli/doctor_flags.h"
#include "server/cli/examples.h"
#include "server/cli/exit_code.h"
#include "server/cli/help_text.h"
#include "server/cli/process_start.h"
#include "server/cli/shmtest_flags.h"
#include "server/commands/build_commit.h"
#include "server/commands/commands.h"

namespace shoal {
namespace {

/// Before every other constructor of these programs, because they allocate memory too.
__attribute__((constructor(101))) void begin() {
  install_last_words();
  refuse_small_stack();
}

/// A command as its own program knows it.
struct Tool {
  const char* name;
  Operand operand;
  Result<CommandLine> (*parse)(Words, LogOptions, const Environment&);
  int (*run)(const CommandLine& line);
};

/// The work of ranks that only prove their transport.
class NoWork final : public RankWork {
 public:
  Result<std::string> begin(RankContext&) override { return none(); }
  Result<std::string> step(uint64_t, std::string_view) override { return none(); }

 private:
  static Status none() {
    return Status::error(Code::kInternal, "the ranks of shoal-doctor have no model");
  }
};

std::string version_text(const char* name, const VersionFlags& flags) {
  const BuildCommit& commit = build_commit();
  if (flags.json) {
    const Json about = {{"version", SHOAL_VERSION},
                        {"commit", commit.id},
                        {"commit_date", commit.date},
                        {"dirty", commit.dirty}};
    return json_text(about) + "\n";
  }
  return cat(as_typed(name), " ", SHOAL_VERSION, "\ncommit: ", commit.id,
             *commit.date == 0 ? "" : cat(" (", commit.date, ")"),
             commit.dirty ? ", with uncommitted changes" : "", "\n");
}

Result<CommandLine> parse(const Tool& tool, Words words) {
  LogOptions log;
  log.level = LogLevel::kWarning;  // as in shoal, for every command that ends by itself
  const bool version = !words.empty() && (words[0] == "--version" || words[0] == "-V");
  if (!version) return tool.parse(words, log, {});
  FlagParser parser(tool.name, "Say what this program was built from.");
  VersionFlags flags;
  parser.add_switch("--json", "Print one JSON object", &flags.json);
  return finish(parser, words.subspan(1), log, flags);
}

int print(const std::string& text) {
  return report_failure(at(Stage::kRequest, write_stdout(text)));
}

int run(const Tool& tool, Words words) {
  be_one_command();
  take_aborts_for_shortages();
  install_fault_words();
  const Result<CommandLine> line = parse(tool, words);
  if (!line.ok()) return report_failure(at(Stage::kRequest, line.status()));
  set_log_options(line->log);
  if (const auto* help = std::get_if<PrintHelp>(&line->command)) {
    CommandEntry entry = help->commands[0];
    entry.operand = tool.operand;
    entry.examples = examples_of(tool.name);
    return print(help_text(entry, help_style_of(STDOUT_FILENO)));
  }
  if (const auto* version = std::get_if<VersionFlags>(&line->command))
    return print(version_text(tool.name, *version));
  return tool.run(*line);
}

int run_static_doctor(const CommandLine& line) {
  auto flags = std::get<DoctorFlags>(line.command);
  DeviceFlags& device = flags.serve.engine.transport.device;
  device.automatic = false;
  flags.says_whose_ranks = true;
  if (device.kind != DeviceKind::kCuda) return run_doctor(flags);
  return report_failure(at(
      Stage::kRequest, Status::error(Code::kInvalidArgument,
                                     "--device cuda: this program is linked statically and can "
                                     "load neither the CUDA module nor NCCL: use shoal doctor")));
}

std::vector<std::string> begin_with(int argc, char** argv) {
  begin_process(argv);
  return {argv + (argc > 0 ? 1 : 0), argv + argc};
}

}  // namespace

int shmtest_tool(int argc, char** argv) {
  const Tool tool = {"shmtest", Operand::kCommand, parse_shmtest, [](const CommandLine& line) {
                       return run_shmtest(std::get<ShmtestFlags>(line.command));
                     }};
  return run(tool, begin_with(argc, argv));
}

int doctor_tool(int argc, char** argv) {
  const std::vector<std::string> words = begin_with(argc, argv);
  if (words.size() >= 2 && words[0] == "worker") {
    NoWork work;
    return Rank(std::atoi(words[1].c_str()), work).run();
  }
  if (words.size() == 3 && words[0] == "reserve-trial")
    return reserve_trial_main(words[1].c_str(), words[2].c_str());
  return run({"doctor", Operand::kNone, parse_static_doctor, run_static_doctor}, words);
}

}  // namespace shoal
