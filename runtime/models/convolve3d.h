/// Convolution of volumes, around a defect.
#pragma once
#include <torch/nn/modules/conv.h>

namespace spillway {

/// conv->forward(x). Under autocast too, except where x is two voxels deep: there it computes in float32, because the
/// bfloat16 gradient of the weight in oneDNN 3.10.2 (LibTorch 2.11) reads memory that nobody wrote; its result is then
/// different in every run, or no number. Seen with kernels 3³, stride 1 and 16 channels or more.
at::Tensor convolve(torch::nn::Conv3d& conv, const at::Tensor& x);

}  // namespace spillway
