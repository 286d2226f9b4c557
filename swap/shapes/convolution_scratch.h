/// The scratch of convolutions on the CPU.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "swap/windows/convolution.h"

namespace spillway::swap {

/// Allocates the scratch of a convolution in the order of its kernels, then gives it back and returns the output.
///
/// oneDNN copies tensors into blocks of channels: the input, unless it has few channels, then the weight, the bias
/// where its channels are no whole block, and the output, which is copied back once the others are gone. For
/// channels-last tensors it copies the weight alone. LibTorch's own kernels unfold the input: a column of the kernel's
/// size for each output element.
at::Tensor allocate_output(const Convolution& convolution, bool channels_last, bool has_bias);

/// Allocates a convolution's gradients, with the scratch of the kernels that compute them; undefined where not
/// `wanted`. oneDNN computes the gradient of the input first, and the weight's and the bias's afterwards. Its threads
/// may sum the weight's gradient apart, so more copies of it are counted: one, and four for each thread where the
/// volume has an edge of two voxels; without AVX-512 one for each thread. There it multiplies matrices for the windows
/// of volumes, which takes four copies for each thread where there are several samples. The scratch is therefore an
/// upper bound; those of outputs and of LibTorch's own kernels are exact. A single thread without AVX-512 may take more
/// than the bound.
std::vector<at::Tensor> allocate_gradients(const Convolution& convolution, bool channels_last,
                                           const std::vector<bool>& wanted);

}  // namespace spillway::swap
