#pragma once
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "server/grpc/connections/connections.h"
#include "server/net/accept_errors.h"

namespace shoal {

/// Accepts clients on a thread of its own and hands them over. gRPC's listener gives up for ever at
/// the first shortage of descriptors; this one never does: clients wait in the kernel's queue until
/// `connections` has room for them.
class Acceptor {
 public:
  /// Takes the socket of a new client, which does not block, and where it came from.
  using HandOver = std::function<void(Fd client, int listener)>;

  /// RESOURCE_EXHAUSTED: no thread, or no descriptor.
  static Result<std::unique_ptr<Acceptor>> start(std::vector<Fd> listeners,
                                                 std::shared_ptr<Connections> connections,
                                                 HandOver hand_over);
  /// Closes the listeners. No client is handed over any more once this has returned.
  ~Acceptor();

 private:
  Acceptor(std::vector<Fd> listeners, std::shared_ptr<Connections> connections, HandOver hand_over,
           Fd wake);
  void run();
  void serve(const Fd& listener);
  bool sleep_ms(int milliseconds) const;

  const std::vector<Fd> listeners_;
  const std::shared_ptr<Connections> connections_;
  const HandOver hand_over_;
  AcceptErrors errors_;  // of the thread
  const Fd wake_;        // an eventfd, readable once the thread is to end
  std::thread thread_;
};

}  // namespace shoal
