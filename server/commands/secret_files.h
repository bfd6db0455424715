#pragma once
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "server/cli/flags.h"
#include "server/commands/reread.h"
#include "server/net/tls_identity.h"
#include "server/serving/api_keys.h"

namespace shoal {

/// The API keys and certificates of a server. It looks at their files again every 10 s and when it
/// is asked to. New calls and new connections get what has changed; a change that cannot be used is
/// refused with a warning, and what was there before stays.
class SecretFiles {
 public:
  /// Reads everything once. Takes SHOAL_API_KEY out of the environment, because the ranks inherit
  /// it and have no use for it. INVALID_ARGUMENT, naming the flag and the file: something cannot be
  /// used. RESOURCE_EXHAUSTED: no thread.
  static Result<std::unique_ptr<SecretFiles>> open(
      const AccessFlags& access, const TlsFiles& tls,
      std::chrono::milliseconds period = std::chrono::seconds(10));
  ~SecretFiles();

  std::shared_ptr<const ApiKeys> keys() const { return keys_; }
  std::shared_ptr<const TlsIdentity> tls() const { return identity_; }  ///< null: no TLS

  /// Looks at the files soon. May be called from any thread; does not block.
  void look_now();

 private:
  SecretFiles() = default;
  Status read_keys(const AccessFlags& access);
  Status read_tls(const TlsFiles& files);
  Status start(std::chrono::milliseconds period);
  void watch(std::chrono::milliseconds period);
  void look(bool complete);

  std::vector<std::string> fixed_keys_;  // of the flags and the environment
  std::shared_ptr<ApiKeys> keys_;
  std::shared_ptr<TlsIdentity> identity_;
  std::optional<Reread<std::string>> key_file_;
  std::optional<Reread<TlsTexts>> tls_files_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  bool asked_ = false;
  std::thread thread_;
};

}  // namespace shoal
