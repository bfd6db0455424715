#pragma once
#include <optional>
#include <string>

#include "server/cli/flag_parser.h"
#include "server/serving/generation_request.h"

namespace shoal {

/// How a client speaks TLS. All are paths; empty: as help says.
struct ClientTlsFlags {
  std::string ca_certs, certificate, key;
  bool any() const { return !ca_certs.empty() || !certificate.empty() || !key.empty(); }
};

struct ClientFlags {
  std::string server;    ///< of gRPC, or for chats of HTTP; check_client_flags() gives the default
  double wait_s = 0;     ///< how long to wait for a server that is not ready
  double timeout_s = 0;  ///< in which an answer must be whole; 0: any time
  std::string model;     ///< empty: the model that the server serves
  std::string api_key;
  std::string api_key_file;  ///< its first key is sent; empty: none
  ClientTlsFlags tls;
  GenerationRequest
      request;        ///< prompt or prompt_ids, and the sampling fields; the server checks them
  bool json = false;  ///< print one JSON object at the end instead of streaming the text
  bool chat = false;  ///< a conversation on stdin
  std::optional<std::string> messages = {};  ///< a file with a JSON list of messages
  std::optional<std::string> kwargs = {};    ///< for the chat template: a JSON object
};

void add_client_flags(FlagParser& parser, ClientFlags* flags);

/// Decides the default of --server. INVALID_ARGUMENT: none or several of the prompts were given, or
/// flags that do not go together.
Status check_client_flags(ClientFlags* flags);

}  // namespace shoal
