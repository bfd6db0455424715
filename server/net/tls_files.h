#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/status.h"

struct ssl_ctx_st;

namespace shoal {

/// Whether clients show a certificate of their own (mTLS).
enum class ClientCertificates {
  kNone,      ///< they are not asked
  kOptional,  ///< one that is shown must be valid
  kRequired,  ///< without a valid one there is no connection
};

/// The paths of a server's certificates and keys. A server without a certificate speaks no TLS.
struct TlsFiles {
  std::string certificate;  ///< PEM: the server's own certificate first, then its issuers
  std::string key;          ///< PEM; empty: the key is in the file of the certificate
  std::string client_ca;    ///< PEM: who may have issued the certificates of clients
  ClientCertificates clients = ClientCertificates::kNone;

  bool any() const { return !certificate.empty(); }
};

/// What the files hold, unchecked. Equal texts are equal certificates.
struct TlsTexts {
  std::string certificate, key, client_ca;
  bool operator==(const TlsTexts&) const = default;
};

/// A certificate whose private key fits it, ready to be used.
struct TlsMaterial {
  std::string certificate, key, client_ca;  ///< PEM, and nothing but what the name says
  ClientCertificates clients = ClientCertificates::kNone;
  std::shared_ptr<ssl_ctx_st> context;  ///< OpenSSL's, for servers of HTTP/1.1
  std::string summary;                  ///< whose certificate it is, and how long it is valid
  std::string warning;                  ///< what is wrong but can be used; empty: nothing
};

/// INVALID_ARGUMENT, naming the flag and the file: one of them cannot be read.
Result<TlsTexts> read_tls_files(const TlsFiles& files);

/// INVALID_ARGUMENT, naming the flag and the file: there is no certificate or no key in it, the key
/// is encrypted or does not fit the certificate, or OpenSSL finds one of them too weak. A message
/// never has a part of a key in it. A certificate that has expired is a warning.
Result<TlsMaterial> make_tls_material(const TlsFiles& files, const TlsTexts& texts);

/// The first error that OpenSSL has noted in this thread, in its words; forgets all of them.
std::string take_tls_error();

}  // namespace shoal
