#include "server/grpc/protobuf_log.h"

#include <google/protobuf/stubs/logging.h>

#include "runtime/base/cat.h"
#include "runtime/base/log.h"

namespace shoal {

namespace {

void take_line(google::protobuf::LogLevel, const char*, int, const std::string& text) {
  log_debug(cat("protobuf: ", text));
}

}  // namespace

void route_protobuf_log() {
  google::protobuf::SetLogHandler(take_line);
}

}  // namespace shoal
