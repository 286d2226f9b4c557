// Gradients of convolutions.
#include <ATen/ATen.h>

#include <array>
#include <optional>

#include "swap/windows/convolution.h"

namespace spillway::swap {
namespace {

/// Positions of arguments.
enum : size_t { kGradOutput = 0, kInput = 1, kWeight = 2, kPadding = 5, kOutputMask = 10, kArguments = 11 };
/// The gradients that are asked for, and positions of results.
enum : size_t { kInputGradient = 0, kWeightGradient = 1, kBiasGradient = 2 };
using Mask = std::array<bool, 3>;

void add(at::Tensor& sum, const at::Tensor& part) {
  if (!sum.defined())
    sum = part;
  else
    sum.add_(part);
}

Mask mask_of(OperatorArguments arguments) {
  const c10::List<bool> list = arguments[kOutputMask].toBoolList();
  return {list.get(0), list.get(1), list.get(2)};
}

/// Computes the gradient of the weight and that of the input, one after the other, sample by sample. LibTorch's kernel
/// computes them apart too, so for one sample the bits are the whole operator's.
class WeightThenInputPlan final : public WindowPlan {
 public:
  WeightThenInputPlan(at::Tensor input, at::Tensor grad_output, Mask mask)
      : input_(std::move(input)), grad_output_(std::move(grad_output)), mask_(mask) {
    argument_uses.assign(kArguments, ArgumentUse::whole);
    argument_uses[kGradOutput] = ArgumentUse::windows;
    argument_uses[kInput] = mask[kWeightGradient] ? ArgumentUse::windows : ArgumentUse::nothing;
  }

  /// Computes the weight's gradient first: it is small, and the input's need not wait for it on the device.
  std::vector<at::Tensor> run(WindowCall& call) override {
    std::vector<at::Tensor> results(3);
    const int64_t samples = input_.size(0);
    for (int64_t sample = 0; sample < samples && (mask_[kWeightGradient] || mask_[kBiasGradient]); ++sample) {
      const auto part = kernel(call, sample, {false, mask_[kWeightGradient], mask_[kBiasGradient]});
      for (size_t r : {kWeightGradient, kBiasGradient}) add(results[r], part[r]);
    }
    for (int64_t sample = 0; sample < samples && mask_[kInputGradient]; ++sample)
      write(call, results[kInputGradient], sample, kernel(call, sample, {true, false, false})[kInputGradient]);
    return results;
  }

 private:
  std::vector<at::Tensor> kernel(WindowCall& call, int64_t sample, Mask mask) const {
    return call.attempt([&] {
      std::vector<c10::IValue> window = call.arguments().vec();
      window[kGradOutput] = call.read(grad_output_.narrow(0, sample, 1));
      const at::Tensor input = input_.narrow(0, sample, 1);
      window[kInput] = mask[kWeightGradient] ? call.read(input) : shape_only_tensor(input);
      window[kOutputMask] = c10::List<bool>({mask[0], mask[1], mask[2]});
      return call.kernel(std::move(window));
    });
  }

  void write(WindowCall& call, at::Tensor& result, int64_t sample, const at::Tensor& part) const {
    if (input_.size(0) == 1) {
      result = part;
      return;
    }
    if (!result.defined())
      result = call.output(kInputGradient, input_.sizes(), part.suggest_memory_format(), part.scalar_type());
    call.write(result.narrow(0, sample, 1), part);
  }

  const at::Tensor input_, grad_output_;
  const Mask mask_;
};

/// Returns the bytes that the kernel holds when it makes gradients from tensors of `tensors_bytes`. With fewer input
/// channels than a block of oneDNN's layouts, the kernel gets the weight's gradient from matrix products. These need
/// scratch of three times the output's gradient (measured, oneDNN 3.10).
int64_t footprint_bytes(const Convolution& convolution, int64_t tensors_bytes, int64_t grad_bytes, Mask mask) {
  constexpr int64_t kChannelBlock = 16;
  const int64_t bytes = convolution.footprint_bytes(tensors_bytes);
  const bool multiplies = mask[kWeightGradient] && convolution.suits_one_dnn() &&
                          convolution.input.size(1) / convolution.groups < kChannelBlock;
  return multiplies ? std::max(bytes, tensors_bytes + 3 * grad_bytes) : bytes;
}

/// True when each half of one sample's gradients is small enough, and takes the kernel that the whole would.
bool halves_fit(const Convolution& convolution, const at::Tensor& grad_output, Mask mask, const WindowSizes& sizes) {
  const at::Tensor& input = convolution.input;
  if (convolution.transposed || !convolution.suits_one_dnn()) return false;
  if (!convolution.suits_one_dnn(1, input.size(1), input.size(2))) return false;
  const int64_t grad_bytes = static_cast<int64_t>(grad_output.nbytes()) / input.size(0);
  const int64_t tensors_bytes = static_cast<int64_t>(input.nbytes()) / input.size(0) + grad_bytes;
  return footprint_bytes(convolution, tensors_bytes, grad_bytes, mask) <= sizes.split_bytes;
}

/// Computes the gradients slices by slices. Each window of the output's gradient gives a part of the weight's and the
/// bias's gradient. It also gives a part of the input's gradient, for the slices that it reaches. Where the input's
/// parts of neighboring windows overlap, they are added.
class SlicesPlan final : public ConvolutionPlan {
 public:
  SlicesPlan(Convolution convolution, Tiling cut, at::Tensor grad_output, bool reads_input)
      : ConvolutionPlan(std::move(convolution), std::move(cut)),
        grad_output_(std::move(grad_output)),
        reads_input_(reads_input) {
    argument_uses.assign(kArguments, ArgumentUse::whole);
    argument_uses[kGradOutput] = ArgumentUse::windows;
    argument_uses[kInput] = reads_input ? ArgumentUse::windows : ArgumentUse::nothing;
  }

