#pragma once
#include "server/cli/flag_parser.h"
#include "server/cli/flags.h"

namespace shoal {

/// Registers the flags by which `shoal serve` speaks TLS, under vLLM's names.
void add_tls_flags(FlagParser& parser, TlsFiles* files);
/// INVALID_ARGUMENT: a flag is given without another flag that it needs.
Status check_tls_flags(const TlsFiles& files);

/// Registers the flags by which `shoal client` speaks TLS.
void add_client_tls_flags(FlagParser& parser, ClientTlsFlags* tls);
Status check_client_tls_flags(const ClientTlsFlags& tls);

}  // namespace shoal
