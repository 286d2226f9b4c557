// Uses the counted CPU allocator of an installed Spillway with LibTorch.
#include <ATen/ATen.h>

#include <cstdio>

#include "core/cpu_allocator.h"

int main() {
  const spillway::Ledger& ledger = spillway::CpuDevice::instance().ledger();
  const int64_t before_bytes = ledger.used_bytes();
  const at::Tensor ones = at::ones({1024, 1024});
  const int64_t held_bytes = ledger.used_bytes() - before_bytes;
  std::printf("a tensor of %lld bytes holds %lld\n", static_cast<long long>(ones.nbytes()), static_cast<long long>(held_bytes));
  return held_bytes >= static_cast<int64_t>(ones.nbytes()) ? 0 : 1;
}
