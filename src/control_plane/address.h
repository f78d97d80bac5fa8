#pragma once

#include <string>

namespace fastfd::control_plane {

/// Throws ControlPlaneError, with cause and remedy, unless this process can listen on "host:port"
/// now. gRPC itself only says that it could not.
void check_can_listen(const std::string& address);

}  // namespace fastfd::control_plane
