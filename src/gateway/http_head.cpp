#include "gateway/http_head.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <iterator>
#include <string_view>

namespace fastfd::gateway {
namespace {

std::string http_date() {
  return fmt::format("{:%a, %d %b %Y %H:%M:%S} GMT", fmt::gmtime(std::time(nullptr)));
}

std::string_view reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 417:
      return "Expectation Failed";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    default:
      return "Internal Server Error";
  }
}

}  // namespace

std::string response_head(const HttpResponse& response, bool http_1_1, bool keep_alive) {
  std::string head = fmt::format("HTTP/1.1 {} {}\r\nDate: {}\r\n", response.status,
                                 reason_phrase(response.status), http_date());
  if (response.status != 204) {
    fmt::format_to(std::back_inserter(head), "Content-Type: {}\r\nContent-Length: {}\r\n",
                   response.content_type, response.body.size());
  }
  for (const auto& [name, value] : response.headers) {
    fmt::format_to(std::back_inserter(head), "{}: {}\r\n", name, value);
  }
  if (!keep_alive) {
    head += "Connection: close\r\n";
  } else if (!http_1_1) {
    head += "Connection: keep-alive\r\n";
  }
  head += "\r\n";
  return head;
}

std::string stream_head(bool http_1_1, bool keep_alive) {
  std::string head = fmt::format(
      "HTTP/1.1 200 OK\r\nDate: {}\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
      "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n",
      http_date());
  if (http_1_1) {
    head += "Transfer-Encoding: chunked\r\n";
  }
  if (!keep_alive) {
    head += "Connection: close\r\n";
  }
  head += "\r\n";
  return head;
}

}  // namespace fastfd::gateway
