#pragma once
#include "server/flag_parser.h"
#include "server/flags.h"

namespace shoal {

// Groups of flags that several commands have.

/// What an engine's flags are where none is given.
EngineFlags default_engine();

void add_log_flags(FlagParser& parser, LogOptions* log);
void add_group_flags(FlagParser& parser, int* tensor_parallel_size, std::vector<std::string>* transport);
void add_transport_flags(FlagParser& parser, TransportFlags* transport);
void add_engine_flags(FlagParser& parser, EngineFlags* engine);
void add_restart_flag(FlagParser& parser, EngineFlags* engine);
void add_sampling_flags(FlagParser& parser, GenerationRequest* request);
void add_prompt_flags(FlagParser& parser, GenerationRequest* request);

/// What spans several transport flags. INVALID_ARGUMENT.
Status check_transport(const TransportFlags& flags);

}  // namespace shoal
