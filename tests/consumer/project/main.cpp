// A program that uses the LibTorch-free libraries of an installed Spillway.
#include <cstdio>

#include "core/ledger.h"

int main() {
  spillway::Ledger ledger("cpu", 1000);
  const bool fits = ledger.try_charge(600, spillway::Category::weights);
  const bool refused = !ledger.try_charge(600, spillway::Category::activations);
  std::printf("used %lld of %lld bytes\n", static_cast<long long>(ledger.used_bytes()),
              static_cast<long long>(ledger.budget_bytes()));
  return fits && refused && ledger.used_bytes() == 600 ? 0 : 1;
}