  std::vector<at::Tensor> run(WindowCall& call) override {
    std::vector<at::Tensor> results(3);
    for (const Range& samples : cut_.samples) {
      at::Tensor overlap;
      for (const Range& slices : cut_.slices) {
        std::vector<at::Tensor> windows = call.attempt([&] { return call.kernel(arguments(call, samples, slices)); });
        for (size_t r : {kWeightGradient, kBiasGradient}) add(results[r], windows[r]);
        if (windows[kInputGradient].defined())
          write_input_gradient(call, results[kInputGradient], windows[kInputGradient], samples, slices, overlap);
      }
    }
    return results;
  }

 private:
  std::vector<c10::IValue> arguments(WindowCall& call, const Range& samples, const Range& slices) const {
    std::vector<c10::IValue> window = call.arguments().vec();
    window[kGradOutput] =
        call.read(grad_output_.narrow(0, samples.begin, samples.size).narrow(2, slices.begin, slices.size));
    window[kInput] = input_window(call, samples, slices_of(slices), reads_input_);
    window[kPadding] = window_padding();
    return window;
  }

  void write_input_gradient(WindowCall& call, at::Tensor& result, const at::Tensor& window, const Range& samples,
                            const Range& range, at::Tensor& overlap) const {
    const at::Tensor& input = convolution_.input;
    if (!result.defined()) result = call.output(0, input.sizes(), window.suggest_memory_format(), window.scalar_type());
    const InputSlab slices = slices_of(range);
    if (overlap.defined()) window.narrow(2, 0, overlap.size(2)).add_(overlap);
    const bool last = &range == &cut_.slices.back();
    const int64_t next = last ? slices.end : slices_of(*(&range + 1)).begin;
    const int64_t begin = std::max<int64_t>(0, slices.begin), end = std::min(next, input.size(2));
    if (end > begin)
      call.write(result.narrow(0, samples.begin, samples.size).narrow(2, begin, end - begin),
                 window.narrow(2, begin - slices.begin, end - begin));
    overlap = next < slices.end ? window.narrow(2, next - slices.begin, slices.end - next).clone() : at::Tensor();
  }

  const at::Tensor grad_output_;
  const bool reads_input_;
};

}  // namespace

std::unique_ptr<WindowPlan> split_convolution_backward(OperatorArguments arguments, const WindowSizes& sizes) {
  Convolution convolution(arguments, kInput, 4);
  const at::Tensor grad_output = tensor_or_undefined(arguments[kGradOutput]);
  if (!is_convolution_layout(convolution.input) || !is_plain_tensor(convolution.weight) ||
      !is_convolution_layout(grad_output))
    return nullptr;
  const Mask mask = mask_of(arguments);
  const int64_t input_bytes = convolution.input.nbytes();
  const int64_t grad_bytes = grad_output.nbytes();
  const int64_t tensors_bytes = grad_bytes + input_bytes * (mask[kInputGradient] ? 2 : 1);
  const int64_t footprint = footprint_bytes(convolution, tensors_bytes, grad_bytes, mask);
  if (footprint <= sizes.split_bytes) return nullptr;
  std::optional<Tiling> pieces = cut(convolution, footprint, sizes);
  if ((!pieces || pieces->slices.size() > 1) && halves_fit(convolution, grad_output, mask, sizes))
    return std::make_unique<WeightThenInputPlan>(convolution.input, grad_output, mask);
  if (!pieces) return nullptr;
  return std::make_unique<SlicesPlan>(std::move(convolution), std::move(*pieces), grad_output, mask[kWeightGradient]);
}

}  // namespace spillway::swap
