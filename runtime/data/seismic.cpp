#include <ATen/ATen.h>

#include <cmath>

#include "runtime/data/generator.h"
#include "runtime/data/synthetic.h"

namespace spillway::runtime {
namespace {

constexpr int64_t kMultiple = 4;
constexpr double kTau = 2 * 3.14159265358979323846;
constexpr double kNoise = 0.25;

/// Numbers from one case's generator, one at a time.
class Draws {
 public:
  explicit Draws(at::Generator& generator) : generator_(generator) {}
  double uniform(double low, double high) {
    return low + (high - low) * at::rand({}, generator_, at::kDouble).item<double>();
  }

 private:
  at::Generator& generator_;
};

/// Makes a smooth surface [H, W] around 0 from a few long waves.
at::Tensor undulation(const at::Tensor& y, const at::Tensor& x, double height, Draws& draws) {
  at::Tensor surface = at::zeros({y.size(0), x.size(1)});
  for (int wave = 0; wave < 3; ++wave) {
    const double along_y = draws.uniform(-1.5, 1.5), along_x = draws.uniform(-1.5, 1.5), phase = draws.uniform(0, kTau);
    surface = surface + (height / 3) * ((y * along_y + x * along_x) * kTau + phase).sin();
  }
  return surface;
}

/// Makes a vertical fault: one side of a line lies deeper.
at::Tensor fault(const at::Tensor& y, const at::Tensor& x, Draws& draws) {
  const double angle = draws.uniform(0, kTau), offset = draws.uniform(0.3, 0.7), drop = draws.uniform(0.02, 0.06);
  return ((y - offset) * std::sin(angle) + (x - offset) * std::cos(angle)).gt(0).to(at::kFloat) * drop;
}

}  // namespace

SyntheticSeismic::SyntheticSeismic(const Options& options)
    : SyntheticData("survey", options.cases,
                    static_cast<int64_t>(sizeof(float) + sizeof(int64_t)) * voxel_count(options.shape)),
      options_(options) {
  check_multiple("synthetic data", options.shape, kMultiple);
}

Batch SyntheticSeismic::make(int64_t index) const {
  at::Generator generator = make_generator(options_.seed, index);
  Draws draws(generator);
  const auto [depth, height, width] = options_.shape;
  auto axis = [](int64_t n) { return at::arange(n).to(at::kFloat).add_(0.5).div_(static_cast<double>(n)); };
  const at::Tensor z = axis(depth).view({-1, 1, 1}), y = axis(height).view({-1, 1}), x = axis(width).view({1, -1});

  // All layers follow the same folds; each horizon adds a little undulation of its own.
  const at::Tensor folds = undulation(y, x, 0.08, draws) + fault(y, x, draws);
  const at::Tensor upper = folds + undulation(y, x, 0.03, draws) + kSeismicShares[0];
  const at::Tensor lower = folds + undulation(y, x, 0.03, draws) + (kSeismicShares[0] + kSeismicShares[1]);
  const at::Tensor label = z.gt(upper).to(at::kLong) + z.gt(lower).to(at::kLong);

  const at::Tensor along = (z - folds) * static_cast<double>(depth);  // in voxels
  auto layering = [&](double period) { return (along * (kTau / period) + draws.uniform(0, kTau)).sin(); };
  const at::Tensor even = layering(12), fine = layering(5) * 0.7;
  const at::Tensor chaos = at::randn(options_.shape, generator) * 0.6;
  at::Tensor amplitude = at::where(label.eq(0), even, at::where(label.eq(1), fine, chaos));
  for (const at::Tensor& horizon : {upper, lower})
    amplitude = amplitude + 1.5 * (-((z - horizon) * static_cast<double>(depth)).square()).exp();
  amplitude = amplitude + kNoise * at::randn(options_.shape, generator);
  return {amplitude.unsqueeze(0).unsqueeze(0), label.unsqueeze(0)};
}

}  // namespace spillway::runtime
