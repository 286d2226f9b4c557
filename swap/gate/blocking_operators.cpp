#include "swap/gate/blocking_operators.h"

#include <atomic>

namespace spillway::swap {
namespace {

std::atomic<IsBlocking>& the_function() {
  static std::atomic<IsBlocking> function = nullptr;
  return function;
}

}  // namespace

void set_blocking_collectives(IsBlocking is_blocking) {
  the_function() = is_blocking;
}

bool is_blocking_collective(std::span<const c10::IValue> arguments) {
  const IsBlocking is_blocking = the_function();
  return is_blocking && is_blocking(arguments);
}

}  // namespace spillway::swap
