#include <charconv>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <fcntl.h>
#include <unistd.h>

#include "runtime/base/log.h"
#include "runtime/supervisor/gpu_probe.h"
#include "runtime/supervisor/trial.h"
#include "runtime/worker/worker_main.h"
#include "server/cli/command_io.h"
#include "server/cli/exit_code.h"
#include "server/client_command.h"
#include "server/commands/commands.h"

namespace shoal {
namespace {

/// A file opened later must not become stdout by accident. Writing to these gives an error, as to a
/// closed one.
void open_standard_descriptors() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", O_RDONLY) < 0)
      ::_exit(static_cast<int>(ExitCode::kInternal));
  }
}

/// The last line of an exception that nobody expected (memory refused, above all): a reason and an
/// exit code, no core.
[[noreturn]] void on_terminate() {
  std::string what = "unexpected end";
  if (const std::exception_ptr current = std::current_exception()) {
    try {
      std::rethrow_exception(current);
    } catch (const std::bad_alloc&) {
      what = "memory was refused";
    } catch (const std::exception& error) {
      what = error.what();
    } catch (...) {
    }
  }
  ::_exit(report_failure(Status::error(Code::kInternal, what), Stage::kRun));
}

int run_command(const CommandLine& line) {
  struct Run {
    int operator()(const PrintText& print) const {
      return report_failure(write_stdout(print.text), Stage::kRequest);
    }
    int operator()(const ServeFlags& flags) const { return run_serve(flags); }
    int operator()(const GenerateFlags& flags) const { return run_generate(flags); }
    int operator()(const LogitsFlags& flags) const { return run_logits(flags); }
    int operator()(const TokenizeFlags& flags) const { return run_tokenize(flags); }
    int operator()(const DetokenizeFlags& flags) const { return run_detokenize(flags); }
    int operator()(const ClientFlags& flags) const { return run_client(flags.options); }
    int operator()(const DoctorFlags& flags) const { return run_doctor(flags); }
    int operator()(const BenchModelFlags& flags) const { return run_bench_model(flags); }
    int operator()(const BenchCollectivesFlags& flags) const {
      return run_bench_collectives(flags);
    }
    int operator()(const ShmtestFlags& flags) const { return run_shmtest(flags); }
  };
  return std::visit(Run{}, line.command);
}

int run_front(const std::vector<std::string>& words) {
  const Result<CommandLine> line = parse_command_line(words);
  if (!line.ok()) return report_failure(line.status(), Stage::kRequest);
  set_log_options(line->log);
  return run_command(*line);
}

}  // namespace
}  // namespace shoal

/// The front, or one of the processes that it starts from this same file.
int main(int argc, char** argv) {
  shoal::open_standard_descriptors();
  std::signal(SIGPIPE, SIG_IGN);  // a reader that is gone is an error of write()
  // A shell's trap '' CHLD reaches us through exec, and where it is ignored the kernel keeps
  // nobody's end for us.
  std::signal(SIGCHLD, SIG_DFL);
  std::set_terminate(shoal::on_terminate);
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
