#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <unistd.h>

#include "runtime/base/last_words.h"
#include "runtime/base/log.h"
#include "runtime/supervisor/gpu_facts_main.h"
#include "runtime/supervisor/trial.h"
#include "runtime/worker/worker_main.h"
#include "server/cli/command_io.h"
#include "server/cli/exit_code.h"
#include "server/commands/commands.h"

namespace shoal {
namespace {

/// Opens the standard descriptors that are closed, so that a file opened later does not become
/// stdout by accident. Writing to them fails, as it would on a closed descriptor.
void open_standard_descriptors() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", O_RDONLY) < 0)
      ::_exit(static_cast<int>(ExitCode::kInternal));
  }
}

/// The kernel drops signals for the first process of a container (PID 1), unless it has a handler.
/// With these it ends as any other process would, and a shell sees the same code. The kernel then
/// kills what is left in the container. A command with better handlers of its own replaces them.
void end_on_signals_as_pid_1() {
  if (::getpid() != 1) return;
  struct sigaction action {};
  action.sa_handler = [](int number) { ::_exit(128 + number); };
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    struct sigaction before {};
    ::sigaction(number, nullptr, &before);
    if (before.sa_handler == SIG_DFL) ::sigaction(number, &action, nullptr);
  }
}

/// Before every other constructor of this program, because they allocate memory too.
__attribute__((constructor(101))) void begin() {
  install_last_words();
}

int run_command(const CommandLine& line) {
  struct Run {
    int operator()(const PrintText& print) const {
      return report_failure(at(Stage::kRequest, write_stdout(print.text)));
    }
    int operator()(const ServeFlags& flags) const { return run_serve(flags); }
    int operator()(const GenerateFlags& flags) const { return run_generate(flags); }
    int operator()(const LogitsFlags& flags) const { return run_logits(flags); }
    int operator()(const TokenizeFlags& flags) const { return run_tokenize(flags); }
    int operator()(const DetokenizeFlags& flags) const { return run_detokenize(flags); }
    int operator()(const ClientFlags& flags) const { return run_client(flags); }
    int operator()(const DoctorFlags& flags) const { return run_doctor(flags); }
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
  const Result<CommandLine> line = parse_command_line(words);
  if (!line.ok()) return report_failure(at(Stage::kRequest, line.status()));
  set_log_options(line->log);
  return run_command(*line);
}

}  // namespace
}  // namespace shoal

/// The entry point of the front, and of the processes that it starts from this same executable.
int main(int argc, char** argv) {
  shoal::end_on_signals_as_pid_1();
  shoal::open_standard_descriptors();
  // If a reader is gone, or a file has grown to its limit (ulimit -f), write() returns an error
  // instead. Every caller handles that, and a log that is full must not end a server.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  // A shell's trap '' CHLD reaches us through exec. While SIGCHLD is ignored, the kernel does not
  // keep the exit status of children for us.
  std::signal(SIGCHLD, SIG_DFL);
  const std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);
  if (words.size() >= 2 && words[0] == "worker")
    return shoal::worker_main(std::atoi(words[1].c_str()));
  if (words.size() == 3 && words[0] == "reserve-trial") {
    return shoal::reserve_trial_main(words[1].c_str(), words[2].c_str());
  }
  if (words.size() == 5 && words[0] == "gpu-facts") {
    return shoal::gpu_facts_main(words[1].c_str(), words[2].c_str(), words[3].c_str(),
                                 words[4].c_str());
  }
  return shoal::run_front(words);
}
