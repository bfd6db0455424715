#include "server/grpc/protobuf_log.h"

#include <google/protobuf/stubs/logging.h>
#include <utility>

#include "runtime/base/cat.h"
#include "runtime/base/log.h"

namespace shoal {

namespace {

thread_local std::string last_complaint;

void take_line(google::protobuf::LogLevel, const char*, int, const std::string& text) {
  log_debug(cat("protobuf: ", text));
  last_complaint = text;
}

}  // namespace

void route_protobuf_log() {
  google::protobuf::SetLogHandler(take_line);
}

std::string take_protobuf_complaint() {
  return std::exchange(last_complaint, {});
}

}  // namespace shoal
