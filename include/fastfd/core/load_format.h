#pragma once

#include <cstdint>

namespace fastfd {

/// Where a model's weights come from.
enum class LoadFormat : std::uint8_t {
  kAuto,   ///< the folder's checkpoint
  kDummy,  ///< seeded random numbers in the shapes of config.json: for measuring without a
           ///< checkpoint
};

/// "auto", "dummy": as in cluster files.
const char* to_string(LoadFormat format);

}  // namespace fastfd
