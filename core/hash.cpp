#include "core/hash.h"

namespace spillway {

uint64_t hash_in(uint64_t hash, uint64_t value) {
  for (int byte = 0; byte < 8; ++byte) {
    hash = (hash ^ (value >> (8 * byte) & 0xff)) * 1099511628211ull;
  }
  return hash;
}

}  // namespace spillway
