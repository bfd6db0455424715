#include "server/net/tls_files.h"

#include <algorithm>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

#include "runtime/base/json.h"

namespace shoal {

namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 20;
/// Forward secrecy and authenticated encryption only, as gRPC's own list has it. TLS 1.3 has no
/// other ciphers.
constexpr char kCiphers[] = "ECDHE+AESGCM:ECDHE+CHACHA20";
/// What HTTP/1 is called in a handshake, best first, each after its length.
constexpr unsigned char kHttp[] = "\x08http/1.1\x08http/1.0";

template <typename T, void (*release)(T*)>
struct Release {
  void operator()(T* object) const { release(object); }
};
void release_bio(BIO* bio) {
  BIO_free(bio);
}
using Bio = std::unique_ptr<BIO, Release<BIO, release_bio>>;
using Certificate = std::unique_ptr<X509, Release<X509, X509_free>>;
using Certificates = std::vector<Certificate>;
using Key = std::unique_ptr<EVP_PKEY, Release<EVP_PKEY, EVP_PKEY_free>>;

/// "--ssl-certfile server.pem": how messages name a file.
std::string named(const char* flag, const std::string& path) {
  return cat(flag, ' ', path);
}

Status bad(std::string what) {
  return Status::error(Code::kInvalidArgument, std::move(what));
}

Bio reader_of(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

std::string text_in(const Bio& bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return size > 0 ? std::string(data, static_cast<size_t>(size)) : std::string();
}

std::string shown(const ASN1_TIME* time) {
  const Bio out(BIO_new(BIO_s_mem()));
  ASN1_TIME_print(out.get(), time);
  return text_in(out);
}

std::string subject_of(const X509* certificate) {
  const Bio out(BIO_new(BIO_s_mem()));
  X509_NAME_print_ex(out.get(), X509_get_subject_name(certificate), 0, XN_FLAG_RFC2253);
  return text_in(out);
}

/// Every certificate in the text. Everything else in the text is ignored.
Certificates certificates_in(const std::string& text) {
  const Bio in = reader_of(text);
  Certificates all;
  while (X509* one = PEM_read_bio_X509(in.get(), nullptr, nullptr, nullptr)) all.emplace_back(one);
  return all;
}

/// Whether a text ends in the middle of a certificate, or has one that is damaged.
bool has_damaged(const std::string& text, size_t whole) {
  size_t begun = 0;
  for (size_t at = text.find("-----BEGIN CERTIFICATE-----"); at != std::string::npos;
       at = text.find("-----BEGIN CERTIFICATE-----", at + 1))
    ++begun;
  return begun > whole;
}

Result<Certificates> parse_certificates(const std::string& text, const std::string& name) {
  ERR_clear_error();
  Certificates all = certificates_in(text);
  const std::string why = take_tls_error();
  if (has_damaged(text, all.size()))
    return bad(cat(name, ": certificate ", all.size() + 1, " of it is damaged (", why, ")"));
  if (all.empty())
    return bad(cat(name,
                   ": there is no certificate in it; a PEM file has one between BEGIN "
                   "CERTIFICATE and END CERTIFICATE"));
  return all;
}

/// Refuses to give a password, and notes that one was asked for.
int no_password(char*, int, int, void* asked) {
  *static_cast<bool*>(asked) = true;
  return -1;
}

Result<Key> parse_key(const std::string& text, const std::string& name) {
  ERR_clear_error();
  bool encrypted = false;
  Key key(PEM_read_bio_PrivateKey(reader_of(text).get(), nullptr, no_password, &encrypted));
  const std::string why = take_tls_error();
  if (key) return key;
  if (encrypted)
    return bad(cat(name,
                   ": the private key is encrypted, and this server asks for no password; "
                   "decrypt it with `openssl pkey -in ENCRYPTED -out PLAIN`"));
  return bad(cat(name, ": there is no private key in it that can be read (", why, ")"));
}

std::string pem_of(const Certificates& certificates) {
  const Bio out(BIO_new(BIO_s_mem()));
  for (const Certificate& one : certificates) PEM_write_bio_X509(out.get(), one.get());
  return text_in(out);
}

std::string pem_of(const Key& key) {
  const Bio out(BIO_new(BIO_s_mem()));
  PEM_write_bio_PrivateKey(out.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  return text_in(out);
}

/// Chooses from what a client offers, and ends the handshake if HTTP/1 is not among it.
int choose_http(SSL*, const unsigned char** chosen, unsigned char* size,
                const unsigned char* offered, unsigned offered_size, void*) {
  unsigned char* found = nullptr;
  const int result =
      SSL_select_next_proto(&found, size, kHttp, sizeof kHttp - 1, offered, offered_size);
  *chosen = found;
  return result == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

void set_protocol(SSL_CTX* context) {
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_cipher_list(context, kCiphers);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_NO_TICKET |
                                   SSL_OP_CIPHER_SERVER_PREFERENCE);
  // No session is resumed, so that a client whose certificate is no longer valid comes in by no
  // other way.
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  // The session moves its buffers, and a connection that is idle keeps none in OpenSSL.
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_alpn_select_cb(context, choose_http, nullptr);
}

bool use_certificates(SSL_CTX* context, const Certificates& own) {
  if (SSL_CTX_use_certificate(context, own.front().get()) != 1) return false;
  return std::all_of(own.begin() + 1, own.end(), [context](const Certificate& issuer) {
    return SSL_CTX_add1_chain_cert(context, issuer.get()) == 1;
  });
}

bool use_client_ca(SSL_CTX* context, const Certificates& issuers, ClientCertificates clients) {
  for (const Certificate& one : issuers) {
    if (X509_STORE_add_cert(SSL_CTX_get_cert_store(context), one.get()) != 1 ||
        SSL_CTX_add_client_CA(context, one.get()) != 1)
      return false;
  }
  const int required =
      clients == ClientCertificates::kRequired ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0;
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | required, nullptr);
  return true;
}

std::string validity_warning(const X509* certificate) {
  const ASN1_TIME* end = X509_get0_notAfter(certificate);
  if (X509_cmp_current_time(end) < 0)
    return cat("has expired: it was valid until ", shown(end), ", and clients will refuse it");
  const ASN1_TIME* begin = X509_get0_notBefore(certificate);
  if (X509_cmp_current_time(begin) > 0)
    return cat("is not valid yet: it begins at ", shown(begin), ", and clients will refuse it");
  return "";
}

Result<std::string> read(const char* flag, const std::string& path) {
  Result<std::string> text = read_file(path, kMaxFileBytes);
  if (text.ok()) return text;
  return text.status().because_of(Code::kInvalidArgument,
                                  cat(named(flag, path), " cannot be read"));
}

}  // namespace

std::string take_tls_error() {
  const unsigned long first = ERR_get_error();
  ERR_clear_error();
  const char* reason = ERR_reason_error_string(first);
  return first == 0 ? "no reason given" : reason != nullptr ? reason : cat("error ", first);
}

Result<TlsTexts> read_tls_files(const TlsFiles& files) {
  TlsTexts texts;
  SHOAL_ASSIGN_OR_RETURN(texts.certificate, read("--ssl-certfile", files.certificate));
  if (!files.key.empty()) {
    SHOAL_ASSIGN_OR_RETURN(texts.key, read("--ssl-keyfile", files.key));
  }
  if (!files.client_ca.empty()) {
    SHOAL_ASSIGN_OR_RETURN(texts.client_ca, read("--ssl-ca-certs", files.client_ca));
  }
  return texts;
}

Result<TlsMaterial> make_tls_material(const TlsFiles& files, const TlsTexts& texts) {
  const std::string name = named("--ssl-certfile", files.certificate);
  const std::string key_name = files.key.empty() ? name : named("--ssl-keyfile", files.key);
  SHOAL_ASSIGN_OR_RETURN(const Certificates own, parse_certificates(texts.certificate, name));
  SHOAL_ASSIGN_OR_RETURN(const Key key,
                         parse_key(files.key.empty() ? texts.certificate : texts.key, key_name));
  if (X509_check_private_key(own.front().get(), key.get()) != 1) {
    ERR_clear_error();
    return bad(cat(key_name, ": this private key is not that of the first certificate in ",
                   files.certificate));
  }
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  if (!context)
    return Status::error(Code::kResourceExhausted,
                         cat("OpenSSL does not start: ", take_tls_error()));
  set_protocol(context.get());
  if (!use_certificates(context.get(), own)) return bad(cat(name, ": ", take_tls_error()));
  if (SSL_CTX_use_PrivateKey(context.get(), key.get()) != 1)
    return bad(cat(key_name, ": ", take_tls_error()));
  Certificates issuers;
  if (files.clients != ClientCertificates::kNone) {
    const std::string ca_name = named("--ssl-ca-certs", files.client_ca);
    SHOAL_ASSIGN_OR_RETURN(issuers, parse_certificates(texts.client_ca, ca_name));
    if (!use_client_ca(context.get(), issuers, files.clients))
      return bad(cat(ca_name, ": ", take_tls_error()));
  }
  const std::string problem = validity_warning(own.front().get());
  const std::string subject = subject_of(own.front().get());
  return TlsMaterial{
      .certificate = pem_of(own),
      .key = pem_of(key),
      .client_ca = pem_of(issuers),
      .clients = files.clients,
      .context = std::move(context),
      .summary = cat(subject, ", valid until ", shown(X509_get0_notAfter(own.front().get()))),
      .warning = problem.empty() ? "" : cat(name, ": the certificate ", problem)};
}

}  // namespace shoal
