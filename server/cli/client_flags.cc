#include "server/cli/client_flags.h"

#include "server/cli/chat_flags.h"
#include "server/cli/flag_setters.h"
#include "server/cli/flags.h"
#include "server/cli/shared_flags.h"
#include "server/cli/tls_flags.h"

namespace shoal {

void add_client_flags(FlagParser& parser, ClientFlags* flags) {
  parser.group(kServerGroup);
  parser.add_value(
      "--server", "HOST:PORT",
      "The server's gRPC port (127.0.0.1:50051), or with --chat and --messages its HTTP port "
      "(127.0.0.1:8000); https://HOST:PORT is encrypted",
      words_as_they_are(&flags->server));
  parser.add_value("--wait", "SECONDS",
                   "Wait this long for a server that does not listen yet, or is not ready (0)",
                   seconds_or_0(&flags->wait_s));
  parser.add_value("--timeout", "SECONDS",
                   "End an answer that is not whole after this long; 0: however long it takes (0)",
                   seconds_or_0(&flags->timeout_s));
  parser.add_value("--model", "NAME", "Its model's name (whatever it serves)",
                   words_as_they_are(&flags->model));
  parser.add_value("--api-key", "KEY", "A key of the server (that of SHOAL_API_KEY)",
                   words_as_they_are(&flags->api_key));
  parser.add_value("--api-key-file", path("FILE"), "A file whose first key is sent",
                   words_as_they_are(&flags->api_key_file));
  add_client_tls_flags(parser, &flags->tls);
  parser.group("Input and output");
  add_prompt_flags(parser, &flags->request);
  add_conversation_flag(parser, &flags->chat);
  parser.add_value("--messages", path("FILE"),
                   "A JSON list of chat messages to answer, or with --chat to begin with; - is "
                   "stdin",
                   words_as_they_are(&flags->messages));
  parser.add_value("--chat-template-kwargs", "JSON",
                   "An object with more variables for the server's chat template",
                   words_as_they_are(&flags->kwargs));
  parser.add_switch("--json", "Print one JSON object instead of the text", &flags->json);
  add_sampling_flags(parser, &flags->request);
  parser.explain_stray_words(did_you_mean("--prompt"));
  parser.add_value("--seed", "N", "Seed (that of serve --seed, or else a random one each time)",
                   seed(&flags->request.seed));
}

Status check_client_flags(ClientFlags* flags) {
  const bool chats = flags->chat || flags->messages;
  if (flags->server.empty()) flags->server = cat("127.0.0.1:", chats ? kHttpPort : kGrpcPort);
  SHOAL_RETURN_IF_ERROR(check_client_tls_flags(flags->tls));
  if (flags->kwargs && !chats)
    return Status::error(Code::kInvalidArgument,
                         "--chat-template-kwargs needs --messages or --chat");
  if (flags->chat) SHOAL_RETURN_IF_ERROR(check_conversation(flags->json, flags->messages));
  return at_most_one("client", {{"--prompt", flags->request.prompt.has_value()},
                                {"--prompt-ids", flags->request.prompt_ids.has_value()},
                                {flags->chat ? "--chat" : "--messages", chats}});
}

}  // namespace shoal
