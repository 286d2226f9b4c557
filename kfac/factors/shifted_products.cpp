#include "kfac/factors/shifted_products.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <vector>

#include "kfac/factors/border_sums.h"

namespace spillway::kfac {
namespace {

double flops_of(const at::Tensor& rows) {
  return 2 * static_cast<double>(rows.size(0)) * static_cast<double>(rows.numel());
}

// Adds every pair's block, and its transpose at the mirrored place, through add(first, second, block). Returns the
// operations of the corrections.
template <class Add>
double add_blocks(const at::Tensor& x, const Geometry& geometry, at::ScalarType dtype,
                  const std::map<Index, at::Tensor>& whole, const Product& product, const Add& add) {
  BorderSums border(x, dtype, product);
  for (const auto& pair : pairs_of(geometry)) {
    auto block = whole.at(pair.shift).clone();
    for_each_correction(x, geometry, pair,
                        [&](const Index& fixed, int sign) { block.add_(border(pair.shift, fixed), sign); });
    add(pair.first, pair.second, block);
    if (pair.first != pair.second) add(pair.second, pair.first, block.t());
  }
  return border.flops();
}

std::map<Index, at::Tensor> zero_sums(const Geometry& geometry, at::IntArrayRef size, const at::TensorOptions& like) {
  std::map<Index, at::Tensor> sums;
  for (const auto& pair : pairs_of(geometry))
    if (!sums.contains(pair.shift)) sums[pair.shift] = at::zeros(size, like);
  return sums;
}

}  // namespace

bool prefers_shifts(const at::Tensor& input, const Geometry& geometry, bool summed_over_channels) {
  if (!input.is_cpu()) return false;
  double terms = 1, shifts = 0.5, positions = static_cast<double>(input.size(0));
  for (size_t d = 0; d < geometry.dims(); ++d) {
    if (geometry.stride[d] != 1) return false;
    int64_t count = geometry.kernel[d] * geometry.kernel[d];
    for (int64_t a = 0; a < geometry.kernel[d]; ++a)
      for (int64_t b = 0; b < geometry.kernel[d]; ++b)
        count += std::ssize(
            left_out(geometry, d, spatial(input, d), a * geometry.dilation[d], (b - a) * geometry.dilation[d]));
    terms *= static_cast<double>(count);
    shifts *= static_cast<double>(2 * geometry.kernel[d] - 1);
    positions *= static_cast<double>(spatial(input, d) + reach(geometry, d));
  }
  // Rough seconds on two cores: wide products 1e11 flop/s, narrow ones 5e10, copies 2e9 elements/s, 5 µs an operator.
  const auto channels = static_cast<double>(input.size(1)), volume = static_cast<double>(geometry.kernel_volume());
  const double square = summed_over_channels ? volume * volume * channels : channels * channels * volume * volume;
  // When summed over channels, one product gives all shifts of the last dimension, at about 20 columns for each of
  // them.
  const double last = static_cast<double>(2 * geometry.kernel.back() - 1);
  const double products = summed_over_channels ? shifts / last * 20 * channels : shifts * channels * channels;
  const double calls = terms + shifts * static_cast<double>(input.size(0));
  return calls * 5e-6 + positions * 2 * products / 5e10 < positions * (2 * square / 1e11 + channels * volume / 2e9);
}

at::Tensor shifted_sums(const at::Tensor& input, const Geometry& geometry, at::ScalarType dtype) {
  // One dimension after the other becomes its kernel offsets.
  auto sums = input;
  for (size_t d = geometry.dims(); d-- > 0;) {
    const int64_t size = spatial(input, d), outputs = geometry.output_size(d, size);
    const int64_t dim = d + 2;
    std::vector<at::Tensor> windows;
    for (int64_t k = 0; k < geometry.kernel[d]; ++k) {
      const int64_t begin = k * geometry.dilation[d] - geometry.padding[d];
      const int64_t low = std::clamp<int64_t>(begin, 0, size), high = std::clamp<int64_t>(begin + outputs, low, size);
      windows.push_back(sums.narrow(dim, low, high - low).sum(dim, false, dtype));
    }
    sums = at::stack(windows, dim);
  }
  return sums.sum(0).flatten();
}

double add_shifted_products(const at::Tensor& sum, const at::Tensor& input, const Geometry& geometry,
                            int64_t workspace_bytes) {
  const int64_t channels = input.size(1), plane = flat_plane(geometry, input);
  const int64_t room = workspace_bytes / (channels * sum.element_size() * plane);
  const int64_t step = std::max<int64_t>(1, room - reach(geometry, 0) - 1);
  auto whole = zero_sums(geometry, {channels, channels}, sum.options());
  double flops = 0;
  for (int64_t b = 0; b < input.size(0); ++b)
    for (int64_t from = 0; from < spatial(input, 0); from += step) {
      const int64_t count = std::min(step, spatial(input, 0) - from);
      const auto flat = flatten(input.select(0, b).unsqueeze(1), geometry, from, count, sum.scalar_type());
      const auto still = flat.data.narrow(1, 0, flat.length);
      for (auto& [shift, product] : whole)
        product.addmm_(still, flat.data.narrow(1, flat.offset(shift), flat.length).t());
      flops += static_cast<double>(whole.size()) * flops_of(still);
    }
  const Product outer = [](const at::Tensor& a, const at::Tensor& b) { return a.mm(b.t()); };
  return flops +
         add_blocks(input, geometry, sum.scalar_type(), whole, outer,
                    [&](int64_t a, int64_t b, const at::Tensor& block) { sum.select(1, a).select(2, b).add_(block); });
}

}  // namespace spillway::kfac
