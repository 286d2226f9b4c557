// A program that uses the LibTorch-free libraries of an installed Spillway.
#include <cstdio>

#include "core/bytes.h"
#include "core/error.h"

int main() {
  std::printf("%s\n", spillway::format_bytes(spillway::parse_bytes("1.5GiB")).c_str());
  try {
    spillway::parse_bytes("lots");
  } catch (const spillway::BadRequest& refused) {
    std::printf("%s\n", refused.what());
    return spillway::parse_bytes("1.5GiB") == 1610612736 ? 0 : 1;
  }
  return 1;
}
