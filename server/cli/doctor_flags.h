#pragma once
#include "server/cli/configuration.h"
#include "server/cli/parse_command.h"

namespace shoal {

/// Reads the words after `doctor`, for a program that knows no models. Error: INVALID_ARGUMENT.
Result<CommandLine> parse_static_doctor(Words words, LogOptions log, const Environment&);

// What this and the doctor that knows models are made of.

/// How many ranks there are if neither MODEL nor a flag says so.
inline constexpr int kDoctorRanks = 2;
/// How --nccl-version ends, for the description of the command.
inline constexpr const char* kPlanExit =
    "with --nccl-version 0 if nccl-shm fits, else 1, also after NO: that was only computed, and no "
    "start has failed.";
/// Adds the flags about what is printed.
void add_report_flags(FlagParser& parser, DoctorFlags* flags);
/// Adds all flags that count without a MODEL.
void add_place_flags(FlagParser& parser, DoctorFlags* flags, LogOptions* log);
/// Do the flags about what is printed go together? Error: INVALID_ARGUMENT.
Status check_report_flags(const DoctorFlags& flags);
/// Checks flags of a doctor without MODEL for contradictions. settings: the flags that were given
/// and their values. Error: INVALID_ARGUMENT.
Status check_place_flags(const std::vector<Setting>& settings, DoctorFlags* flags);
/// The line that says how many ranks there are by default; empty: the user has said how many.
std::string default_ranks_line(const DoctorFlags& flags);

/// "shoal doctor --clean-stale", as this program is called.
std::string clean_stale_command();

}  // namespace shoal
