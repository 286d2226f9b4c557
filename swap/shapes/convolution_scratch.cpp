#include "swap/shapes/convolution_scratch.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "core/bytes.h"

namespace spillway::swap {
namespace {

using Tensors = std::vector<at::Tensor>;

/// True where a vector register holds 16 floats (AVX-512).
bool has_long_registers() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f");
#else
  return false;
#endif
}

/// Returns the channels of oneDNN's blocks: as many floats as a vector register holds.
int64_t block_channels() {
#if defined(__x86_64__)
  return has_long_registers() ? 16 : 8;
#else
  return 4;
#endif
}

/// An upper bound of the scratch that oneDNN takes beside tensors.
constexpr int64_t kScratchpadFloats = 20 << 10;

bool has_stride(const Convolution& c) {
  return std::any_of(c.stride.begin(), c.stride.end(), [](int64_t stride) { return stride > 1; });
}

bool has_padding(const Convolution& c) {
  return std::any_of(c.padding.begin(), c.padding.end(), [](int64_t padding) { return padding > 0; });
}

int64_t padded(int64_t channels) {
  return round_up(channels, block_channels());
}

int64_t product(at::IntArrayRef sizes, size_t first) {
  int64_t all = 1;
  for (size_t d = first; d < sizes.size(); ++d) all *= sizes[d];
  return all;
}

/// The tensors of one convolution in oneDNN's formats.
class Blocked {
 public:
  Blocked(const Convolution& convolution, bool channels_last)
      : c_(convolution), options_(c_.input.options().requires_grad(false)), channels_last_(channels_last) {}

  /// Returns the input's copy; undefined where oneDNN reads the tensor itself.
  at::Tensor input() const {
    const bool is_small = c_.input.size(1) < block_channels() && product(c_.weight.sizes(), 2) > 1;
    return channels_last_ || is_small ? at::Tensor() : image(c_.input.sizes());
  }
  /// Returns an input that oneDNN writes.
  at::Tensor input_gradient() const { return channels_last_ ? at::Tensor() : image(c_.input.sizes()); }
  /// Returns the elements that a strided kernel of one tap reads, for each thread; undefined for other kernels.
  at::Tensor thinned_inputs() const {
    if (c_.transposed || !has_stride(c_) || product(c_.weight.sizes(), 2) > 1) return {};
    constexpr int64_t kHeader = 32;
    return at::empty({at::get_num_threads() * padded(c_.input.size(1)) * product(c_.output_sizes(), 2) + kHeader},
                     options_);
  }
  at::Tensor output() const { return channels_last_ ? at::Tensor() : image(c_.output_sizes()); }
  /// Returns the weight that the forward kernel reads.
  at::Tensor weight() const {
    const auto sizes = c_.weight.sizes();
    const int64_t in = sizes[1] < block_channels() && product(sizes, 2) > 1 ? sizes[1] : padded(sizes[1]);
    return at::empty({padded(sizes[0]) * in * product(sizes, 2)}, options_);
  }
  /// Returns the weight with whole blocks of both kinds of channels.
  at::Tensor whole_weight() const {
    const auto sizes = c_.weight.sizes();
    return at::empty({padded(sizes[0]) * padded(sizes[1]) * product(sizes, 2)}, options_);
  }
  at::Tensor bias() const { return at::empty({padded(c_.output_sizes()[1])}, options_); }
  bool pads_bias() const { return c_.output_sizes()[1] % block_channels() != 0; }

 private:
  at::Tensor image(at::IntArrayRef sizes) const {
    return at::empty({sizes[0] * padded(sizes[1]) * product(sizes, 2)}, options_);
  }

