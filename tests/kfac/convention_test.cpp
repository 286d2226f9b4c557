// Tests of each convention against sums written out by hand, and of `kaisa` against the published equations over
// several steps.
#include <gtest/gtest.h>
#include <torch/nn/functional/fold.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <cmath>

#include "kfac/factors/factors.h"
#include "kfac/kfac.h"
#include "tests/kfac/factors/layer_cases.h"

namespace spillway::kfac {
namespace {

namespace nn = torch::nn;

class ConventionTest : public testing::TestWithParam<LayerCase> {};

// The table of the numbers that divide Σ ããᵀ and Σ ggᵀ over B samples of S positions.
std::pair<double, double> divisors(Convention convention, double b, double s) {
  switch (convention) {
    case Convention::fisher:
      return {b * s, 1 / b};
    case Convention::kaisa:
      return {b * s * s * s, b * s * s * s};
    default:
      return {b * s * s, 1 / (b * s)};
  }
}

}  // namespace

TEST_P(ConventionTest, ScalesTheSumsOverAllPositionsAsItsTableSays) {
  for (auto convention : {Convention::fisher, Convention::kaisa, Convention::dp_kfac})
    for (auto form : kForms) {
      const LayerRun run(GetParam());
      const auto layer = find_layers(*run.module, in_form(form)).layers.at(0);
      LayerFactors factors(layer.shape, layer.weight.options(), 1 << 20, convention);
      install_capture_hooks(run.loss, {{layer.weight.unsafeGetTensorImpl(), 0}},
                            [&](const Captured& seen) { factors.stage(seen); });
      (run.loss * 8).backward();
      const auto batch = run.input.size(0);
      const auto& fresh = factors.finish(batch, 8);
      // The oracle's factors are those of fisher: 1/(B·S) Σ and B Σ.
      run.output.grad().div_(8);
      auto expected = naive_factors(run, GetParam(), layer.shape);
      const auto b = static_cast<double>(batch);
      const int64_t places = run.output.numel() / run.output.size(0) / run.output.size(1);
      const auto s = static_cast<double>(places);
      const auto [input, output] = divisors(convention, b, s);
      for (size_t i = 0; i < expected.size(); ++i) {
        expected[i].mul_(i + 1 < expected.size() ? b * s / input : 1 / (b * output));
        EXPECT_LT(largest_difference(fresh[i], expected[i]),
                  1e-12 * std::max(1.0, expected[i].abs().max().item<double>()))
            << name(convention) << " factor " << i;
        if (convention == Convention::kaisa) {
          EXPECT_TRUE(fresh[i].equal(fresh[i].transpose(1, 2)));
        }
      }
    }
}
INSTANTIATE_TEST_SUITE_P(EveryKind, ConventionTest, testing::ValuesIn(layer_cases()),
                         [](const auto& info) { return info.param.name; });

TEST(ConventionOfSeparableLayersTest, StartsItsProductAtTheIdentity) {
  nn::Conv1d conv(nn::Conv1dOptions(2, 2, 3).bias(false));
  conv->to(at::kDouble);
  Kfac kfac(*conv, {.convention = Convention::kaisa, .decay = 0.999999999, .conv_factors = ConvFactors::separable});
  const auto loss = conv->forward(at::randn({2, 2, 5}, at::kDouble)).pow(2).mean();
  kfac.watch(loss, 2);
  loss.backward();
  kfac.step();
  const auto c = kfac.state().factor(0, 0)[0], k = kfac.state().factor(0, 1)[0];
  EXPECT_TRUE(at::allclose(at::kron(c, k / k.trace()), at::eye(6, at::kDouble), 1e-6, 1e-6));
}

namespace {

// The public KAISA preconditioner, written from its equations without code of kfac/. It has one layer, and every step
// updates and decomposes the factors.
class Kaisa {
 public:
  static constexpr double kDecay = 0.95, kDamping = 0.001, kKlClip = 0.001;

  // cov(x) = xᵀ(x/rows), made symmetric.
  static at::Tensor covariance(const at::Tensor& rows) {
    const auto sum = rows.t().mm(rows / rows.size(0));
    return (sum + sum.t()) / 2;
  }
  static at::Tensor with_ones(const at::Tensor& rows) {
    return at::cat({rows, at::ones({rows.size(0), 1}, rows.options())}, 1);
  }
  static void average(at::Tensor& running, const at::Tensor& fresh) {
    if (!running.defined()) running = at::eye(fresh.size(0), fresh.options());
    running = kDecay * running + (1 - kDecay) * fresh;
  }

