#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/cli/flag_parser.h"
#include "server/cli/flags.h"

namespace shoal {

// Groups of flags that several commands share.

/// Flags of which one is to be given, and whether they are.
using Alternatives = std::vector<std::pair<const char*, bool>>;
/// Checks that exactly one of the alternatives was given. INVALID_ARGUMENT, naming them.
Status exactly_one(const char* command, const Alternatives& alternatives);
/// The same, but none may be given too.
Status at_most_one(const char* command, const Alternatives& alternatives);

void add_log_flags(FlagParser& parser, LogOptions* log);
/// The options of the log that these words and variables ask for, whatever else is wrong with them,
/// so that an error about them looks as its reader wants it.
LogOptions wished_log_options(std::span<const std::string> words, const Environment& environment);

/// The hint for a word too many: did you mean FLAG "WORD"?
FlagParser::StrayHint did_you_mean(const char* flag);

/// Headings that several functions share.
inline constexpr const char* kModelGroup = "Model";
inline constexpr const char* kServerGroup = "Server";
inline constexpr const char* kHttpGroup = "HTTP";
inline constexpr const char* kAccessGroup = "Access (HTTP and gRPC)";
inline constexpr const char* kTransportGroup = "Parallelism and transports";
inline constexpr const char* kMemoryGroup = "Memory";
inline constexpr const char* kSchedulingGroup = "Scheduling and admission";
inline constexpr const char* kFaultGroup = "Faults";

/// Adds -tp. `bounds` gives its bounds and default as text for --help, such as "up to 16 (2)".
void add_ranks_flag(FlagParser& parser, int* tensor_parallel_size, std::string_view bounds);
/// Adds --transport. `order` is its default. Because it names every rung, --help also shows it as
/// the list of rungs.
void add_order_flag(FlagParser& parser, std::optional<std::string>* transport,
                    const std::string& order);
void add_device_flags(FlagParser& parser, DeviceFlags* device);
void add_transport_flags(FlagParser& parser, TransportFlags* transport);
/// Adds --startup-timeout and --step-timeout.
void add_timeout_flags(FlagParser& parser, TransportFlags* transport);
void add_engine_flags(FlagParser& parser, EngineFlags* engine);
/// Adds --decode-stretch, --max-step-ms and --scheduling-policy. The values that they have now are
/// shown as their defaults.
void add_scheduling_flags(FlagParser& parser, SchedulingFlags* scheduling);
void add_queue_flags(FlagParser& parser, QueueFlags* queue);
void add_restart_flag(FlagParser& parser, EngineFlags* engine);
void add_sampling_flags(FlagParser& parser, GenerationRequest* request);
void add_prompt_flags(FlagParser& parser, GenerationRequest* request);

/// Call it once all flags have been read: it decides the order of rungs for the device, and checks
/// what concerns several transport flags at once. Error: INVALID_ARGUMENT.
Status settle_transport(TransportFlags* flags);

}  // namespace shoal
