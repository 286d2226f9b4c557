/// A running hash of numbers.
#pragma once
#include <cstdint>

namespace spillway {

inline constexpr uint64_t kHashSeed = 1469598103934665603ull;

/// Folds `value` into a running hash (FNV-1a over its bytes); start from kHashSeed.
uint64_t hash_in(uint64_t hash, uint64_t value);

}  // namespace spillway
