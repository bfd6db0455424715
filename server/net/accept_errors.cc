#include "server/net/accept_errors.h"

#include <cerrno>
#include <cstring>

#include "runtime/base/log.h"
#include "runtime/base/process_limit.h"

namespace shoal {

bool AcceptErrors::is_nobody(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR || error == ECONNABORTED ||
         error == EPROTO;
}

void AcceptErrors::log(const char* front, int error) {
  const bool is_new = told_.insert(error).second;
  log_line(is_new ? LogLevel::kError : LogLevel::kDebug,
           cat(front, ": a client has to wait, because it cannot be accepted",
               descriptor_hint(error), ": ", std::strerror(error)),
           {{"event", "accept_failed"}, {"front", front}, {"errno", error}});
}

}  // namespace shoal
