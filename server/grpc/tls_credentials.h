#pragma once
#include <grpcpp/security/server_credentials.h>
#include <memory>

#include "server/net/tls_identity.h"

namespace shoal {

/// Credentials of a server that speaks TLS. Each handshake gets the identity's current certificate.
/// They must outlive the server. Only one thread may hand connections to it: gRPC 1.51 replaces a
/// certificate without a lock against handshakes that begin at the same time.
std::shared_ptr<grpc::ServerCredentials> make_tls_credentials(
    std::shared_ptr<const TlsIdentity> identity);

}  // namespace shoal
