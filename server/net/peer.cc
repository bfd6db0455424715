#include "server/net/peer.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cstring>
#include <netinet/in.h>
#include <sys/resource.h>

#include "runtime/base/cat.h"

namespace shoal {

std::string client_name(const sockaddr_storage& peer) {
  char text[INET6_ADDRSTRLEN] = "";
  if (peer.ss_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&peer);
    ::inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text);
    return cat("ipv4:", text);
  }
  if (peer.ss_family != AF_INET6) return "unix:";
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&peer);
  if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {
    ::inet_ntop(AF_INET, &v6->sin6_addr.s6_addr[12], text, sizeof text);
    return cat("ipv4:", text);
  }
  ::inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
  return cat("ipv6:%5B", text, "%5D");
}

int64_t raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  if (limit.rlim_cur < limit.rlim_max) {
    const rlimit raised{limit.rlim_max, limit.rlim_max};
    if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  return static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, INT64_MAX));
}

}  // namespace shoal