  const Convolution& c_;
  const at::TensorOptions options_;
  const bool channels_last_;
};

at::MemoryFormat format_of(const Convolution& c, bool channels_last) {
  if (!channels_last) return at::MemoryFormat::Contiguous;
  return c.input.dim() == 5 ? at::MemoryFormat::ChannelsLast3d : at::MemoryFormat::ChannelsLast;
}

at::Tensor make_output(const Convolution& c, bool channels_last) {
  return at::empty(c.output_sizes(), c.input.options().requires_grad(false).memory_format(format_of(c, channels_last)));
}

int64_t elements(const Convolution& c) {
  return product(c.output_sizes(), 2);
}

/// Returns the columns of the input, or of a transposed convolution's output; undefined where they are the input.
at::Tensor columns(const Convolution& c) {
  const int64_t taps = product(c.weight.sizes(), 2);
  if (taps == 1 && !has_stride(c) && !has_padding(c)) return {};
  const int64_t count = c.transposed ? product(c.input.sizes(), 2) : elements(c);
  return at::empty({c.input.size(0), c.weight.size(1) * taps, count}, c.input.options().requires_grad(false));
}

at::Tensor unfold_forward(const Convolution& c, bool channels_last, bool has_bias) {
  at::Tensor output = make_output(c, channels_last);
  Tensors scratch{columns(c)};
  if (c.transposed && has_bias) scratch.push_back(at::empty({elements(c)}, c.input.options().requires_grad(false)));
  return output;
}

Tensors unfold_backward(const Convolution& c, const std::vector<bool>& wanted) {
  const auto options = c.input.options().requires_grad(false);
  Tensors gradients(3);
  if (wanted[0]) {
    gradients[0] = at::empty_like(c.input, options);
    at::Tensor scratch = columns(c);
    if (!scratch.defined() && c.input.dim() == 5) scratch = at::empty_like(c.input, options);
  }
  if (wanted[1]) gradients[1] = at::empty_like(c.weight, options);
  if (wanted[2]) gradients[2] = at::empty({c.output_sizes()[1]}, options);
  if (wanted[1]) const at::Tensor scratch = columns(c);
  return gradients;
}

/// Allocates what oneDNN's threads hold while they sum the gradient of the weight: with AVX-512 a copy of it, and for
/// tiny volumes, of which it takes another kernel, four copies for each thread. Without AVX-512 a copy for each thread.
Tensors scratch_of_threads(const Convolution& c, const Blocked& blocked) {
  constexpr int64_t kTiny = 2;
  constexpr int64_t kTinyFloats = 1 << 15, kShortFloats = 6 << 10;
  const bool is_long = has_long_registers();
  const bool is_tiny = is_long && c.input.dim() == 5 && c.input.size(-1) <= kTiny && c.weight.size(-1) > 1;
  const int64_t floats = is_long ? kScratchpadFloats + (is_tiny ? kTinyFloats : 0) : kShortFloats;
  const int64_t copies_of_thread = is_tiny ? 4 : 1, threads = is_long && !is_tiny ? 1 : at::get_num_threads();
  Tensors scratch{blocked.thinned_inputs(), at::empty({floats}, c.input.options().requires_grad(false))};
  for (int64_t i = 0; i < copies_of_thread * threads; ++i) scratch.push_back(blocked.weight());
  return scratch;
}

/// True where oneDNN multiplies matrices for the gradient of the weight: processors without AVX-512 have no kernel of
/// its own for windows of volumes, and none for tiny images.
bool multiplies_for_weight(const Convolution& c) {
  const bool has_taps = product(c.weight.sizes(), 2) > 1;
  const bool is_tiny_image = c.input.dim() == 4 && c.input.size(-1) <= 2;
  return !has_long_registers() && has_taps && (c.input.dim() == 5 || is_tiny_image);
}

/// Allocates what such a product holds beside the gradient: for each thread the columns of one plane, and with several
/// samples four copies of the gradient.
Tensors scratch_of_product(const Convolution& c) {
  const auto options = c.input.options().requires_grad(false);
  const int64_t plane = product(c.output_sizes(), c.input.dim() - 2), threads = at::get_num_threads();
  constexpr int64_t kAlignmentFloats = 64;
  const int64_t columns = threads * c.weight.size(1) * product(c.weight.sizes(), 2) * plane;
  Tensors scratch{at::empty({columns + kAlignmentFloats}, options)};
  if (c.input.size(0) > 1) scratch.push_back(at::empty({4 * threads * c.weight.numel()}, options));
  return scratch;
}

/// Allocates the gradients of weight and bias. A product writes them as they are; other kernels write blocks.
void allocate_weight_gradients(const Convolution& c, const Blocked& blocked, const std::vector<bool>& wanted,
                               Tensors& gradients) {
  const auto options = c.input.options().requires_grad(false);
  const auto allocate = [&] {
    if (wanted[1]) gradients[1] = at::empty_like(c.weight, options);
    if (wanted[2]) gradients[2] = at::empty({c.output_sizes()[1]}, options);
  };
  if (multiplies_for_weight(c)) {
    allocate();
    const Tensors scratch = scratch_of_product(c);
    return;
  }
  at::Tensor weight, bias;
  {
    const Tensors scratch{blocked.input(), blocked.output()};
    weight = blocked.weight();
    bias = blocked.bias();
    const Tensors of_threads = scratch_of_threads(c, blocked);
  }
  allocate();
}

}  // namespace

at::Tensor allocate_output(const Convolution& c, bool channels_last, bool has_bias) {
  if (!c.suits_one_dnn()) return unfold_forward(c, channels_last, has_bias);
  const Blocked blocked(c, channels_last);
  at::Tensor output;
  {
    const at::Tensor input = blocked.input(), weight = blocked.weight();
    at::Tensor bias, filled;
    if (has_bias && blocked.pads_bias()) bias = blocked.bias(), filled = at::empty({1}, bias.options());
    const at::Tensor thinned = blocked.thinned_inputs();
    output = channels_last ? make_output(c, true) : blocked.output();
  }
  if (channels_last) return output;
  // A transposed convolution, the gradient of a convolution with a stride, is copied twice.
  const at::Tensor copy = c.transposed ? blocked.output() : at::Tensor();
  return make_output(c, false);
}

Tensors allocate_gradients(const Convolution& c, bool channels_last, const std::vector<bool>& wanted) {
  if (!c.suits_one_dnn()) return unfold_backward(c, wanted);
  const Blocked blocked(c, channels_last);
  const auto options = c.input.options().requires_grad(false);
  Tensors gradients(3);
  if (wanted[0]) {
    at::Tensor gradient;
    {
      const Tensors scratch{blocked.output(), blocked.whole_weight()};
      gradient = blocked.input_gradient();
    }
    const at::Tensor copy = has_stride(c) && !c.transposed ? blocked.input_gradient() : at::Tensor();
    gradients[0] = at::empty_like(c.input, options);
  }
  if (wanted[1] || wanted[2]) allocate_weight_gradients(c, blocked, wanted, gradients);
  return gradients;
}

}  // namespace spillway::swap
