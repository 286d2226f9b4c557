#include "ddl/allreduce/algorithm.h"

#include <array>

namespace spillway::ddl {

std::string_view name_of(Algorithm algorithm) {
  static constexpr std::array<std::string_view, 5> kNames{"direct", "ring", "halving", "leader", "oneshot"};
  return kNames[static_cast<size_t>(algorithm)];
}

bool keeps_order(Algorithm algorithm) {
  return algorithm != Algorithm::ring && algorithm != Algorithm::halving;
}

}  // namespace spillway::ddl