  void see_linear(const at::Tensor& a, const at::Tensor& g) {
    average(a_, covariance(with_ones(a)));
    average(g_, covariance(g));
  }
  // Takes in patches and gradients as rows, divided by the number of positions after the ones were appended.
  void see_conv2d(const at::Tensor& x, const at::Tensor& g, nn::functional::UnfoldFuncOptions unfold) {
    const auto patches = nn::functional::unfold(x, unfold).transpose(1, 2);  // [batch, positions, features]
    const auto positions = static_cast<double>(patches.size(1));
    average(a_, covariance(with_ones(patches.reshape({-1, patches.size(2)})) / positions));
    average(g_, covariance(g.permute({0, 2, 3, 1}).reshape({-1, g.size(1)}) / positions));
  }
  // Returns (G ⊗ A + γI)⁻¹ times the gradient, with the product formed, and scaled by ν of the clip.
  at::Tensor precondition(const at::Tensor& gradient, double lr) const {
    const auto fisher = at::kron(g_, a_);
    const auto v = at::linalg_solve(fisher + kDamping * at::eye(fisher.size(0), fisher.options()), gradient.flatten());
    const double sum = ((v * gradient.flatten()).sum() * lr * lr).item<double>();
    return v.view(gradient.sizes()) * std::min(1.0, std::sqrt(kKlClip / std::abs(sum)));
  }

 private:
  at::Tensor a_, g_;
};

at::Tensor joined(const at::Tensor& weight, const at::Tensor& bias) {
  return at::cat({weight.flatten(1), bias.view({-1, 1})}, 1);
}

// Trains `module` for some steps. After each step, the rewritten gradient must equal KAISA's to the relative
// `tolerance`.
template <class Module, class See>
void expect_kaisa(Module module, at::IntArrayRef input, at::ScalarType dtype, double tolerance, const See& see) {
  constexpr double kLr = 0.1;
  module->to(dtype);
  Kfac kfac(*module, {.lr = kLr,
                      .convention = Convention::kaisa,
                      .factor_interval = 1,
                      .inverse_interval = 1,
                      .decay = 0.95,
                      .damping = Kaisa::kDamping});
  Kaisa kaisa;
  for (int step = 0; step < 4; ++step) {
    module->zero_grad();
    const auto x = at::randn(input, at::kDouble).to(dtype);
    auto y = module->forward(x);
    y.retain_grad();
    const auto loss = y.pow(2).sum() * 20 / x.size(0);
    kfac.watch(loss, x.size(0));
    loss.backward();
    see(kaisa, x.to(at::kDouble), y.grad().to(at::kDouble));
    const at::Tensor expected =
        kaisa.precondition(joined(module->weight.grad(), module->bias.grad()).to(at::kDouble), kLr);
    kfac.step();
    const auto v = joined(module->weight.grad(), module->bias.grad()).to(at::kDouble);
    EXPECT_LT(largest_difference(v, expected), tolerance * expected.abs().max().item<double>()) << "step " << step;
    at::NoGradGuard no_grad;
    module->weight.sub_(module->weight.grad(), kLr);
    module->bias.sub_(module->bias.grad(), kLr);
  }
}

}  // namespace

TEST(KaisaConventionTest, ReproducesThePublishedPreconditionerOnLinear) {
  torch::manual_seed(4);
  for (const auto& [dtype, tolerance] : {std::pair(at::kDouble, 1e-9), std::pair(at::kFloat, 1e-5)})
    expect_kaisa(nn::Linear(5, 4), {6, 5}, dtype, tolerance,
                 [](Kaisa& kaisa, const at::Tensor& x, const at::Tensor& g) { kaisa.see_linear(x, g); });
}

TEST(KaisaConventionTest, ReproducesThePublishedPreconditionerOnConv2d) {
  torch::manual_seed(5);
  const auto unfold = nn::functional::UnfoldFuncOptions({3, 2}).padding({1, 0}).stride({2, 1});
  for (const auto& [dtype, tolerance] : {std::pair(at::kDouble, 1e-9), std::pair(at::kFloat, 1e-5)})
    expect_kaisa(nn::Conv2d(nn::Conv2dOptions(2, 3, {3, 2}).padding({1, 0}).stride({2, 1})), {3, 2, 5, 5}, dtype,
                 tolerance,
                 [&](Kaisa& kaisa, const at::Tensor& x, const at::Tensor& g) { kaisa.see_conv2d(x, g, unfold); });
}

}  // namespace spillway::kfac
