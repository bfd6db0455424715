#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "server/cli/flag_parser.h"
#include "server/cli/flags.h"

namespace shoal {

// Groups of flags that several commands have.

void add_log_flags(FlagParser& parser, LogOptions* log);
/// -tp, whose bounds and default are given in words for --help, such as "up to 16 (2)".
void add_ranks_flag(FlagParser& parser, int* tensor_parallel_size, std::string_view bounds);
/// --transport; `order`: its default, which for --help is also the list of the rungs that there
/// are.
void add_order_flag(FlagParser& parser, std::optional<std::string>* transport,
                    const std::string& order);
void add_device_flags(FlagParser& parser, DeviceFlags* device);
void add_transport_flags(FlagParser& parser, TransportFlags* transport);
void add_engine_flags(FlagParser& parser, EngineFlags* engine);
void add_restart_flag(FlagParser& parser, EngineFlags* engine);
void add_sampling_flags(FlagParser& parser, GenerationRequest* request);
void add_prompt_flags(FlagParser& parser, GenerationRequest* request);

/// Once all are read: the order of rungs for the device, and what spans several transport flags.
/// INVALID_ARGUMENT.
Status settle_transport(TransportFlags* flags);

}  // namespace shoal
