#include "runtime/passes/deterministic.h"

#include <ATen/Context.h>

#include <cstdlib>

namespace spillway::runtime {

void use_deterministic_algorithms(bool deterministic, bool on_gpu) {
  at::globalContext().setDeterministicAlgorithms(deterministic, /*warn_only=*/on_gpu);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  if (!deterministic || !on_gpu) return;
  at::globalContext().setDeterministicCuDNN(true);
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);  // cuBLAS needs it for the same bits
}

}  // namespace spillway::runtime
