#pragma once
#include "server/cli/flags.h"

namespace shoal {

// One function per command: does it, reports failures on stderr, and returns main's exit code.
// Called from the main thread, which spawns the workers and outlives them.

int run_serve(const ServeFlags& flags);
int run_generate(const GenerateFlags& flags);
int run_logits(const LogitsFlags& flags);
int run_tokenize(const TokenizeFlags& flags);
int run_detokenize(const DetokenizeFlags& flags);
int run_bench_model(const BenchModelFlags& flags);
int run_doctor(const DoctorFlags& flags);
int run_bench_collectives(const BenchCollectivesFlags& flags);
int run_shmtest(const ShmtestFlags& flags);

}  // namespace shoal
