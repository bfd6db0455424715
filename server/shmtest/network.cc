#include "server/shmtest/network.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <net/if.h>
#include <string>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/base/fd.h"
#include "server/shmtest/os_failure.h"

namespace shoal::shmtest {
namespace {

Status raise_loopback() {
  const Fd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return failed("open a socket");
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  if (::ioctl(socket.get(), SIOCGIFFLAGS, &request) != 0) return failed("look at lo");
  request.ifr_flags |= IFF_UP | IFF_RUNNING;
  if (::ioctl(socket.get(), SIOCSIFFLAGS, &request) != 0) return failed("bring lo up");
  return {};
}

Status write_setting(const std::string& path, std::string_view value) {
  const Fd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file.valid()) return failed("open " + path);
  if (::write(file.get(), value.data(), value.size()) < 0) return failed("write " + path);
  return {};
}

}  // namespace

Status set_up_network(const Condition& condition) {
  // Do this before lo comes up, because an address that it has already got would remain for a
  // moment.
  if (condition.no_ipv6 && ::access("/proc/sys/net/ipv6", F_OK) == 0) {
    for (const char* which : {"all", "default", "lo"}) {
      SHOAL_RETURN_IF_ERROR(
          write_setting(cat("/proc/sys/net/ipv6/conf/", which, "/disable_ipv6"), "1"));
    }
  }
  SHOAL_RETURN_IF_ERROR(raise_loopback());
  if (condition.few_ports)
    SHOAL_RETURN_IF_ERROR(write_setting("/proc/sys/net/ipv4/ip_local_port_range", "61000 61001"));
  return {};
}

}  // namespace shoal::shmtest
