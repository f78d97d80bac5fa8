#pragma once

#include <cstdint>
#include <string_view>

namespace fastfd::model {

/// FNV-1a, 64 bits: http://www.isthe.com/chongo/tech/comp/fnv/
class Fingerprint {
 public:
  void add(std::string_view text) {
    for (const char c : text) {
      add_byte(static_cast<unsigned char>(c));
    }
    add_byte(0);  // "ab", "c" is not "a", "bc"
  }
  /// Byte by byte, so that the machine's byte order has no part in it.
  void add(std::uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8) {
      add_byte(static_cast<unsigned char>(number >> shift));
    }
  }
  std::uint64_t value() const { return value_; }

 private:
  void add_byte(unsigned char byte) { value_ = (value_ ^ byte) * 0x100000001b3ULL; }

  std::uint64_t value_ = 0xcbf29ce484222325ULL;
};

}  // namespace fastfd::model
