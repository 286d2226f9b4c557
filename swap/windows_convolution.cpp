// Convolutions: samples, and where one sample is too large, slices along the first spatial dimension.
#include <ATen/ATen.h>

#include <array>
#include <optional>

#include "swap/window_call.h"
#include "swap/windows_layout.h"

namespace spillway {
namespace {

/// LibTorch takes oneDNN for one sample only if the product of its first four sizes exceeds this (use_mkldnn in
/// aten/src/ATen/native/Convolution.cpp); below, it unfolds the input, which is slower and needs many times the memory.
constexpr int64_t kSmallForOneDnn = 20480;
/// Thinner windows would read the slices around them more often than their own.
constexpr int64_t kFewestSlices = 4;

int64_t at_dimension(const std::vector<int64_t>& values, size_t d) {
  return values.size() == 1 ? values[0] : values[d];
}

/// One convolution's arguments. o = (i + 2p − k') / s + 1 with k' = (k − 1)·dilation + 1; dimension 0 is the one that
/// is cut into slices.
struct Convolution {
  at::Tensor input, weight;
  std::vector<int64_t> stride, padding, dilation, output_padding;
  bool transposed;
  int64_t groups;

  /// `first`: the position of `stride` among the arguments.
  Convolution(OperatorArguments a, size_t input_index, size_t first)
      : input(a[input_index].toTensor()),
        weight(a[input_index + 1].toTensor()),
        stride(a[first].toIntVector()),
        padding(a[first + 1].toIntVector()),
        dilation(a[first + 2].toIntVector()),
        output_padding(a[first + 4].toIntVector()),
        transposed(a[first + 3].toBool()),
        groups(a[first + 5].toInt()) {}

  int64_t reach(size_t d = 0) const {
    return (weight.size(static_cast<int64_t>(d) + 2) - 1) * at_dimension(dilation, d) + 1;
  }
  int64_t output_size(size_t d) const {
    const int64_t size = input.size(static_cast<int64_t>(d) + 2), p = at_dimension(padding, d);
    const int64_t s = at_dimension(stride, d);
    if (transposed) return (size - 1) * s - 2 * p + reach(d) + at_dimension(output_padding, d);
    return (size + 2 * p - reach(d)) / s + 1;
  }
  std::vector<int64_t> output_sizes() const {
    std::vector<int64_t> sizes{input.size(0), transposed ? groups * weight.size(1) : weight.size(0)};
    for (size_t d = 0; static_cast<int64_t>(d) + 2 < input.dim(); ++d) sizes.push_back(output_size(d));
    return sizes;
  }
  /// Whether LibTorch would take oneDNN for `samples` samples whose first spatial size is `size`.
  bool suits_one_dnn(int64_t samples, int64_t size) const {
    if (samples > 1 || groups > 1) return true;
    if (weight.dim() > 3 && weight.size(-1) > 3 && weight.size(-2) > 3) return true;
    return samples * input.size(1) * size * (input.dim() > 3 ? input.size(3) : 1) > kSmallForOneDnn;
  }
};

bool is_convolution_layout(const at::Tensor& tensor) {
  return is_plain_tensor(tensor) && tensor.dim() >= 3 && tensor.dim() <= 5 &&
         tensor.is_contiguous(tensor.suggest_memory_format());
}

/// How a convolution is cut: ranges of samples, and of the output's slices.
struct Cut {
  std::vector<Range> samples, slices;
};

/// Ranges of nearly equal size.
std::vector<Range> even_ranges(int64_t total, int64_t count) {
  std::vector<Range> all;
  for (int64_t i = 0; i < count; ++i) all.push_back({i * total / count, (i + 1) * total / count - i * total / count});
  return all;
}

/// nullopt: the convolution is small, or cannot be cut. `tensors_bytes`: of all large tensors.
std::optional<Cut> cut(const Convolution& convolution, int64_t tensors_bytes, const WindowSizes& sizes) {
  const int64_t samples = convolution.input.size(0), slices = convolution.output_size(0);
  const int64_t depth = convolution.input.size(2);
  const bool one_dnn = convolution.suits_one_dnn(samples, depth);
  if (!one_dnn && !convolution.transposed) {  // the unfolded input
    int64_t taps = 1, voxels = 1;
    for (int64_t d = 2; d < convolution.input.dim(); ++d) {
      taps *= convolution.weight.size(d);
      voxels *= convolution.output_size(static_cast<size_t>(d - 2));
    }
    if (taps > 1)
      tensors_bytes += samples * convolution.weight.size(1) * taps * voxels * convolution.input.element_size();
  }
  if (tensors_bytes <= sizes.split_bytes) return std::nullopt;
  const int64_t sample_bytes = tensors_bytes / samples;
  const bool alike = !one_dnn || convolution.suits_one_dnn(1, depth);  // one sample takes the kernel that all take
  if (sample_bytes <= sizes.window_bytes() || convolution.transposed || !alike) {
    const int64_t step = std::max<int64_t>(alike ? 1 : 2, units_per_window(sizes.window_bytes(), sample_bytes));
    if (samples < 2 * step) return std::nullopt;
    return Cut{even_ranges(samples, samples / step), {{0, slices}}};
  }
  int64_t step = std::max(kFewestSlices, units_per_window(sizes.window_bytes(), sample_bytes / slices));
  const int64_t s = at_dimension(convolution.stride, 0);
  while (one_dnn && step < slices && !convolution.suits_one_dnn(1, (step - 1) * s + convolution.reach())) ++step;
  const int64_t count = std::max<int64_t>(1, slices / step);
  if (samples * count == 1) return std::nullopt;
  return Cut{even_ranges(samples, samples), even_ranges(slices, count)};
}

/// The input's slices [begin, end) that a range of the output's needs; outside the input they are zero.
struct Slices {
  int64_t begin, end;
};

class ConvolutionPlan : public WindowPlan {
 protected:
  ConvolutionPlan(Convolution convolution, Cut cut) : convolution_(std::move(convolution)), cut_(std::move(cut)) {}

