/// Convolutions that run in windows: what one is, how it is cut, and what forward and backward share.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "swap/windows/tensor_layout.h"
#include "swap/windows/window_call.h"

namespace spillway {

/// One convolution's arguments. o = (i + 2p − k') / s + 1 with k' = (k − 1)·dilation + 1; dimension 0 is the one that
/// is cut into slices.
struct Convolution {
  at::Tensor input, weight;
  std::vector<int64_t> stride, padding, dilation, output_padding;
  bool transposed;
  int64_t groups;

  /// `first`: the position of `stride` among the arguments.
  Convolution(OperatorArguments arguments, size_t input_index, size_t first);

  /// k' of spatial dimension d: how many elements of the input one of the output sees.
  int64_t reach(size_t d = 0) const;
  /// o of spatial dimension d.
  int64_t output_size(size_t d) const;
  /// Of samples, channels and spatial dimensions.
  std::vector<int64_t> output_sizes() const;
  /// Whether LibTorch would take oneDNN for `samples` samples of `channels` channels whose first spatial size is
  /// `size`.
  bool suits_one_dnn(int64_t samples, int64_t channels, int64_t size) const;
  bool suits_one_dnn() const { return suits_one_dnn(input.size(0), input.size(1), input.size(2)); }
  /// What a kernel that uses tensors of `tensors_bytes` holds: oneDNN their copies in its own layouts too, LibTorch's
  /// own kernel the unfolded input.
  int64_t footprint_bytes(int64_t tensors_bytes) const;
};

/// How a convolution is cut: ranges of samples, and of the output's slices.
struct Cut {
  std::vector<Range> samples, slices;
};

/// nullopt: the convolution is small, or cannot be cut. `footprint_bytes`: what its kernel holds.
std::optional<Cut> cut(const Convolution& convolution, int64_t footprint_bytes, const WindowSizes& sizes);

/// Ranges of nearly equal size.
std::vector<Range> even_ranges(int64_t total, int64_t count);

/// The input's slices [begin, end) that a range of the output's needs; outside the input they are zero.
struct Slices {
  int64_t begin, end;
};

class ConvolutionPlan : public WindowPlan {
 protected:
  ConvolutionPlan(Convolution convolution, Cut cut) : convolution_(std::move(convolution)), cut_(std::move(cut)) {}

  bool whole_depth() const { return cut_.slices.size() == 1; }
  Slices slices_of(const Range& output) const;
  /// Samples and slices of the input. `fill` false: shape alone is needed.
  at::Tensor input_window(WindowCall& call, const Range& samples, const Slices& slices, bool fill) const;
  c10::IValue window_padding() const;

  const Convolution convolution_;
  const Cut cut_;
};

/// The rule for aten::convolution_backward.
std::unique_ptr<WindowPlan> split_convolution_backward(OperatorArguments arguments, const WindowSizes& sizes);
/// Whether windows can be cut of it: 1 to 3 spatial dimensions, contiguous or channels-last.
bool is_convolution_layout(const at::Tensor& tensor);

}  // namespace spillway
