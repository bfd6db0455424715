#pragma once
#include <string>

#include "server/serving/generation_request.h"

namespace shoal {

struct ClientOptions {
  std::string server = "127.0.0.1:50051";
  std::string model;  ///< empty: whatever the server serves
  GenerationRequest
      request;        ///< prompt or prompt_ids, and the sampling fields; checked by the server
  bool json = false;  ///< one JSON object at the end in place of streamed text
};

/// `shoal client`: streams the text to stdout as it comes, then one line of figures to stderr.
/// Ctrl-C cancels the request. Returns the exit code: 0; 64 the server refuses the request; 69
/// there is no server, or it is not ready; 70 anything else; 130 after Ctrl-C. Call it before other
/// threads exist: it blocks SIGINT and SIGTERM for a while.
int run_client(const ClientOptions& options);

}  // namespace shoal
