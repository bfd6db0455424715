#include "server/net/tls_files.h"

#include <gtest/gtest.h>
#include <memory>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <string>

#include "server/net/tls_identity.h"

namespace shoal {
namespace {

constexpr long kDay = 24 * 60 * 60;

std::string text_in(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  std::string text(data, static_cast<size_t>(size));
  BIO_free(bio);
  return text;
}

struct Made {
  std::string certificate, key;
};

/// A certificate that is its own issuer, valid for this many seconds.
Made make(const char* name, long valid_s = kDay) {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = X509_new();
  X509_set_version(certificate, 2);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -2 * kDay);
  X509_gmtime_adj(X509_getm_notAfter(certificate), valid_s);
  X509_set_pubkey(certificate, key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name), -1, -1, 0);
  X509_set_issuer_name(certificate, X509_get_subject_name(certificate));
  X509_sign(certificate, key, EVP_sha256());
  BIO* out = BIO_new(BIO_s_mem());
  PEM_write_bio_X509(out, certificate);
  Made made{text_in(out), ""};
  out = BIO_new(BIO_s_mem());
  PEM_write_bio_PrivateKey(out, key, nullptr, nullptr, 0, nullptr, nullptr);
  made.key = text_in(out);
  X509_free(certificate);
  EVP_PKEY_free(key);
  return made;
}

const TlsFiles kFiles{"cert.pem", "key.pem", "", ClientCertificates::kNone};

std::string refusal(const TlsTexts& texts, const TlsFiles& files = kFiles) {
  const Result<TlsMaterial> made = make_tls_material(files, texts);
  EXPECT_EQ(made.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(made.status().to_string().find("PRIVATE"), std::string::npos);
  return std::string(made.status().message());
}

TEST(TlsFiles, APairThatFitsIsUsed) {
  const Made one = make("one"), issuer = make("issuer");
  const Result<TlsMaterial> made =
      make_tls_material(kFiles, {"words\n" + one.certificate + issuer.certificate, one.key, ""});
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  EXPECT_EQ(made->certificate, one.certificate + issuer.certificate) << "and nothing else";
  EXPECT_EQ(made->key, one.key);
  EXPECT_EQ(made->warning, "");
  EXPECT_NE(made->summary.find("CN=one"), std::string::npos) << made->summary;
  EXPECT_EQ(SSL_CTX_get_min_proto_version(made->context.get()), TLS1_2_VERSION);
  EXPECT_EQ(SSL_CTX_get_verify_mode(made->context.get()), SSL_VERIFY_NONE);
}

TEST(TlsFiles, TheKeyMayBeBesideTheCertificate) {
  const Made one = make("one");
  TlsFiles files = kFiles;
  files.key.clear();
  EXPECT_TRUE(make_tls_material(files, {one.key + one.certificate, "", ""}).ok());
  EXPECT_EQ(refusal({one.certificate, "", ""}, files).find("--ssl-certfile cert.pem"), 0u);
}

TEST(TlsFiles, WhatCannotBeUsedIsNamed) {
  const Made one = make("one"), other = make("other");
  const auto says = [](const std::string& text, const std::string& flag, const std::string& what) {
    EXPECT_EQ(text.find(flag), 0u) << text;
    EXPECT_NE(text.find(what), std::string::npos) << text;
  };
  says(refusal({"", one.key, ""}), "--ssl-certfile cert.pem", "no certificate");
  says(refusal({one.key, one.key, ""}), "--ssl-certfile cert.pem", "no certificate");
  says(refusal({one.certificate.substr(0, 200), one.key, ""}), "--ssl-certfile", "damaged");
  says(refusal({one.certificate + other.certificate.substr(0, 90), one.key, ""}), "--ssl-certfile",
       "certificate 2 of it is damaged");
  says(refusal({one.certificate, "", ""}), "--ssl-keyfile key.pem", "no private key");
  says(refusal({one.certificate, one.key.substr(0, 80), ""}), "--ssl-keyfile", "no private key");
  says(refusal({one.certificate, other.key, ""}), "--ssl-keyfile", "is not that of");
  TlsFiles files = kFiles;
  files.client_ca = "ca.pem";
  files.clients = ClientCertificates::kRequired;
  says(refusal({one.certificate, one.key, "nothing"}, files), "--ssl-ca-certs ca.pem",
       "no certificate");
}

TEST(TlsFiles, AnExpiredCertificateIsAWarning) {
  const Made old = make("old", -kDay);
  const Result<TlsMaterial> made = make_tls_material(kFiles, {old.certificate, old.key, ""});
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  EXPECT_NE(made->warning.find("has expired"), std::string::npos) << made->warning;
}

TEST(TlsFiles, ClientsAreAskedAsTheFilesSay) {
  const Made one = make("one"), authority = make("authority");
  TlsFiles files = kFiles;
  files.client_ca = "ca.pem";
  for (const auto& [clients, mode] :
       {std::pair{ClientCertificates::kOptional, SSL_VERIFY_PEER},
        std::pair{ClientCertificates::kRequired,
                  SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT}}) {
    files.clients = clients;
    const Result<TlsMaterial> made =
        make_tls_material(files, {one.certificate, one.key, authority.certificate});
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    EXPECT_EQ(SSL_CTX_get_verify_mode(made->context.get()), mode);
    EXPECT_EQ(made->client_ca, authority.certificate);
  }
}

TEST(TlsFiles, AFileThatIsNotThereIsNamed) {
  const Result<TlsTexts> texts = read_tls_files({"/nowhere/cert.pem", "", "", {}});
  EXPECT_EQ(texts.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(texts.status().message(), "--ssl-certfile /nowhere/cert.pem cannot be read");
}

TEST(TlsIdentity, OldConnectionsKeepTheirs) {
  const Made one = make("one"), two = make("two");
  TlsIdentity identity(*make_tls_material(kFiles, {one.certificate, one.key, ""}));
  const std::shared_ptr<const TlsMaterial> before = identity.current();
  identity.replace(*make_tls_material(kFiles, {two.certificate, two.key, ""}));
  EXPECT_EQ(before->key, one.key);
  EXPECT_EQ(identity.current()->key, two.key);
}

}  // namespace
}  // namespace shoal
