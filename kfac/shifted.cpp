#include "kfac/shifted.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <map>
#include <utility>
#include <vector>

namespace spillway::kfac {
namespace {

using Index = std::vector<int64_t>;

// Offset pairs κ ≤ κ' in row-major order; the others are their transposes.
struct Pair {
  int64_t first, second;  // flat κ and κ'
  Index offset;           // κ in input positions (times dilation)
  Index shift;            // δ in input positions
};

std::vector<Pair> pairs_of(const Geometry& geometry) {
  const auto dims = static_cast<int64_t>(geometry.dims());
  const auto unflatten = [&](int64_t flat) {
    Index index(geometry.dims());
    for (int64_t d = dims; d-- > 0;) {
      const auto i = static_cast<size_t>(d);
      index[i] = flat % geometry.kernel[i] * geometry.dilation[i];
      flat /= geometry.kernel[i];
    }
    return index;
  };
  std::vector<Pair> pairs;
  for (int64_t a = 0; a < geometry.kernel_volume(); ++a)
    for (int64_t b = a; b < geometry.kernel_volume(); ++b) {
      auto from = unflatten(a), shift = unflatten(b);
      for (size_t d = 0; d < shift.size(); ++d) shift[d] -= from[d];
      pairs.push_back({a, b, std::move(from), std::move(shift)});
    }
  return pairs;
}

// The u in [0, size) with u+shift in [0, size) that offset κ's window leaves out.
std::vector<int64_t> left_out(const Geometry& geometry, size_t d, int64_t size, int64_t offset, int64_t shift) {
  const int64_t low = std::max<int64_t>(0, -shift), high = std::min(size, size - shift);
  const int64_t begin = offset - geometry.padding[d], end = begin + geometry.output_size(d, size);
  std::vector<int64_t> planes;
  for (int64_t u = low; u < high; ++u)
    if (u < begin || u >= end) planes.push_back(u);
  return planes;
}

int64_t spatial(const at::Tensor& x, size_t d) {
  return x.size(static_cast<int64_t>(d) + 2);
}

// How far δ reaches along dimension d at most.
int64_t reach(const Geometry& geometry, size_t d) {
  return geometry.dilation[d] * (geometry.kernel[d] - 1);
}

// x [batch, channels, *spatial] with `reach` zeros behind every dimension, flat: the shift δ is one offset.
struct Flat {
  at::Tensor data;  // [batch or channels first as x, length + tail]
  int64_t length = 0;
  std::vector<int64_t> strides;  // of the spatial dimensions, in elements

  int64_t offset(const Index& shift) const {
    int64_t sum = 0;
    for (size_t d = 0; d < shift.size(); ++d) sum += shift[d] * strides[d];
    return sum;
  }
};

// Positions that Flat needs for one row of x: its planes [from, from+count) of the first spatial dimension.
int64_t flat_plane(const Geometry& geometry, const at::Tensor& x) {
  int64_t plane = 1;
  for (size_t d = 1; d < geometry.dims(); ++d) plane *= spatial(x, d) + reach(geometry, d);
  return plane;
}

// rows [rows, 1, *spatial] and planes [from, from+count) with the halo behind them.
Flat flatten(const at::Tensor& rows, const Geometry& geometry, int64_t from, int64_t count, at::ScalarType dtype) {
  const size_t dims = geometry.dims();
  Flat flat;
  flat.strides.assign(dims, 1);
  for (size_t d = dims - 1; d-- > 0;)
    flat.strides[d] = flat.strides[d + 1] * (spatial(rows, d + 1) + reach(geometry, d + 1));
  const int64_t planes = count + reach(geometry, 0);
  int64_t tail = 0;
  for (size_t d = 1; d < dims; ++d) tail += reach(geometry, d) * flat.strides[d];
  flat.length = count * flat.strides[0];
  flat.data = at::zeros({rows.size(0), planes * flat.strides[0] + tail}, rows.options().dtype(dtype));

  std::vector<int64_t> shape{rows.size(0), planes};
  for (size_t d = 1; d < dims; ++d) shape.push_back(spatial(rows, d) + reach(geometry, d));
  auto inside = flat.data.narrow(1, 0, planes * flat.strides[0]).view(shape);
  const int64_t real = std::min(planes, spatial(rows, 0) - from);
  inside = inside.narrow(1, 0, real);
  for (size_t d = 1; d < dims; ++d) inside = inside.narrow(static_cast<int64_t>(d) + 1, 0, spatial(rows, d));
  inside.copy_(rows.select(1, 0).narrow(1, from, real));
  return flat;
}

using Product = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;

double flops_of(const at::Tensor& rows) {
  return 2 * static_cast<double>(rows.size(0)) * static_cast<double>(rows.numel());
}

// S(δ | fixed planes); -1 stands for a dimension that is not fixed.
class BorderSums {
 public:
  BorderSums(const at::Tensor& x, at::ScalarType dtype, const Product& product)
      : x_(x), dtype_(dtype), product_(product) {}

