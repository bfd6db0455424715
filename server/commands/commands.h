#pragma once
#include <string>

#include "runtime/transport/report.h"
#include "server/cli/exit_code.h"
#include "server/cli/flags.h"

namespace shoal {

// One function per command. Each runs the command, reports failures on stderr, and returns main's
// exit code. They are called from the main thread, which spawns the workers and outlives them.

/// Logs which program this is, and the model that it serves.
using Introduction = void (*)(const std::string& model);
/// The Introduction of the whole program. It alone knows the commit.
void log_program(const std::string& model);
int run_serve(const ServeFlags& flags, Introduction introduce);
int run_generate(const GenerateFlags& flags);
int run_logits(const LogitsFlags& flags);
int run_tokenize(const TokenizeFlags& flags);
int run_detokenize(const DetokenizeFlags& flags);
int run_render(const RenderFlags& flags);
int run_bench_model(const BenchModelFlags& flags);
/// Streams the text to stdout as it arrives, then writes one line of figures to stderr. Ctrl-C
/// cancels the request. Returns 0; 64 if the server refuses the request; 69 if there is no server
/// or it is not ready; 130 after Ctrl-C; otherwise 70. A conversation (--chat) goes on after any of
/// these; without a terminal it returns what the last message that failed would have. Call it
/// before other threads exist, because it blocks SIGINT and SIGTERM while it runs.
int run_client(const ClientFlags& flags);
/// Starts a server up to a proven transport, and says in the report how that went. memory: gets the
/// line about what the ranks would take, if it comes to that.
using Rehearsal = Ending (*)(ServeFlags flags, TransportReport* report, std::string* memory);
/// rehearse: how to start what serves MODEL; null: the flags name no MODEL.
int run_doctor(const DoctorFlags& flags, Rehearsal rehearse = nullptr);
/// The Rehearsal of run_serve: all that serve has, on free ports, and ranks that load no weights.
Ending rehearse_serve(ServeFlags flags, TransportReport* report, std::string* memory);
int run_bench_collectives(const BenchCollectivesFlags& flags);
int run_shmtest(const ShmtestFlags& flags);
int run_version(const VersionFlags& flags);

}  // namespace shoal
