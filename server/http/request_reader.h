#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/http_error.h"
#include "server/http/http_message.h"

namespace shoal {

/// Reads one HTTP/1.0 or 1.1 request from the bytes of a connection, as they come. It reads the
/// head, and the body only once read_body() was called.
class RequestReader {
 public:
  /// The most bytes that a head and a body may have.
  RequestReader(size_t header_bytes, size_t body_bytes);
  ~RequestReader();

  struct Progress {
    size_t used = 0;          ///< bytes that belong to the request so far, to be removed
    bool needs_more = false;  ///< nothing can be done before more bytes come
    HttpError wrong;          ///< not ok: this cannot be read, and neither can what follows it
  };
  Progress read(std::string_view bytes);
  void read_body();

  bool head_done() const;
  bool done() const;  ///< the body is complete too

  // From here on: once the head is done.

  /// `client` is copied into the result.
  HttpRequestHead head(const std::string& client) const;
  bool keep_alive() const;
  bool has_one_host() const;
  bool expects_continue() const;
  /// Where the body ends is beyond doubt: there is no transfer coding, or one "chunked" in
  /// HTTP/1.1.
  bool framing_is_clear() const;
  /// The length of the body; nothing: it comes in chunks.
  std::optional<size_t> length() const;

  std::string take_body();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal
