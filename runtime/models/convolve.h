/// Convolution of volumes, with a workaround for a defect of oneDNN.
#pragma once
#include <torch/nn/modules/conv.h>

namespace spillway::runtime {

/// Returns conv->forward(x). It computes under autocast too, except where x is two voxels deep: there it computes in
/// float32. The reason is that the bfloat16 gradient of the weight in oneDNN 3.10.2 (LibTorch 2.11) reads uninitialized
/// memory. Its result is then different in every run, or NaN. This was seen with kernels 3³, stride 1 and 16 channels
/// or more.
at::Tensor convolve(torch::nn::Conv3d& conv, const at::Tensor& x);

}  // namespace spillway::runtime
