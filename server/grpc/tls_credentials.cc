#include "server/grpc/tls_credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <string>
#include <utility>

namespace shoal {

namespace {

grpc_ssl_client_certificate_request_type request_type(ClientCertificates clients) {
  switch (clients) {
    case ClientCertificates::kOptional:
      return GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY;
    case ClientCertificates::kRequired:
      return GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY;
    default:
      return GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
  }
}

/// gRPC's C++ interface can only watch files on its own, and it would take a certificate without
/// its key. So the interface of its C core asks us for the current pair at each handshake.
class TlsCredentials final : public grpc::ServerCredentials {
 public:
  explicit TlsCredentials(std::shared_ptr<const TlsIdentity> identity)
      : identity_(std::move(identity)),
        credentials_(grpc_ssl_server_credentials_create_with_options(
            grpc_ssl_server_credentials_create_options_using_config_fetcher(
                request_type(identity_->current()->clients), fetch, this))) {}
  ~TlsCredentials() override { grpc_server_credentials_release(credentials_); }

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  static grpc_ssl_certificate_config_reload_status fetch(
      void* self, grpc_ssl_server_certificate_config** config) {
    return static_cast<TlsCredentials*>(self)->fetch_into(config);
  }

  grpc_ssl_certificate_config_reload_status fetch_into(
      grpc_ssl_server_certificate_config** config) {
    std::shared_ptr<const TlsMaterial> current = identity_->current();
    if (current == given_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair{current->key.c_str(), current->certificate.c_str()};
    // gRPC aborts without issuers, also if it does not ask clients for certificates. Then any will
    // do.
    const std::string& issuers =
        current->client_ca.empty() ? current->certificate : current->client_ca;
    *config = grpc_ssl_server_certificate_config_create(issuers.c_str(), &pair, 1);
    given_ = std::move(current);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  const std::shared_ptr<const TlsIdentity> identity_;
  std::shared_ptr<const TlsMaterial> given_;  // what gRPC has now
  grpc_server_credentials* const credentials_;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> make_tls_credentials(
    std::shared_ptr<const TlsIdentity> identity) {
  return std::make_shared<TlsCredentials>(std::move(identity));
}

}  // namespace shoal
