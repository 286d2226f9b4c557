/// The same bits in every run.
#pragma once

namespace spillway {

/// Lets LibTorch use deterministic algorithms alone where `deterministic`, else any. On a GPU some operators have none:
/// LibTorch warns, and bits may differ. Call it before the GPU is first used, because cuBLAS reads its workspace's size
/// from the environment, which this sets where it is not set.
void use_deterministic_algorithms(bool deterministic, bool on_gpu);

}  // namespace spillway
