#include "server/cli/tls_flags.h"

#include "server/cli/flag_setters.h"

namespace shoal {

namespace {

/// Words, and the numbers of Python's ssl module for them, which vLLM takes.
FlagParser::Setter certificate_requirement(ClientCertificates* target) {
  using enum ClientCertificates;
  return word_for(target, {{"none", kNone},
                           {"optional", kOptional},
                           {"required", kRequired},
                           {"0", kNone},
                           {"1", kOptional},
                           {"2", kRequired}});
}

Status needs(const char* flag, const char* other) {
  return Status::error(Code::kInvalidArgument, cat(flag, " needs ", other, " too"));
}

}  // namespace

void add_tls_flags(FlagParser& parser, TlsFiles* files) {
  parser.group("TLS (HTTP and gRPC)");
  parser.add_value(
      "--ssl-certfile", path("FILE"),
      "PEM: the server's certificate, then its issuers; both ports then speak TLS alone",
      words_as_they_are(&files->certificate));
  parser.add_value("--ssl-keyfile", path("FILE"),
                   "PEM: the certificate's private key (in the same file)",
                   words_as_they_are(&files->key));
  parser.add_value("--ssl-ca-certs", path("FILE"), "PEM: who may issue certificates of clients",
                   words_as_they_are(&files->client_ca));
  parser.add_value("--ssl-cert-reqs",
                   one_of({"none", "optional", "required", "0", "1", "2"}, "MODE"),
                   "Ask clients for certificates: none or 0, optional or 1, required or 2 (none)",
                   certificate_requirement(&files->clients));
}

Status check_tls_flags(const TlsFiles& files) {
  const bool asks = files.clients != ClientCertificates::kNone;
  if (!files.any() && !files.key.empty()) return needs("--ssl-keyfile", "--ssl-certfile");
  if (!files.any() && !files.client_ca.empty()) return needs("--ssl-ca-certs", "--ssl-certfile");
  if (!files.any() && asks) return needs("--ssl-cert-reqs", "--ssl-certfile");
  if (asks && files.client_ca.empty())
    return Status::error(Code::kInvalidArgument,
                         "--ssl-cert-reqs needs --ssl-ca-certs, which says whose certificates are "
                         "taken");
  if (!asks && !files.client_ca.empty())
    return Status::error(Code::kInvalidArgument,
                         "--ssl-ca-certs checks nobody unless --ssl-cert-reqs is 1 (optional) or 2 "
                         "(required)");
  return {};
}

void add_client_tls_flags(FlagParser& parser, ClientTlsFlags* tls) {
  parser.add_value("--ssl-ca-certs", path("FILE"),
                   "PEM: who may have issued the server's certificate; implies https:// (this "
                   "machine's list)",
                   words_as_they_are(&tls->ca_certs));
  parser.add_value("--ssl-certfile", path("FILE"),
                   "PEM: a certificate of your own, if the server asks for one",
                   words_as_they_are(&tls->certificate));
  parser.add_value("--ssl-keyfile", path("FILE"), "PEM: its private key (in the same file)",
                   words_as_they_are(&tls->key));
}

Status check_client_tls_flags(const ClientTlsFlags& tls) {
  if (!tls.key.empty() && tls.certificate.empty()) return needs("--ssl-keyfile", "--ssl-certfile");
  return {};
}

}  // namespace shoal
