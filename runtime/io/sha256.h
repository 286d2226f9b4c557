/// SHA-256 hashes of bytes.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace spillway::runtime {

/// A SHA-256 hash of bytes that come in pieces. Throws std::runtime_error when OpenSSL fails.
class Sha256 {
 public:
  using Digest = std::array<uint8_t, 32>;

  Sha256();
  void add(const void* bytes, size_t count);
  /// Returns the hash of all bytes that were added, and starts anew.
  Digest finish();

 private:
  struct Free {
    void operator()(void* context) const;
  };
  std::unique_ptr<void, Free> context_;
};

/// Returns the bytes as lower-case hexadecimal digits.
std::string hex(std::span<const uint8_t> bytes);

}  // namespace spillway::runtime
