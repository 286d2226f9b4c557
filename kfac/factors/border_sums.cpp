#include "kfac/factors/border_sums.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdlib>

namespace spillway::kfac {

std::vector<Pair> pairs_of(const Geometry& geometry) {
  const auto unflatten = [&](int64_t flat) {
    Index index(geometry.dims());
    for (size_t d = geometry.dims(); d-- > 0;) {
      index[d] = flat % geometry.kernel[d] * geometry.dilation[d];
      flat /= geometry.kernel[d];
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

std::vector<int64_t> left_out(const Geometry& geometry, size_t d, int64_t size, int64_t offset, int64_t shift) {
  const int64_t low = std::max<int64_t>(0, -shift), high = std::min(size, size - shift);
  const int64_t begin = offset - geometry.padding[d], end = begin + geometry.output_size(d, size);
  std::vector<int64_t> planes;
  for (int64_t u = low; u < high; ++u)
    if (u < begin || u >= end) planes.push_back(u);
  return planes;
}

int64_t Flat::offset(const Index& shift) const {
  int64_t sum = 0;
  for (size_t d = 0; d < shift.size(); ++d) sum += shift[d] * strides[d];
  return sum;
}

int64_t flat_plane(const Geometry& geometry, const at::Tensor& x) {
  int64_t plane = 1;
  for (size_t d = 1; d < geometry.dims(); ++d) plane *= spatial(x, d) + reach(geometry, d);
  return plane;
}

Flat flatten(const at::Tensor& rows, const Geometry& geometry, int64_t from, int64_t count, at::ScalarType dtype,
             int64_t behind) {
  const size_t dims = geometry.dims();
  Flat flat;
  flat.strides.assign(dims, 1);
  for (size_t d = dims - 1; d-- > 0;)
    flat.strides[d] = flat.strides[d + 1] * (spatial(rows, d + 1) + reach(geometry, d + 1));
  const int64_t planes = count + reach(geometry, 0);
  int64_t tail = 0;
  for (size_t d = 1; d < dims; ++d) tail += reach(geometry, d) * flat.strides[d];
  flat.length = count * flat.strides[0];
  const int64_t row = planes * flat.strides[0] + tail;
  flat.line = at::zeros({rows.size(0) * row + behind}, rows.options().dtype(dtype));
  flat.data = flat.line.narrow(0, 0, rows.size(0) * row).view({rows.size(0), row});

  std::vector<int64_t> shape{rows.size(0), planes};
  for (size_t d = 1; d < dims; ++d) shape.push_back(spatial(rows, d) + reach(geometry, d));
  auto inside = flat.data.narrow(1, 0, planes * flat.strides[0]).view(shape);
  const int64_t real = std::min(planes, spatial(rows, 0) - from);
  inside = inside.narrow(1, 0, real);
  for (size_t d = 1; d < dims; ++d) inside = inside.narrow(d + 1, 0, spatial(rows, d));
  inside.copy_(rows.select(1, 0).narrow(1, from, real));
  return flat;
}

const at::Tensor& BorderSums::operator()(const Index& shift, const Index& fixed) {
  auto& sum = known_[{shift, fixed}];
  if (!sum.defined()) {
    const auto still = part(shift, fixed, false);
    sum = product_(still, part(shift, fixed, true));
    flops_ += 2 * static_cast<double>(sum.size(0)) * static_cast<double>(still.numel());
  }
  return sum;
}

// Returns the fixed planes of x, [channels, batch, *spatial]. They are copied once, because planes across the memory
// order are slow to read.
const at::Tensor& BorderSums::face(const Index& fixed) {
  auto& face = faces_[fixed];
  if (face.defined()) return face;
  face = x_;
  for (size_t d = 0; d < fixed.size(); ++d)
    if (fixed[d] >= 0) face = face.narrow(d + 2, fixed[d], 1);
  face = face.to(dtype_).transpose(0, 1).contiguous();
  return face;
}

// Returns the positions u, or u+δ where `moved`, as columns: [channels, positions].
at::Tensor BorderSums::part(const Index& shift, Index fixed, bool moved) {
  for (size_t d = 0; d < fixed.size(); ++d)
    if (moved && fixed[d] >= 0) fixed[d] += shift[d];
  auto part = face(fixed);
  for (size_t d = 0; d < shift.size(); ++d) {
    if (fixed[d] >= 0) continue;
    const int64_t count = std::max<int64_t>(0, spatial(x_, d) - std::abs(shift[d]));
    const int64_t low = std::max<int64_t>(0, moved ? shift[d] : -shift[d]);
    part = part.narrow(d + 2, count == 0 ? 0 : low, count);
  }
  return part.reshape({x_.size(1), -1});
}

void for_each_correction(const at::Tensor& x, const Geometry& geometry, const Pair& pair,
                         const std::function<void(const Index& fixed, int sign)>& take) {
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

}  // namespace spillway::kfac
