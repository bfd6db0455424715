#include "server/http/client_stream.h"

#include <cerrno>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <utility>

#include "server/net/tls_files.h"

namespace shoal {

namespace {

namespace asio = boost::asio;
using boost::system::error_code;

/// The type of the record with which every TLS connection begins.
constexpr unsigned char kHandshakeRecord = 0x16;

/// What a client sees as the end of its connection, and what is a failure of it, ends both the same
/// way here.
error_code ended(int error) {
  if (error == SSL_ERROR_ZERO_RETURN) return asio::error::eof;
  return asio::error::connection_reset;
}

}  // namespace

void ClientStream::Free::operator()(ssl_st* ssl) const {
  SSL_free(ssl);
}

ClientStream::ClientStream(StreamSocket socket, ssl_ctx_st* tls) : socket_(std::move(socket)) {
  if (tls == nullptr) return;
  ssl_.reset(SSL_new(tls));
  if (ssl_ == nullptr || SSL_set_fd(ssl_.get(), socket_.native_handle()) != 1) {
    ERR_clear_error();
    close();  // memory is short; the first operation fails
    return;
  }
  SSL_set_accept_state(ssl_.get());
}

ClientStream::~ClientStream() = default;

/// What the client's first byte begins. It is only looked at, so that OpenSSL reads it too.
ClientStream::FirstByte ClientStream::first_byte() {
  if (spoken_) return FirstByte::kTls;
  unsigned char first = 0;
  const ssize_t size = ::recv(socket_.native_handle(), &first, 1, MSG_PEEK | MSG_DONTWAIT);
  if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
    return FirstByte::kNotHere;
  spoken_ = true;
  return size == 1 && first != kHandshakeRecord ? FirstByte::kPlain : FirstByte::kTls;
}

/// Calls the handler when the socket may allow what OpenSSL could not do. Returns false if it was
/// not the socket that stopped it.
bool ClientStream::await(int error, std::function<void(const error_code&)> handler) {
  if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) return false;
  socket_.async_wait(
      error == SSL_ERROR_WANT_READ ? StreamSocket::wait_read : StreamSocket::wait_write,
      std::move(handler));
  return true;
}

void ClientStream::async_greet(std::function<void(Greeting, const std::string&)> handler) {
  const FirstByte first = first_byte();
  if (first == FirstByte::kPlain) {
    ssl_.reset();
    return asio::post(executor(), [handler] { handler(Greeting::kPlain, ""); });
  }
  ERR_clear_error();
  const int result = first == FirstByte::kTls ? SSL_do_handshake(ssl_.get()) : -1;
  if (result == 1) {
    greeted_ = true;
    return asio::post(executor(), [handler] { handler(Greeting::kDone, ""); });
  }
  const int error =
      first == FirstByte::kTls ? SSL_get_error(ssl_.get(), result) : SSL_ERROR_WANT_READ;
  const bool waits = await(error, [this, handler](const error_code& stopped) {
    if (stopped) return handler(Greeting::kFailed, "the connection was closed");
    async_greet(handler);
  });
  if (waits) return;
  std::string why = error == SSL_ERROR_SSL ? take_tls_error() : "the client has left";
  asio::post(executor(), [handler, why = std::move(why)] { handler(Greeting::kFailed, why); });
}

int ClientStream::read_now(void* data, size_t size) {
  return SSL_read(ssl_.get(), data, static_cast<int>(size));
}

int ClientStream::write_now(void* data, size_t size) {
  return SSL_write(ssl_.get(), data, static_cast<int>(size));
}

/// Does an operation of OpenSSL, now or once the socket allows it.
void ClientStream::work(Operation operation, void* data, size_t size, Handler handler) {
  ERR_clear_error();
  const int result = (this->*operation)(data, size);
  if (result > 0) {
    return asio::post(executor(), [handler = std::move(handler), result] {
      handler(error_code(), static_cast<size_t>(result));
    });
  }
  const int error = SSL_get_error(ssl_.get(), result);
  const bool waits = await(error, [=, this](const error_code& stopped) {
    if (stopped) return handler(stopped, 0);
    work(operation, data, size, handler);
  });
  if (waits) return;
  ERR_clear_error();
  if (error != SSL_ERROR_ZERO_RETURN) greeted_ = false;
  asio::post(executor(), [handler = std::move(handler), error] { handler(ended(error), 0); });
}

void ClientStream::async_read_some(asio::mutable_buffer buffer, Handler handler) {
  if (ssl_ == nullptr) return socket_.async_read_some(buffer, std::move(handler));
  work(&ClientStream::read_now, buffer.data(), buffer.size(), std::move(handler));
}

void ClientStream::async_write_some(asio::const_buffer bytes, Handler handler) {
  if (ssl_ == nullptr) return socket_.async_write_some(bytes, std::move(handler));
  if (bytes.size() == 0)  // OpenSSL takes that for a failure
    return asio::post(executor(), [handler = std::move(handler)] { handler(error_code(), 0); });
  // SSL_write only reads them.
  work(&ClientStream::write_now, const_cast<void*>(bytes.data()), bytes.size(), std::move(handler));
}

/// Sends TLS's own end of the stream, if there is room for it. Without it a client could not tell
/// an answer that ends with the connection from one that was cut.
void ClientStream::say_goodbye() {
  if (!std::exchange(greeted_, false)) return;
  ERR_clear_error();
  SSL_shutdown(ssl_.get());
  ERR_clear_error();
}

void ClientStream::end_sending() {
  say_goodbye();
  error_code ignored;
  socket_.shutdown(asio::socket_base::shutdown_send, ignored);
}

void ClientStream::close() {
  if (socket_.is_open()) say_goodbye();
  error_code ignored;
  socket_.close(ignored);
}

}  // namespace shoal
