// The entry point through which libFuzzer calls one target.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  spillway::fuzz::SPILLWAY_FUZZ_TARGET({reinterpret_cast<const char*>(data), size});
  return 0;
}
