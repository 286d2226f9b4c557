/// Proofs that a text is from who knows a secret.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

namespace spillway::ddl {

/// A SHA-256 hash, or a text's HMAC by it.
using Digest = std::array<uint8_t, 32>;

/// Returns the hash of a short text. Source: FIPS 180-4. OpenSSL is not used here, because the Python package has none.
Digest sha256(std::string_view text);
/// Returns what only those who know `secret` can compute of `text`. Source: RFC 2104.
Digest hmac_sha256(std::string_view secret, std::string_view text);
/// Compares in a time that does not depend on where they differ.
bool equal(const Digest& one, const Digest& other) noexcept;

}  // namespace spillway::ddl
