// A program that holds more tensors than the budget of an installed Spillway allows on the device at once.
#include <ATen/ATen.h>

#include <cstdio>
#include <vector>

#include "swap/session.h"

int main() {
  const int64_t budget_bytes = 8 << 20;
  spillway::Session session({.budget_bytes = budget_bytes});
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 6; ++i) tensors.push_back(at::full({1 << 19}, 1.0 * i));  // 12 MiB in all
  double sum = 0;
  for (const at::Tensor& tensor : tensors) sum += tensor.mean().item<double>();
  const int64_t peak_bytes = session.stats().peak_bytes;
  std::printf("sum %g, peak %lld of %lld bytes\n", sum, static_cast<long long>(peak_bytes),
              static_cast<long long>(budget_bytes));
  return sum == 15 && peak_bytes > 0 && peak_bytes <= budget_bytes ? 0 : 1;
}
