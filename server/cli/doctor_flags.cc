#include "server/cli/doctor_flags.h"

#include <algorithm>

#include "runtime/base/text_values.h"
#include "runtime/transport/needs/nccl_budget.h"
#include "server/cli/flag_setters.h"
#include "server/cli/shared_flags.h"

namespace shoal {
namespace {

/// The sizes of NCCL's segments are known from this version on.
constexpr int kFirstKnownNccl = 21200;

}  // namespace

Status check_report_flags(const DoctorFlags& flags) {
  if (flags.needs && flags.nccl_version)
    return Status::error(Code::kInvalidArgument, "doctor takes one of --needs, --nccl-version");
  if (flags.communicators > 1 && !flags.nccl_version) {
    return Status::error(Code::kInvalidArgument,
                         "--communicators counts those of an engine over NCCL: give --nccl-version "
                         "too");
  }
  return {};
}

Status check_place_flags(const std::vector<Setting>& settings, DoctorFlags* flags) {
  constexpr int kMost = 16;
  EngineFlags& engine = flags->serve.engine;
  flags->ranks_by_default = std::none_of(settings.begin(), settings.end(), [](const Setting& one) {
    return one.flag == "--tensor-parallel-size";
  });
  if (flags->ranks_by_default) engine.tensor_parallel_size = kDoctorRanks;
  if (engine.tensor_parallel_size > kMost) {
    return Status::error(Code::kInvalidArgument,
                         cat("--tensor-parallel-size must be in [1, ", kMost, "], not ",
                             engine.tensor_parallel_size));
  }
  SHOAL_RETURN_IF_ERROR(check_report_flags(*flags));
  if (engine.transport.clean_stale && (flags->needs || flags->nccl_version)) {
    return Status::error(Code::kInvalidArgument,
                         "--clean-stale does nothing with --needs or --nccl-version, which only "
                         "compute; leave one out");
  }
  return settle_transport(&engine.transport);
}

std::string default_ranks_line(const DoctorFlags& flags) {
  if (!flags.ranks_by_default) return "";
  // NCCL's bytes may be for another engine, and so may shoal-doctor, which comes without serve.
  const bool serves = !flags.nccl_version && !flags.says_whose_ranks;
  return cat(kDoctorRanks, " ranks unless -tp says otherwise",
             serves ? cat(" (serve starts ", EngineFlags().tensor_parallel_size, ")") : "", "\n");
}

std::string clean_stale_command() {
  return cat(as_typed("doctor"), " --clean-stale");
}

void add_report_flags(FlagParser& parser, DoctorFlags* flags) {
  parser.group("Output");
  parser.add_switch("--json", "Print the report as one JSON document", &flags->json);
  parser.add_switch("--needs", "Only print what each transport, and NCCL, needs for 2 to 16 ranks",
                    &flags->needs);
  parser.add_value(
      "--nccl-version", "V",
      "Only print what NCCL V (2.27.7, or 2.27) would need here for -tp ranks, Shoal's or another "
      "engine's; needs no GPU",
      [flags](std::string_view flag, std::string_view text) -> Status {
        const Result<NcclVersion> version = parse_nccl_version(text);
        if (!version.ok())
          return Status::error(Code::kInvalidArgument, cat(flag, ": ", version.status().message()));
        flags->nccl_version = *version;
        if (version->code() >= kFirstKnownNccl) return {};
        return Status::error(Code::kInvalidArgument,
                             cat(flag,
                                 " must be 2.12 or later, because what earlier versions need "
                                 "is not known; not ",
                                 shown(text)));
      });
  parser.add_value("--communicators", "N",
                   "With --nccl-version: how many communicators of -tp ranks exist at once, share "
                   "nothing, and have to fit together (1)",
                   whole(&flags->communicators, 1, 1024));
}

void add_place_flags(FlagParser& parser, DoctorFlags* flags, LogOptions* log) {
  EngineFlags& engine = flags->serve.engine;
  engine.tensor_parallel_size = kDoctorRanks;
  parser.group(kTransportGroup);
  add_ranks_flag(parser, &engine.tensor_parallel_size, cat("1 to 16 (", kDoctorRanks, ")"));
  add_transport_flags(parser, &engine.transport);
  add_device_flags(parser, &engine.transport.device);
  add_timeout_flags(parser, &engine.transport);
  add_report_flags(parser, flags);
  add_log_flags(parser, log);
}

Result<CommandLine> parse_static_doctor(Words words, LogOptions log, const Environment&) {
  DoctorFlags flags;
  FlagParser parser(
      "doctor",
      cat("Say which transport ranks would use here, why not a better one, and what to do about it. Needs no "
          "model. Exit: 0 the first of the order works or another one that is as good, 1 a slower one "
          "(0 if --min-transport allows it), 69 none; ",
          kPlanExit));
  add_place_flags(parser, &flags, &log);
  parser.explain_stray_words([](const std::string&) {
    const std::string typed = as_typed("doctor");
    return cat(typed,
               " takes no MODEL: whether shoal serve would start says shoal doctor MODEL, "
               "which is a part of the whole program; see ",
               typed, " --help");
  });
  return finish(parser, words, log, flags,
                [&] { return check_place_flags(parser.settings(), &flags); });
}

}  // namespace shoal
