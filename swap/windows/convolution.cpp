// Convolutions, cut into samples, and where one sample is too large, slices along the first spatial dimension.
#include "swap/windows/convolution.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

namespace spillway::swap {
namespace {

/// The size above which LibTorch takes oneDNN for one sample: the product of its first four sizes (use_mkldnn in
/// aten/src/ATen/native/Convolution.cpp). Below it, LibTorch unfolds the input, which is slower and needs many times
/// the memory.
constexpr int64_t kSmallForOneDnn = 20480;
/// The minimum of slices in a window, because thinner windows would read the slices around them more often than their
/// own.
constexpr int64_t kMinSlices = 4;

int64_t at_dimension(const std::vector<int64_t>& values, size_t d) {
  return values.size() == 1 ? values[0] : values[d];
}

}  // namespace

Convolution::Convolution(OperatorArguments a, size_t input_index, size_t first)
    : input(a[input_index].toTensor()),
      weight(a[input_index + 1].toTensor()),
      stride(a[first].toIntVector()),
      padding(a[first + 1].toIntVector()),
      dilation(a[first + 2].toIntVector()),
      output_padding(a[first + 4].toIntVector()),
      transposed(a[first + 3].toBool()),
      groups(a[first + 5].toInt()) {}

int64_t Convolution::reach(size_t d) const {
  return (weight.size(d + 2) - 1) * at_dimension(dilation, d) + 1;
}

int64_t Convolution::output_size(size_t d) const {
  const int64_t size = input.size(d + 2), p = at_dimension(padding, d);
  const int64_t s = at_dimension(stride, d);
  if (transposed) return (size - 1) * s - 2 * p + reach(d) + at_dimension(output_padding, d);
  return (size + 2 * p - reach(d)) / s + 1;
}

std::vector<int64_t> Convolution::output_sizes() const {
  std::vector<int64_t> sizes{input.size(0), transposed ? groups * weight.size(1) : weight.size(0)};
  for (int64_t d = 0; d + 2 < input.dim(); ++d) sizes.push_back(output_size(d));
  return sizes;
}

bool Convolution::is_pointwise() const {
  const auto all_one = [](const std::vector<int64_t>& numbers) {
    return std::all_of(numbers.begin(), numbers.end(), [](int64_t number) { return number == 1; });
  };
  return weight.size(-1) == 1 && weight.size(-2) == 1 && all_one(stride) && all_one(dilation);
}

bool Convolution::suits_one_dnn(int64_t samples, int64_t channels, int64_t size) const {
  // LibTorch's own kernel is a matrix product then, which one thread does faster.
  constexpr int64_t kManySamples = 16;
  if (is_pointwise() && samples < kManySamples && at::get_num_threads() == 1) return false;
  if (samples > 1 || groups > 1) return true;
  if (weight.dim() > 3 && weight.size(-1) > 3 && weight.size(-2) > 3) return true;
  return samples * channels * size * (input.dim() > 3 ? input.size(3) : 1) > kSmallForOneDnn;
}

int64_t Convolution::footprint_bytes(int64_t tensors_bytes) const {
  if (transposed || suits_one_dnn()) return 2 * tensors_bytes;
  int64_t taps = 1, voxels = 1;
  for (int64_t d = 2; d < input.dim(); ++d) {
    taps *= weight.size(d);
    voxels *= output_size(d - 2);
  }
  if (taps == 1) return tensors_bytes;
  return tensors_bytes + input.size(0) * weight.size(1) * taps * voxels * input.element_size();
}

bool is_convolution_layout(const at::Tensor& tensor) {
  return is_plain_tensor(tensor) && tensor.dim() >= 3 && tensor.dim() <= 5 &&
         tensor.is_contiguous(tensor.suggest_memory_format());
}

std::vector<Range> even_ranges(int64_t total, int64_t count) {
  std::vector<Range> all;
  for (int64_t i = 0; i < count; ++i) all.push_back({i * total / count, (i + 1) * total / count - i * total / count});
  return all;
}

std::optional<Tiling> cut(const Convolution& convolution, int64_t footprint_bytes, const WindowSizes& sizes) {
  const int64_t samples = convolution.input.size(0), slices = convolution.output_size(0);
  const int64_t channels = convolution.input.size(1), depth = convolution.input.size(2);
  if (footprint_bytes <= sizes.split_bytes) return std::nullopt;
  const bool one_dnn = convolution.suits_one_dnn();
  const int64_t sample_bytes = footprint_bytes / samples;
  // True when one sample takes the kernel that all samples take.
  const bool alike = !one_dnn || convolution.suits_one_dnn(1, channels, depth);
  if (sample_bytes <= sizes.split_bytes / 2 || convolution.transposed || !alike) {
    const int64_t step = std::max<int64_t>(alike ? 1 : 2, units_per_window(sizes.split_bytes / 2, sample_bytes));
    if (samples < 2 * step) return std::nullopt;
    return Tiling{even_ranges(samples, samples / step), {{0, slices}}};
  }
  int64_t step = std::max(kMinSlices, units_per_window(sizes.split_bytes / 2, sample_bytes / slices));
  const int64_t s = at_dimension(convolution.stride, 0);
  while (one_dnn && step < slices && !convolution.suits_one_dnn(1, channels, (step - 1) * s + convolution.reach()))
    ++step;
  const int64_t count = std::max<int64_t>(1, slices / step);
  if (samples * count == 1) return std::nullopt;
  return Tiling{even_ranges(samples, samples), even_ranges(slices, count)};
}

InputSlab ConvolutionPlan::slices_of(const Range& output) const {
  const int64_t s = at_dimension(convolution_.stride, 0), p = at_dimension(convolution_.padding, 0);
  const int64_t depth = convolution_.input.size(2);
  if (whole_depth()) return {0, depth};
  const int64_t next = (output.begin + output.size) * s - p;  // where the range after this one begins
  int64_t end = std::max(next - s + convolution_.reach(), next);
  if (&output == &cut_.slices.back()) end = std::max(next - s + convolution_.reach(), depth);
  return {output.begin * s - p, end};
}

at::Tensor ConvolutionPlan::input_window(WindowCall& call, const Range& samples, const InputSlab& slices,
                                         bool fill) const {
  const at::Tensor box = convolution_.input.narrow(0, samples.begin, samples.size);
  const int64_t begin = std::max<int64_t>(0, slices.begin), end = std::min(box.size(2), slices.end);
  if (fill && begin == slices.begin && end == slices.end) return call.read(box.narrow(2, begin, end - begin));
  std::vector<int64_t> sizes = box.sizes().vec();
  sizes[2] = slices.end - slices.begin;
  const at::MemoryFormat format = convolution_.input.suggest_memory_format();
  if (!fill) return shape_only_tensor(sizes, format, box.scalar_type(), box.device());
  at::Tensor window = at::empty(sizes, box.options().memory_format(format));
  window.narrow(2, 0, begin - slices.begin).zero_();
  window.narrow(2, end - slices.begin, slices.end - end).zero_();
  call.fill(window.narrow(2, begin - slices.begin, end - begin), box.narrow(2, begin, end - begin));
  return window;
}

c10::IValue ConvolutionPlan::window_padding() const {
  std::vector<int64_t> padding;
  for (int64_t d = 0; d + 2 < convolution_.input.dim(); ++d)
    padding.push_back(d == 0 && !whole_depth() ? 0 : at_dimension(convolution_.padding, d));
  return padding;
}

namespace {

class ForwardPlan final : public ConvolutionPlan {
 public:
  ForwardPlan(Convolution convolution, Tiling cut) : ConvolutionPlan(std::move(convolution), std::move(cut)) {
    argument_uses.assign(9, ArgumentUse::whole);
    argument_uses[0] = ArgumentUse::windows;
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

std::unique_ptr<WindowPlan> split_forward(OperatorArguments arguments, const WindowSizes& sizes) {
  Convolution convolution(arguments, 0, 3);
  if (!is_convolution_layout(convolution.input) || !is_plain_tensor(convolution.weight)) return nullptr;
  int64_t bytes = convolution.input.numel();
  bytes += c10::multiply_integers(convolution.output_sizes());
  bytes *= convolution.input.element_size();
  std::optional<Tiling> pieces = cut(convolution, convolution.footprint_bytes(bytes), sizes);
  if (!pieces) return nullptr;
  return std::make_unique<ForwardPlan>(std::move(convolution), std::move(*pieces));
}

}  // namespace

std::unique_ptr<WindowPlan> split_convolutions(const c10::OperatorHandle& op, OperatorArguments arguments,
                                               const WindowSizes& sizes) {
  return op.schema().name() == "aten::convolution" ? split_forward(arguments, sizes)
                                                   : split_convolution_backward(arguments, sizes);
}

}  // namespace spillway::swap
