#include <cstdlib>

#include "runtime/base/last_words.h"
#include "runtime/base/log.h"
#include "runtime/supervisor/gpu_facts_main.h"
#include "runtime/supervisor/trial.h"
#include "runtime/worker/worker_main.h"
#include "server/cli/command_io.h"
#include "server/cli/exit_code.h"
#include "server/cli/help_text.h"
#include "server/cli/process_start.h"
#include "server/cli/shared_flags.h"
#include "server/commands/commands.h"

namespace shoal {
namespace {

/// Before every other constructor of this program, because they allocate memory too.
__attribute__((constructor(101))) void begin() {
  install_last_words();
  refuse_small_stack();
}

int run_command(const CommandLine& line) {
  struct Run {
    int operator()(const PrintText& print) const {
      return report_failure(at(Stage::kRequest, write_stdout(print.text)));
    }
    int operator()(const PrintHelp& help) const {
      const HelpStyle style = help_style_of(STDOUT_FILENO);
      const std::string text = help.commands.size() == 1 ? help_text(help.commands[0], style)
                                                         : help_text(help.commands, style);
      return report_failure(at(Stage::kRequest, write_stdout(text)));
    }
    int operator()(const PrintFamily& help) const {
      const std::string text = help_text(help.family, help_style_of(STDOUT_FILENO));
      return report_failure(at(Stage::kRequest, write_stdout(text)));
    }
    int operator()(const ServeFlags& flags) const { return run_serve(flags, log_program); }
    int operator()(const GenerateFlags& flags) const { return run_generate(flags); }
    int operator()(const LogitsFlags& flags) const { return run_logits(flags); }
    int operator()(const TokenizeFlags& flags) const { return run_tokenize(flags); }
    int operator()(const DetokenizeFlags& flags) const { return run_detokenize(flags); }
    int operator()(const RenderFlags& flags) const { return run_render(flags); }
    int operator()(const ClientFlags& flags) const { return run_client(flags); }
    int operator()(const DoctorFlags& flags) const { return run_doctor(flags, rehearse_serve); }
    int operator()(const BenchModelFlags& flags) const { return run_bench_model(flags); }
    int operator()(const BenchCollectivesFlags& flags) const {
      return run_bench_collectives(flags);
    }
    int operator()(const ShmtestFlags& flags) const { return run_shmtest(flags); }
    int operator()(const VersionFlags& flags) const { return run_version(flags); }
  };
  return std::visit(Run{}, line.command);
}

int run_front(const std::vector<std::string>& words) {
  take_aborts_for_shortages();
  install_fault_words();
  const Environment environment = shoal_environment();
  const Result<CommandLine> line = parse_command_line(words, environment);
  if (!line.ok()) set_log_options(wished_log_options(words, environment));
  if (!line.ok()) return report_failure(at(Stage::kRequest, line.status()));
  set_log_options(line->log);
  return run_command(*line);
}

}  // namespace
}  // namespace shoal

/// The entry point of the front, and of the processes that it starts from this same executable.
int main(int argc, char** argv) {
  shoal::begin_process(argv);
  const std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);
  if (words.size() >= 2 && words[0] == "worker")
    return shoal::worker_main(std::atoi(words[1].c_str()));
  if (words.size() == 3 && words[0] == "reserve-trial") {
    return shoal::reserve_trial_main(words[1].c_str(), words[2].c_str());
  }
  if (words.size() >= 5 && words[0] == "gpu-facts") {
    return shoal::gpu_facts_main(words[1].c_str(), words[2].c_str(), words[3].c_str(),
                                 words[4].c_str(), {words.begin() + 5, words.end()});
  }
  return shoal::run_front(words);
}
