#pragma once
#include <functional>
#include <memory>
#include <string>

#include "server/http/asio.h"

struct ssl_ctx_st;
struct ssl_st;

namespace shoal {

using StreamSocket = boost::asio::generic::stream_protocol::socket;

/// The bytes of a client's connection, plain or through TLS. Only the event thread uses it. At most
/// one read and one write are outstanding. Handlers are called by the event loop, never by the
/// function that takes them, and keep the stream alive: it must outlive them.
class ClientStream {
 public:
  using Handler = std::function<void(const boost::system::error_code&, size_t)>;

  /// tls: OpenSSL's context for new connections; null: they are plain.
  ClientStream(StreamSocket socket, ssl_ctx_st* tls);
  ~ClientStream();
  ClientStream(const ClientStream&) = delete;
  ClientStream& operator=(const ClientStream&) = delete;

  StreamSocket::executor_type executor() { return socket_.get_executor(); }
  bool encrypted() const { return ssl_ != nullptr; }

  enum class Greeting {
    kDone,    ///< the connection is encrypted from here on
    kPlain,   ///< the client speaks, but not TLS; the stream is plain from here on
    kFailed,  ///< there is no connection
  };
  /// Call it first if the stream is encrypted. `why` is for kFailed.
  void async_greet(std::function<void(Greeting, const std::string& why)> handler);

  /// The error is eof if the client has ended its half of the connection.
  void async_read_some(boost::asio::mutable_buffer buffer, Handler handler);
  void async_write_some(boost::asio::const_buffer bytes, Handler handler);

  /// Tells the client that nothing follows. What it still sends can be read.
  void end_sending();
  /// Handlers that wait are called with an error.
  void close();

 private:
  using Operation = int (ClientStream::*)(void* data, size_t size);
  int read_now(void* data, size_t size);
  int write_now(void* data, size_t size);
  void work(Operation operation, void* data, size_t size, Handler handler);
  bool await(int error, std::function<void(const boost::system::error_code&)> handler);
  enum class FirstByte { kNotHere, kTls, kPlain };
  FirstByte first_byte();
  void say_goodbye();

  struct Free {
    void operator()(ssl_st* ssl) const;
  };
  StreamSocket socket_;
  std::unique_ptr<ssl_st, Free> ssl_;
  bool spoken_ = false;   // the client's first byte has been looked at
  bool greeted_ = false;  // the handshake is done, and nothing has broken the encryption since
};

}  // namespace shoal
