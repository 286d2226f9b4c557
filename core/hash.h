/// A running hash of numbers.
#pragma once
#include <cstdint>
#include <type_traits>

namespace spillway {

inline constexpr uint64_t kHashSeed = 1469598103934665603ull;

/// Folds `value` into a running hash (FNV-1a over its bytes); start from kHashSeed.
uint64_t hash_in(uint64_t hash, uint64_t value);

/// Folds an enumerator's number into a running hash.
template <class Enum>
requires std::is_enum_v<Enum> uint64_t hash_in(uint64_t hash, Enum value) {
  return hash_in(hash, static_cast<uint64_t>(value));
}

}  // namespace spillway
