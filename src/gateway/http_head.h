#pragma once

#include <string>

#include "gateway/endpoints.h"

namespace fastfd::gateway {

/// Status line and header of a response whose body is known, up to the empty line.
std::string response_head(const HttpResponse& response, bool http_1_1, bool keep_alive);

/// The same for a stream of server-sent events: chunked in HTTP/1.1, ended by closing in 1.0.
std::string stream_head(bool http_1_1, bool keep_alive);

}  // namespace fastfd::gateway