  const at::Tensor& operator()(const Index& shift, const Index& fixed) {
    auto& sum = known_[{shift, fixed}];
    if (!sum.defined()) {
      const auto still = part(shift, fixed, false);
      sum = product_(still, part(shift, fixed, true));
      flops_ += (sum.size(0) == 1 ? 2 * static_cast<double>(still.numel()) : flops_of(still));
    }
    return sum;
  }
  double flops() const { return flops_; }

 private:
  // The fixed planes of x, [channels, batch, *spatial], copied once: planes across the memory order are slow to read.
  const at::Tensor& face(const Index& fixed) {
    auto& face = faces_[fixed];
    if (face.defined()) return face;
    face = x_;
    for (size_t d = 0; d < fixed.size(); ++d)
      if (fixed[d] >= 0) face = face.narrow(static_cast<int64_t>(d) + 2, fixed[d], 1);
    face = face.to(dtype_).transpose(0, 1).contiguous();
    return face;
  }

  // The positions u, or u+δ where `moved`, as columns: [channels, positions].
  at::Tensor part(const Index& shift, Index fixed, bool moved) {
    for (size_t d = 0; d < fixed.size(); ++d)
      if (moved && fixed[d] >= 0) fixed[d] += shift[d];
    auto part = face(fixed);
    for (size_t d = 0; d < shift.size(); ++d) {
      if (fixed[d] >= 0) continue;
      const int64_t count = std::max<int64_t>(0, spatial(x_, d) - std::abs(shift[d]));
      const int64_t low = std::max<int64_t>(0, moved ? shift[d] : -shift[d]);
      part = part.narrow(static_cast<int64_t>(d) + 2, count == 0 ? 0 : low, count);
    }
    return part.reshape({x_.size(1), -1});
  }

