#pragma once
#include <memory>
#include <mutex>
#include <utility>

#include "server/net/tls_files.h"

namespace shoal {

/// The certificate and the key that new connections get. They are replaced together, and
/// connections that exist keep theirs. Thread-safe.
class TlsIdentity {
 public:
  explicit TlsIdentity(TlsMaterial material) { replace(std::move(material)); }

  std::shared_ptr<const TlsMaterial> current() const {
    const std::lock_guard lock(mutex_);
    return current_;
  }
  void replace(TlsMaterial material) {
    auto next = std::make_shared<const TlsMaterial>(std::move(material));
    const std::lock_guard lock(mutex_);
    current_.swap(next);
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const TlsMaterial> current_;
};

}  // namespace shoal
