#include "server/commands/client_channel.h"

#include <grpcpp/grpcpp.h>
#include <string>
#include <utility>

#include "runtime/base/json.h"
#include "server/commands/http_call.h"

namespace shoal {

namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 20;
constexpr std::string_view kPlain = "http://";

/// The text of a file that a flag names; empty without the flag.
Result<std::string> text_of(const char* flag, const std::string& path) {
  if (path.empty()) return std::string();
  Result<std::string> text = read_file(path, kMaxFileBytes);
  if (text.ok()) return text;
  return text.status().because_of(Code::kInvalidArgument, cat(flag, ' ', path, " cannot be read"));
}

Result<std::shared_ptr<grpc::ChannelCredentials>> encrypted(const ClientTlsFlags& tls) {
  grpc::SslCredentialsOptions options;
  SHOAL_ASSIGN_OR_RETURN(options.pem_root_certs, text_of("--ssl-ca-certs", tls.ca_certs));
  SHOAL_ASSIGN_OR_RETURN(options.pem_cert_chain, text_of("--ssl-certfile", tls.certificate));
  SHOAL_ASSIGN_OR_RETURN(options.pem_private_key, text_of("--ssl-keyfile", tls.key));
  if (options.pem_private_key.empty()) options.pem_private_key = options.pem_cert_chain;
  return grpc::SslCredentials(options);
}

}  // namespace

Result<std::shared_ptr<grpc::Channel>> open_client_channel(const ClientFlags& flags) {
  SHOAL_ASSIGN_OR_RETURN(const HttpAddress server,
                         parse_http_address(flags.server, ServerPort::kGrpc));
  const bool tls = server.encrypted || flags.tls.any();
  if (flags.tls.any() && flags.server.starts_with(kPlain))
    return Status::error(Code::kInvalidArgument,
                         "--server says http://, and --ssl-* say https://; leave one out");
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (tls) {
    SHOAL_ASSIGN_OR_RETURN(credentials, encrypted(flags.tls));
  }
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  // Ignore proxy settings. A web proxy does not lead to an inference server, and http_proxy would
  // even break calls to 127.0.0.1.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // A client that waits for its server looks again soon.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  return grpc::CreateCustomChannel(shown_address(server), credentials, arguments);
}

}  // namespace shoal