  const at::Tensor& x_;
  at::ScalarType dtype_;
  const Product& product_;
  double flops_ = 0;
  std::map<Index, at::Tensor> faces_;
  std::map<std::pair<Index, Index>, at::Tensor> known_;
};

// Calls take(fixed, sign) for every choice of left-out planes in a subset of the dimensions, the empty one excepted.
template <class Take>
void for_each_correction(const at::Tensor& x, const Geometry& geometry, const Pair& pair, const Take& take) {
  std::vector<std::vector<int64_t>> choices;
  for (size_t d = 0; d < geometry.dims(); ++d) {
    choices.push_back(left_out(geometry, d, spatial(x, d), pair.offset[d], pair.shift[d]));
    choices.back().push_back(-1);
  }
  Index fixed(geometry.dims(), -1);
  std::function<void(size_t, int)> choose = [&](size_t d, int sign) {
    if (d == geometry.dims()) {
      if (std::any_of(fixed.begin(), fixed.end(), [](int64_t u) { return u >= 0; })) take(fixed, sign);
      return;
    }
    for (int64_t u : choices[d]) {
      fixed[d] = u;
      choose(d + 1, u < 0 ? sign : -sign);
    }
  };
  choose(0, 1);
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

bool shifts_pay(const at::Tensor& input, const Geometry& geometry, bool summed_over_channels) {
  double terms = 1, shifts = 0.5, positions = static_cast<double>(input.size(0));
  for (size_t d = 0; d < geometry.dims(); ++d) {
    if (geometry.stride[d] != 1) return false;
    int64_t count = geometry.kernel[d] * geometry.kernel[d];
    for (int64_t a = 0; a < geometry.kernel[d]; ++a)
      for (int64_t b = 0; b < geometry.kernel[d]; ++b)
        count += static_cast<int64_t>(
            left_out(geometry, d, spatial(input, d), a * geometry.dilation[d], (b - a) * geometry.dilation[d]).size());
    terms *= static_cast<double>(count);
    shifts *= static_cast<double>(2 * geometry.kernel[d] - 1);
    positions *= static_cast<double>(spatial(input, d) + reach(geometry, d));
  }
  // Rough seconds on two cores: wide products 1e11 flop/s, narrow ones 3e10, copies 2e9 elements/s, 5 µs an operator.
  const auto channels = static_cast<double>(input.size(1)), volume = static_cast<double>(geometry.kernel_volume());
  const double square = summed_over_channels ? volume * volume * channels : channels * channels * volume * volume;
  const double block = summed_over_channels ? channels : channels * channels;
  const double calls = terms + shifts * static_cast<double>(input.size(0));
  return calls * 5e-6 + positions * shifts * 2 * block / 3e10 <
         positions * (2 * square / 1e11 + channels * volume / 2e9);
}

at::Tensor shifted_sums(const at::Tensor& input, const Geometry& geometry, at::ScalarType dtype) {
  // One dimension after the other becomes its kernel offsets.
  auto sums = input;
  for (size_t d = geometry.dims(); d-- > 0;) {
    const int64_t size = spatial(input, d), outputs = geometry.output_size(d, size);
    const auto dim = static_cast<int64_t>(d) + 2;
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
  const int64_t room = workspace_bytes / (channels * static_cast<int64_t>(sum.element_size()) * plane);
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

double add_shifted_dots(const at::Tensor& sum, const at::Tensor& input, const Geometry& geometry,
                        int64_t workspace_bytes) {
  // Rows are channels of samples; zeros behind each keep its shifts from the next.
  const auto rows = input.flatten(0, 1).unsqueeze(1);
  const int64_t row_bytes = (spatial(input, 0) + reach(geometry, 0) + 1) * flat_plane(geometry, input) *
                            static_cast<int64_t>(sum.element_size());
  const int64_t step = std::max<int64_t>(1, workspace_bytes / row_bytes);
  auto whole = zero_sums(geometry, {1, 1}, sum.options());
  double flops = 0;
  for (int64_t row = 0; row < rows.size(0); row += step) {
    const auto flat = flatten(rows.narrow(0, row, std::min(step, rows.size(0) - row)), geometry, 0, spatial(input, 0),
                              sum.scalar_type());
    const auto line = flat.data.flatten();
    flops += 2 * static_cast<double>(whole.size()) * static_cast<double>(line.numel());
    for (auto& [shift, product] : whole) {
      const int64_t offset = flat.offset(shift);
      product.add_(at::dot(line.narrow(0, 0, line.numel() - offset), line.narrow(0, offset, line.numel() - offset)));
    }
  }
  const Product inner = [](const at::Tensor& a, const at::Tensor& b) {
    return at::dot(a.flatten(), b.flatten()).view({1, 1});
  };
  return flops + add_blocks(input, geometry, sum.scalar_type(), whole, inner,
                            [&](int64_t a, int64_t b, const at::Tensor& block) {
                              sum.select(0, a).select(0, b).add_(block.squeeze());
                            });
}

}  // namespace spillway::kfac