  bool whole_depth() const { return cut_.slices.size() == 1; }

  Slices slices_of(const Range& output) const {
    const int64_t s = at_dimension(convolution_.stride, 0), p = at_dimension(convolution_.padding, 0);
    const int64_t depth = convolution_.input.size(2);
    if (whole_depth()) return {0, depth};
    const int64_t next = (output.begin + output.size) * s - p;  // where the range after this one begins
    int64_t end = std::max(next - s + convolution_.reach(), next);
    if (&output == &cut_.slices.back()) end = std::max(next - s + convolution_.reach(), depth);
    return {output.begin * s - p, end};
  }

  /// Samples and slices of the input. `fill` false: shape alone is needed.
  at::Tensor input_window(WindowCall& call, const Range& samples, const Slices& slices, bool fill) const {
    const at::Tensor box = convolution_.input.narrow(0, samples.begin, samples.size);
    const int64_t begin = std::max<int64_t>(0, slices.begin), end = std::min(box.size(2), slices.end);
    const at::Tensor inside = box.narrow(2, begin, end - begin);
    if (begin == slices.begin && end == slices.end) return fill ? call.read(inside) : call.shape(inside);
    std::vector<int64_t> sizes = box.sizes().vec();
    sizes[2] = slices.end - slices.begin;
    at::Tensor window = at::empty(sizes, box.options().memory_format(convolution_.input.suggest_memory_format()));
    if (!fill) return window;
    window.narrow(2, 0, begin - slices.begin).zero_();
    window.narrow(2, end - slices.begin, slices.end - end).zero_();
    call.fill(window.narrow(2, begin - slices.begin, end - begin), inside);
    return window;
  }

  c10::IValue window_padding() const {
    std::vector<int64_t> padding;
    for (size_t d = 0; static_cast<int64_t>(d) + 2 < convolution_.input.dim(); ++d)
      padding.push_back(d == 0 && !whole_depth() ? 0 : at_dimension(convolution_.padding, d));
    return padding;
  }

  const Convolution convolution_;
  const Cut cut_;
};

class ForwardPlan final : public ConvolutionPlan {
 public:
  ForwardPlan(Convolution convolution, Cut cut) : ConvolutionPlan(std::move(convolution), std::move(cut)) {
    touches.assign(9, Touch::whole);
    touches[0] = Touch::windows;
  }

