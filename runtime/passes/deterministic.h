/// The choice of deterministic algorithms, which give the same bits in every run.
#pragma once

namespace spillway::runtime {

/// Makes LibTorch use deterministic algorithms alone when `deterministic` is true, and any algorithms otherwise. On a
/// GPU some operators have no deterministic algorithm: LibTorch warns, and bits may differ. Call it before the GPU is
/// first used, because cuBLAS reads its workspace's size from the environment. This function sets that size where it is
/// not set.
void use_deterministic_algorithms(bool deterministic, bool on_gpu);

}  // namespace spillway::runtime
