/// Convolutions that run in windows: their arguments, their cuts, and the code that forward and backward share.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "swap/windows/tensor_layout.h"
#include "swap/windows/window_call.h"

namespace spillway::swap {

/// The arguments of one convolution. o = (i + 2p − k') / s + 1 with k' = (k − 1)·dilation + 1; dimension 0 is the one
/// that is cut into slices.
struct Convolution {
  at::Tensor input, weight;
  std::vector<int64_t> stride, padding, dilation, output_padding;
  bool transposed;
  int64_t groups;

  /// Reads the arguments. `first` is the position of `stride` among them.
  Convolution(OperatorArguments arguments, size_t input_index, size_t first);

  /// Returns k' of spatial dimension d: how many elements of the input one of the output sees.
  int64_t reach(size_t d = 0) const;
  /// Returns o of spatial dimension d.
  int64_t output_size(size_t d) const;
  /// Returns the output's sizes: samples, channels and spatial dimensions.
  std::vector<int64_t> output_sizes() const;
  /// True when LibTorch would take oneDNN, with the threads that it uses now, for `samples` samples of `channels`
  /// channels whose first spatial size is `size`.
  bool suits_one_dnn(int64_t samples, int64_t channels, int64_t size) const;
  bool suits_one_dnn() const { return suits_one_dnn(input.size(0), input.size(1), input.size(2)); }
  /// True for a kernel of one element, without stride and dilation.
  bool is_pointwise() const;
  /// Returns the bytes that a kernel holds when it uses tensors of `tensors_bytes`. oneDNN also holds their copies in
  /// its own layouts; LibTorch's own kernel also holds the unfolded input.
  int64_t footprint_bytes(int64_t tensors_bytes) const;
};

/// The cut of a convolution: ranges of samples, and of the output's slices.
struct Tiling {
  std::vector<Range> samples, slices;
};

/// Cuts a convolution. Returns nullopt when it is small, or cannot be cut. `footprint_bytes` are the bytes that its
/// kernel holds.
std::optional<Tiling> cut(const Convolution& convolution, int64_t footprint_bytes, const WindowSizes& sizes);

/// Returns ranges of nearly equal size.
std::vector<Range> even_ranges(int64_t total, int64_t count);

/// The input's slices [begin, end) that a range of the output's needs; outside the input they are zero.
struct InputSlab {
  int64_t begin, end;
};

class ConvolutionPlan : public WindowPlan {
 protected:
  ConvolutionPlan(Convolution convolution, Tiling cut) : convolution_(std::move(convolution)), cut_(std::move(cut)) {}

  bool whole_depth() const { return cut_.slices.size() == 1; }
  InputSlab slices_of(const Range& output) const;
  /// Returns samples and slices of the input. `fill` false: shape alone is needed.
  at::Tensor input_window(WindowCall& call, const Range& samples, const InputSlab& slices, bool fill) const;
  c10::IValue window_padding() const;

  const Convolution convolution_;
  const Tiling cut_;
};

/// Plans aten::convolution_backward.
std::unique_ptr<WindowPlan> split_convolution_backward(OperatorArguments arguments, const WindowSizes& sizes);
/// True when windows can be cut of the tensor: 1 to 3 spatial dimensions, contiguous or channels-last.
bool is_convolution_layout(const at::Tensor& tensor);

}  // namespace spillway::swap