  std::vector<at::Tensor> run(WindowCall& call) override {
    at::Tensor output;
    for (const Range& samples : cut_.samples)
      for (const Range& slices : cut_.slices) {
        const std::vector<at::Tensor> windows = call.attempt([&] {
          std::vector<c10::IValue> window = call.arguments().vec();
          window[0] = input_window(call, samples, slices_of(slices), /*fill=*/true);
          window[4] = window_padding();
          return call.kernel(std::move(window));
        });
        if (!output.defined())
          output =
              call.output(0, convolution_.output_sizes(), windows[0].suggest_memory_format(), windows[0].scalar_type());
        call.write(output.narrow(0, samples.begin, samples.size).narrow(2, slices.begin, slices.size), windows[0]);
      }
    return {output};
  }
};

/// Each window of the output's gradient gives a part of the weight's and the bias's gradient, and of the input's for
/// the slices that it reaches. Where those of neighbouring windows overlap, they are added.
class BackwardPlan final : public ConvolutionPlan {
 public:
  BackwardPlan(Convolution convolution, Cut cut, at::Tensor grad_output, bool reads_input)
      : ConvolutionPlan(std::move(convolution), std::move(cut)),
        grad_output_(std::move(grad_output)),
        reads_input_(reads_input) {
    touches.assign(11, Touch::whole);
    touches[0] = Touch::windows;
    touches[1] = reads_input ? Touch::windows : Touch::nothing;
  }

  std::vector<at::Tensor> run(WindowCall& call) override {
    std::vector<at::Tensor> results(3);
    for (const Range& samples : cut_.samples) {
      at::Tensor overlap;
      for (const Range& slices : cut_.slices) {
        std::vector<at::Tensor> windows = call.attempt([&] { return call.kernel(arguments(call, samples, slices)); });
        for (size_t r : {1, 2}) {
          if (!results[r].defined())
            results[r] = windows[r];
          else
            results[r].add_(windows[r]);
        }
        if (windows[0].defined()) write_input_gradient(call, results[0], windows[0], samples, slices, overlap);
      }
    }
    return results;
  }

 private:
  std::vector<c10::IValue> arguments(WindowCall& call, const Range& samples, const Range& slices) const {
    std::vector<c10::IValue> window = call.arguments().vec();
    window[0] = call.read(grad_output_.narrow(0, samples.begin, samples.size).narrow(2, slices.begin, slices.size));
    window[1] = input_window(call, samples, slices_of(slices), reads_input_);
    window[5] = window_padding();
    return window;
  }

  void write_input_gradient(WindowCall& call, at::Tensor& result, at::Tensor window, const Range& samples,
                            const Range& range, at::Tensor& overlap) const {
    const at::Tensor& input = convolution_.input;
    if (!result.defined()) result = call.output(0, input.sizes(), window.suggest_memory_format(), window.scalar_type());
    const Slices slices = slices_of(range);
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

std::unique_ptr<WindowPlan> split_forward(OperatorArguments arguments, const WindowSizes& sizes) {
  Convolution convolution(arguments, 0, 3);
  if (!is_convolution_layout(convolution.input) || !is_plain_tensor(convolution.weight)) return nullptr;
  int64_t bytes = convolution.input.numel();
  bytes += c10::multiply_integers(convolution.output_sizes());
  std::optional<Cut> pieces = cut(convolution, bytes * convolution.input.element_size(), sizes);
  if (!pieces) return nullptr;
  return std::make_unique<ForwardPlan>(std::move(convolution), std::move(*pieces));
}

std::unique_ptr<WindowPlan> split_backward(OperatorArguments arguments, const WindowSizes& sizes) {
  Convolution convolution(arguments, 1, 4);
  const at::Tensor grad_output = tensor_or_undefined(arguments[0]);
  if (!is_convolution_layout(convolution.input) || !is_plain_tensor(convolution.weight) ||
      !is_convolution_layout(grad_output))
    return nullptr;
  const c10::List<bool> mask = arguments[10].toBoolList();
  const int64_t input_bytes = static_cast<int64_t>(convolution.input.nbytes());
  const int64_t bytes = static_cast<int64_t>(grad_output.nbytes()) + input_bytes * (mask.get(0) ? 2 : 1);
  std::optional<Cut> pieces = cut(convolution, bytes, sizes);
  if (!pieces) return nullptr;
  return std::make_unique<BackwardPlan>(std::move(convolution), std::move(*pieces), grad_output, mask.get(1));
}

}  // namespace

std::unique_ptr<WindowPlan> split_convolutions(const c10::OperatorHandle& op, OperatorArguments arguments,
                                               const WindowSizes& sizes) {
  return op.schema().name() == "aten::convolution" ? split_forward(arguments, sizes) : split_backward(arguments, sizes);
}

}  // namespace spillway
