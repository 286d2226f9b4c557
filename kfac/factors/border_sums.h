/// The sums near the border that products without patches subtract, and the flat copies behind all their sums. See
/// kfac/factors/shifted_products.h for S(δ), windows and planes.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "kfac/factors/conv_geometry.h"

namespace spillway::kfac {

using Index = std::vector<int64_t>;

/// An offset pair κ ≤ κ' in row-major order; the other pairs are the transposes.
struct Pair {
  int64_t first, second;  ///< flat κ and κ'
  Index offset;           ///< κ in input positions (times dilation)
  Index shift;            ///< δ in input positions
};
std::vector<Pair> pairs_of(const Geometry& geometry);

/// Returns the u in [0, size) with u+shift in [0, size) that offset κ's window leaves out along dimension `d`.
std::vector<int64_t> left_out(const Geometry& geometry, size_t d, int64_t size, int64_t offset, int64_t shift);

inline int64_t spatial(const at::Tensor& x, size_t d) {
  return x.size(d + 2);
}

/// Returns the largest distance that δ reaches along dimension `d`.
inline int64_t reach(const Geometry& geometry, size_t d) {
  return geometry.dilation[d] * (geometry.kernel[d] - 1);
}

/// A flat copy of x [batch, channels, *spatial] with `reach` zeros behind every dimension, so that the shift δ is one
/// offset.
struct Flat {
  at::Tensor data;  ///< [batch or channels as in x, length + tail]
  int64_t length = 0;
  Index strides;    ///< strides of the spatial dimensions, in elements
  at::Tensor line;  ///< `data` as one row, and zeros behind it

  int64_t offset(const Index& shift) const;
};

/// Returns the positions that Flat needs for one plane of the first spatial dimension.
int64_t flat_plane(const Geometry& geometry, const at::Tensor& x);

/// Makes the Flat of `rows` [rows, 1, *spatial] and planes [from, from+count) with the halo behind them. `behind`
/// further zeros are at the end.
Flat flatten(const at::Tensor& rows, const Geometry& geometry, int64_t from, int64_t count, at::ScalarType dtype,
             int64_t behind = 0);

/// A function that multiplies two tensors [channels, positions].
using Product = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;

/// The sums S(δ | fixed planes). In `fixed`, -1 stands for a dimension that is not fixed. Keeps the sums that it has
/// formed.
class BorderSums {
 public:
  BorderSums(const at::Tensor& x, at::ScalarType dtype, Product product)
      : x_(x), dtype_(dtype), product_(std::move(product)) {}

  const at::Tensor& operator()(const Index& shift, const Index& fixed);
  double flops() const { return flops_; }

 private:
  const at::Tensor& face(const Index& fixed);
  at::Tensor part(const Index& shift, Index fixed, bool moved);

  const at::Tensor& x_;
  at::ScalarType dtype_;
  const Product product_;
  double flops_ = 0;
  std::map<Index, at::Tensor> faces_;
  std::map<std::pair<Index, Index>, at::Tensor> known_;
};

/// Calls take(fixed, sign) for every choice of left-out planes in a subset of the dimensions, except the empty subset.
void for_each_correction(const at::Tensor& x, const Geometry& geometry, const Pair& pair,
                         const std::function<void(const Index& fixed, int sign)>& take);

}  // namespace spillway::kfac
