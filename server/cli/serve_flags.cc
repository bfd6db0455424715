#include "server/cli/serve_flags.h"

#include <algorithm>

#include "server/cli/flag_setters.h"
#include "server/cli/shared_flags.h"
#include "server/cli/tls_flags.h"
#include "server/serving/api_keys.h"

namespace shoal {
namespace {

/// A flag that may be given several times, or once with several values between commas.
FlagParser::Setter list(std::vector<std::string>* target) {
  return {[target](std::string_view flag, std::string_view text) -> Status {
            for (size_t begin = 0; begin <= text.size();) {
              const size_t end = std::min(text.find(',', begin), text.size());
              if (end == begin)
                return Status::error(Code::kInvalidArgument, cat(flag, " has an empty entry"));
              target->emplace_back(text.substr(begin, end - begin));
              begin = end + 1;
            }
            return {};
          },
          show(target)};
}

/// A size in bytes within bounds.
FlagParser::Setter size_in(uint64_t* target, uint64_t least, uint64_t most) {
  return {[=](std::string_view flag, std::string_view text) -> Status {
            SHOAL_ASSIGN_OR_RETURN(const uint64_t value, parse_size_flag(flag, text));
            if (value < least || value > most)
              return Status::error(Code::kInvalidArgument, cat(flag, " must be in [", least, ", ",
                                                               most, "] bytes, not ", text));
            *target = value;
            return {};
          },
          show(target)};
}

/// The first flags of their group.
void add_address_flags(FlagParser& parser, ServeFlags* flags) {
  parser.group(kServerGroup);
  parser.add_value("--host", "ADDRESS",
                   "Address to listen on (127.0.0.1); in a container, 0.0.0.0 lets others in",
                   words_as_they_are(&flags->host));
  parser.add_value("--grpc-port", "PORT", "Port of gRPC (50051); 0: a free one",
                   whole(&flags->grpc_port, 0, 65535));
  parser.add_value(
      "--health-port", "PORT",
      "Serve /health, /health/live and /metrics here too, without TLS or a key (none); "
      "0: a free one",
      whole(&flags->health_port, 0, 65535));
}

void add_http_flags(FlagParser& parser, HttpFlags* http) {
  parser.group(kHttpGroup);
  parser.add_value("--port", "PORT",
                   cat("Port of the HTTP front (", kHttpPort,
                       "; a free one with --grpc-port 0); 0: a free one; -1: none"),
                   {whole(&http->port, -1, 65535).set, [http] {
                      // Beside --uds a port would be one address too many.
                      return http->uds.empty() ? flag_text(http->port) : std::nullopt;
                    }});
  parser.add_value("--uds", path("PATH"), "Serve HTTP on this Unix socket instead of a port",
                   words_as_they_are(&http->uds));
  parser.add_value("--allowed-origins", list_of("ORIGINS"),
                   "Origins whose web pages may call, as https://chat.example; * is any (none)",
                   list(&http->allowed_origins));
  parser.add_value("--allowed-hosts", list_of("NAMES"),
                   "Names of this server besides loopback's, if --host is loopback (none)",
                   list(&http->allowed_hosts));
  parser.add_value("--max-http-connections", "N",
                   "Open connections, besides some for probes (1024)",
                   whole(&http->max_connections, 1, 65'536));
  parser.add_value("--max-header-bytes", "SIZE", "Of a request's head (16k)",
                   size_in(&http->max_header_bytes, 1024, 1 << 20));
  parser.add_value("--max-body-bytes", "SIZE", "Of a request's body (16m)",
                   size_in(&http->max_body_bytes, 1024, 16 << 20));
  parser.add_value("--header-timeout", "SECONDS", "For a request's head to arrive (10)",
                   seconds(&http->header_timeout_s));
  parser.add_value("--body-timeout", "SECONDS", "For a request's body to arrive (30)",
                   seconds(&http->body_timeout_s));
  parser.add_value(
      "--sse-keep-alive-interval", "SECONDS",
      "A stream that has nothing to say sends a comment after this long; 0: never (15)",
      seconds_or_0(&http->keep_alive_s));
}

void add_access_flags(FlagParser& parser, AccessFlags* access) {
  parser.group(kAccessGroup);
  ValueForm key("KEY");
  key.several = ValueForm::Several::kRepeated;
  key.is_secret = true;
  parser.add_value("--api-key", key,
                   "A key that clients must bring, for all but health; may be given several times. "
                   "SHOAL_API_KEY or a file hides it from ps",
                   [access](std::string_view flag, std::string_view text) -> Status {
                     SHOAL_RETURN_IF_ERROR(check_api_key(text, flag));
                     access->api_keys.emplace_back(text);
                     return {};
                   });
  parser.add_value("--api-key-file", path("FILE"), "Keys, one on each line",
                   words_as_they_are(&access->api_key_file));
  parser.add_switch("--metrics-without-key", "Serve /metrics to clients without a key",
                    &access->metrics_without_key);
}

void add_service_flags(FlagParser& parser, ServeFlags* flags) {
  parser.group("Service");
  parser.add_value("--ready-file", path("PATH"),
                   "A file that has the READY line in it as long as the server is ready; "
                   "docs/operations.md explains the fields of that line",
                   words_as_they_are(&flags->ready_file));
}

}  // namespace

void add_serve_flags(FlagParser& parser, ServeFlags* flags) {
  add_engine_flags(parser, &flags->engine);
  add_scheduling_flags(parser, &flags->scheduling);
  add_queue_flags(parser, &flags->queue);
  parser.group(kMemoryGroup);
  parser.add_value("--max-request-memory", "SIZE",
                   "Memory of all requests from their first byte to their end (256m)",
                   size_in(&flags->request_memory, uint64_t{32} << 20, uint64_t{1} << 40));
  add_restart_flag(parser, &flags->engine);
  add_address_flags(parser, flags);
  parser.add_value(
      "--served-model-name", list_of("NAMES"),
      "What clients call the model, with commas between several names (its folder, or its name on "
      "the hub)",
      list(&flags->served_model_names));
  parser.add_value("--chat-template", path("FILE"), "The chat template (the model's own)",
                   words_as_they_are(&flags->chat_template));
  parser.add_switch("--trust-message-tokens",
                    "Let text of messages become special tokens, as most servers do",
                    &flags->trust_message_tokens);
  parser.add_value("--seed", "N", "Seed of every request that brings none (a random one each)",
                   seed(&flags->engine.seed));
  parser.add_value("--shutdown-grace", "SECONDS",
                   "After SIGTERM, accept requests for this long while health is red already (0)",
                   seconds_or_0(&flags->shutdown_grace_s));
  parser.add_value("--shutdown-timeout", "SECONDS",
                   "Then let running requests finish for this long (30)",
                   seconds_or_0(&flags->shutdown_timeout_s));
  add_http_flags(parser, &flags->http);
  add_access_flags(parser, &flags->access);
  add_service_flags(parser, flags);
  add_tls_flags(parser, &flags->tls);
}

Status check_serve_flags(ServeFlags* flags) {
  SHOAL_RETURN_IF_ERROR(settle_transport(&flags->engine.transport));
  SHOAL_RETURN_IF_ERROR(check_tls_flags(flags->tls));
  if (flags->host.empty())
    return Status::error(Code::kInvalidArgument,
                         "--host must be an address such as 127.0.0.1 or 0.0.0.0, not empty");
  HttpFlags& http = flags->http;
  if (!http.uds.empty() && http.port)
    return Status::error(Code::kInvalidArgument, "give --uds or --port, not both");
  if (!http.port) http.port = flags->grpc_port == 0 ? 0 : kHttpPort;
  if (*http.port > 0 && *http.port == flags->grpc_port)
    return Status::error(Code::kInvalidArgument,
                         cat("--port and --grpc-port must differ; both are ", *http.port));
  const int health = flags->health_port.value_or(0);
  if (health > 0 && (health == flags->grpc_port || health == *http.port))
    return Status::error(
        Code::kInvalidArgument,
        cat("--health-port must differ from --port and --grpc-port; it is ", health));
  return {};
}

}  // namespace shoal
