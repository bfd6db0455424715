#pragma once
#include <string>

#include "server/http/http_message.h"

namespace shoal {

struct HeadOptions {
  bool keep_alive = false;
  bool http_1_0 = false;
  bool stream = false;        ///< the body has no known length
  bool without_body = false;  ///< the answer to a HEAD
};

/// The status line and the headers of an answer, and its body unless it is a stream. A stream is
/// chunked, or towards HTTP/1.0 it ends with the connection.
std::string head_text(const HttpResponse& response, const HeadOptions& options);
/// A chunk of a stream, and the end of the stream if it is the last one.
std::string chunk_text(const std::string& bytes, bool last);
/// "100 Continue".
std::string continue_line();

}  // namespace shoal
