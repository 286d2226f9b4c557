// The factor A summed over channels, without patches.
#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "kfac/factors/border_sums.h"
#include "kfac/factors/shifted_products.h"

namespace spillway::kfac {
namespace {

// The sums S(δ) of lines for every δ. The line is cut into blocks. A moved block is the block moved by δ without its
// last dimension, and wider by the last dimension's reach on both sides. Σ over blocks of (block)ᵀ (moved block) has on
// its diagonals all δ that differ in the last dimension. So the products run at full rate, and the line is read once
// per product instead of once per δ.
class LineProducts {
 public:
  LineProducts(const Geometry& geometry, const at::TensorOptions& like)
      : reach_(reach(geometry, geometry.dims() - 1)), width_(std::max<int64_t>(16, 2 * reach_)) {
    for (const auto& pair : pairs_of(geometry)) {
      auto& sums = sums_[outer(pair.shift)];
      if (!sums.defined()) sums = at::zeros({width_, width_ + 2 * reach_}, like);
    }
  }

  // Returns the number of zeros that must follow the line. `farthest` is the largest offset of a δ.
  int64_t behind(int64_t farthest) const { return 2 * width_ + 2 * reach_ + farthest; }

  double add(const Flat& flat) {
    const int64_t stride = 2 * width_, blocks = (flat.data.numel() + stride - 1) / stride;
    double flops = 0;
    for (auto& [shift, sums] : sums_)
      for (int64_t start : {int64_t{0}, width_}) {  // every other block, so that rows do not overlap
        const auto still = flat.line.as_strided({blocks, width_}, {stride, 1}, start);
        const auto moved = flat.line.as_strided({blocks, sums.size(1)}, {stride, 1}, start + begin(flat.offset(shift)));
        sums.addmm_(still.t(), moved);
        flops += 2 * static_cast<double>(sums.numel()) * static_cast<double>(blocks);
      }
    return flops;
  }

  // Returns S(shift) as a tensor [1].
  at::Tensor sum(const Index& shift, const Flat& like) const {
    const int64_t offset = like.offset(outer(shift));
    return sums_.at(outer(shift)).diagonal(offset - begin(offset) + shift.back()).sum().view({1});
  }

 private:
  static Index outer(Index shift) {
    shift.back() = 0;
    return shift;
  }
  // Returns the start of the first block's moved block: `reach` early, but not before the line.
  int64_t begin(int64_t offset) const { return std::max<int64_t>(0, offset - reach_); }

  const int64_t reach_, width_;
  std::map<Index, at::Tensor> sums_;
};

// The terms of `sum` [volume, volume]: for every pair its S(δ) and the corrections. They are numbers here, so all are
// gathered at once.
class PairSums {
 public:
  // Keeps a number and returns its place among the gathered ones.
  int64_t keep(const at::Tensor& number) {
    numbers_.push_back(number);
    return std::ssize(numbers_) - 1;
  }
  void add(int64_t entry, int64_t place, int sign) { terms_[entry].push_back({place, sign}); }

  void add_to(const at::Tensor& sum) {
    size_t columns = 0;
    for (const auto& [entry, terms] : terms_) columns = std::max(columns, terms.size());
    std::vector<int64_t> places(sum.numel() * columns, 0);
    std::vector<double> signs(places.size(), 0);
    for (const auto& [entry, terms] : terms_)
      for (size_t t = 0; t < terms.size(); ++t) {
        places[entry * columns + t] = terms[t].place;
        signs[entry * columns + t] = terms[t].sign;
      }
    const auto as_tensor = [&](auto& values, at::ScalarType type, at::ScalarType wanted) {
      auto host = at::from_blob(values.data(), {std::ssize(values)}, type).to(wanted);
      if (sum.is_cpu()) return host;
      return host.pin_memory().to(sum.device(), wanted, /*non_blocking=*/true);  // the host need not wait
    };
    const auto where = as_tensor(places, at::kLong, at::kLong);
    const auto terms = at::cat(numbers_).index_select(0, where) * as_tensor(signs, at::kDouble, sum.scalar_type());
    sum.add_(terms.view({sum.numel(), -1}).sum(1).view(sum.sizes()));
  }

 private:
  struct Term {
    int64_t place;
    int sign;
  };
  std::vector<at::Tensor> numbers_;
  std::map<int64_t, std::vector<Term>> terms_;
};

}  // namespace

double add_shifted_dots(const at::Tensor& sum, const at::Tensor& input, const Geometry& geometry,
                        int64_t workspace_bytes) {
  // Rows are channels of samples. Zeros behind each row keep its shifts out of the next row.
  const auto rows = input.flatten(0, 1).unsqueeze(1);
  const int64_t row_bytes =
      (spatial(input, 0) + reach(geometry, 0) + 1) * flat_plane(geometry, input) * sum.element_size();
  const int64_t step = std::max<int64_t>(1, workspace_bytes / row_bytes);
  LineProducts products(geometry, sum.options());
  Flat flat;
  double flops = 0;
  for (int64_t row = 0; row < rows.size(0); row += step) {
    flat = {};  // frees its memory before the next is made
    flat = flatten(rows.narrow(0, row, std::min(step, rows.size(0) - row)), geometry, 0, spatial(input, 0),
                   sum.scalar_type(), products.behind((reach(geometry, 0) + 1) * flat_plane(geometry, input)));
    flops += products.add(flat);
  }

  BorderSums border(input, sum.scalar_type(), [](const at::Tensor& a, const at::Tensor& b) {
    return at::dot(a.flatten(), b.flatten()).view({1, 1});
  });
  PairSums pairs;
  std::map<std::pair<Index, Index>, size_t> places;
  const auto place_of = [&](const Index& shift, const Index& fixed) {
    const auto [place, is_new] = places.try_emplace({shift, fixed}, 0);
    if (is_new) place->second = pairs.keep(fixed.empty() ? products.sum(shift, flat) : border(shift, fixed).view({1}));
    return place->second;
  };
  const int64_t volume = geometry.kernel_volume();
  for (const auto& pair : pairs_of(geometry)) {
    const auto add = [&](const Index& fixed, int sign) {
      const size_t place = place_of(pair.shift, fixed);
      pairs.add(pair.first * volume + pair.second, place, sign);
      if (pair.first != pair.second) pairs.add(pair.second * volume + pair.first, place, sign);
    };
    add({}, 1);
    for_each_correction(input, geometry, pair, add);
  }
  pairs.add_to(sum);
  return flops + border.flops();
}

}  // namespace spillway::kfac
