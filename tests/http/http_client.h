#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace fastfd::gateway {

struct ClientResponse {
  int status = 0;
  std::string head;                            ///< as received
  std::map<std::string, std::string> headers;  ///< names in lower case
  std::string body;                            ///< chunks joined

  /// Data of the server-sent events in the body.
  std::vector<std::string> events() const;
};

/// A connection on which a test says exactly what it wants. Blocks at most 20 s in any call, then
/// throws std::runtime_error.
class HttpClient {
 public:
  explicit HttpClient(std::uint16_t port);
  /// With a small receive buffer the peer notices soon that this client doesn't read.
  HttpClient(std::uint16_t port, int receive_buffer_bytes);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  void send(std::string_view bytes);
  /// A request with Host and Content-Length.
  void send_request(std::string_view method, std::string_view target, std::string_view body = {},
                    std::string_view extra_headers = {});
  /// The next response; `head_only`: to a HEAD request.
  ClientResponse read_response(bool head_only = false);
  /// The next response that is not an interim one (1xx).
  ClientResponse read_final_response();
  ClientResponse exchange(std::string_view method, std::string_view target,
                          std::string_view body = {});
  /// The head alone of the next response; its body is still to come.
  ClientResponse read_head();
  /// Bytes up to and including `mark`.
  std::string read_until(std::string_view mark);
  /// What arrives until the server closes; true: it did so without a reset.
  bool read_to_end(std::string& rest);
  void close();
  /// Closes the sending half only: the answer can still be read.
  void close_sending();
  /// Closes with a TCP reset.
  void reset();
  int descriptor() const { return socket_; }

 private:
  void connect_to(std::uint16_t port);
  bool fill();
  std::string take(std::size_t num_bytes);
  std::string read_chunked();

  int socket_ = -1;
  std::string buffer_;
};

}  // namespace fastfd::gateway
