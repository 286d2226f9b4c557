#include "swap/optim/matrix_optimizer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "swap/session.h"

namespace spillway {
namespace {

using Make = std::function<std::unique_ptr<Optimizer>(const std::vector<at::Tensor>&, int64_t group_bytes)>;

/// A wide and a tall matrix, a square one and the weight of a convolution.
std::vector<at::Tensor> parameters(at::ScalarType type = at::kFloat) {
  at::manual_seed(1);
  std::vector<at::Tensor> tensors;
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{6, 20}, {24, 5}, {12, 12}, {8, 4, 3, 3, 3}})
    tensors.push_back(at::randn(shape).to(type).requires_grad_());
  return tensors;
}

/// Gives each parameter the gradient of step `i`: a function of it, and of noise that is the same for every caller. The
/// second parameter has none in the first two steps.
void give_gradients(const std::vector<at::Tensor>& parameters, int64_t i) {
  at::manual_seed(100 + i);
  for (size_t p = 0; p < parameters.size(); ++p) {
    const at::Tensor noise = at::randn(parameters[p].sizes(), at::kDouble).to(parameters[p].scalar_type());
    parameters[p].mutable_grad() = p == 1 && i < 2 ? at::Tensor() : (parameters[p].detach() * 2).cos() + noise;
  }
}

std::vector<at::Tensor> after_steps(std::vector<at::Tensor> parameters, Optimizer& optimizer, int64_t steps = 6) {
  for (int64_t i = 0; i < steps; ++i) {
    give_gradients(parameters, i);
    optimizer.step();
  }
  return parameters;
}

void expect_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i])) << i;
}

std::vector<at::Tensor> state(const Optimizer& optimizer, std::string_view name) {
  for (const OptimizerState& kind : optimizer.state())
    if (kind.name == name) return kind.tensors;
  ADD_FAILURE() << "no state " << name;
  return {};
}

std::unique_ptr<Optimizer> muon(const std::vector<at::Tensor>& p, int64_t group_bytes = kDefaultGroupBytes) {
  return std::make_unique<Muon>(p, MuonOptions{.lr = 1e-2, .group_bytes = group_bytes});
}
std::unique_ptr<Optimizer> soap(const std::vector<at::Tensor>& p, int64_t group_bytes = kDefaultGroupBytes) {
  return std::make_unique<Soap>(p, SoapOptions{.lr = 1e-2, .interval = 2, .group_bytes = group_bytes});
}
const std::vector<Make> kBoth{muon, soap};

/// Muon by the singular value decomposition, in float64: Newton–Schulz takes each singular value through a polynomial.
class MuonOracle {
 public:
  explicit MuonOracle(MuonOptions options) : options_(options) {}

  at::Tensor after(const at::Tensor& parameter, const at::Tensor& gradient) {
    const at::Tensor g = gradient.flatten(1);
    momentum_ = momentum_.defined() ? momentum_ * options_.momentum + g : g;
    const at::Tensor along = options_.nesterov ? g + momentum_ * options_.momentum : momentum_;
    const auto [u, s, v] = at::linalg_svd(along, /*full_matrices=*/false);
    at::Tensor values = s / s.norm();
    for (int64_t k = 0; k < options_.iterations; ++k)
      values = 3.4445 * values - 4.7750 * values.pow(3) + 2.0315 * values.pow(5);
    const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(g.size(0), g.size(1))));
    const at::Tensor step = (u * values).mm(v) * scale;
    return parameter * (1 - options_.lr * options_.weight_decay) - options_.lr * step.reshape(parameter.sizes());
  }

 private:
  MuonOptions options_;
  at::Tensor momentum_;
};

TEST(MuonTest, StepsAlongTheMomentumWithTheSingularValuesOfThePolynomial) {
  for (const bool nesterov : {true, false}) {
    const MuonOptions options{.lr = 0.1, .momentum = 0.8, .nesterov = nesterov, .weight_decay = 0.2};
    auto p = parameters(at::kDouble);
    Muon muon(p, options);
    std::vector<MuonOracle> oracles(4, MuonOracle(options));
    for (int64_t i = 0; i < 4; ++i) {
      give_gradients(p, i);
      std::vector<at::Tensor> expected;
      for (size_t k = 0; k < oracles.size(); ++k)
        expected.push_back(p[k].grad().defined() ? oracles[k].after(p[k].detach(), p[k].grad())
                                                 : p[k].detach().clone());
      muon.step();
      for (size_t k = 0; k < expected.size(); ++k)
        EXPECT_TRUE(at::allclose(p[k], expected[k], 1e-9, 1e-11)) << "step " << i << ", parameter " << k;
    }
  }
}

TEST(MuonTest, StepsAreAsLongWhateverTheGradientsScale) {
  const auto p = at::zeros({16, 64}).requires_grad_(), q = at::zeros({16, 64}).requires_grad_();
  at::manual_seed(3);
  p.mutable_grad() = at::randn({16, 64}) * 1e-4;
  q.mutable_grad() = p.grad() * 1e8;
  Muon({p, q}, {.lr = 0.5}).step();
  EXPECT_TRUE(at::allclose(p, q, 1e-4, 1e-6));
  const double rms = p.detach().square().mean().sqrt().item<double>();
  EXPECT_GT(rms, 0.5 * 0.2 * 0.7);  // AdamW's is about 0.2 lr to 0.4 lr (Liu et al. 2025, §2.2)
  EXPECT_LT(rms, 0.5 * 0.2 * 1.3);
}

TEST(MuonTest, AMatrixWithoutAGradientsDirectionStays) {
  const auto p = at::ones({3, 4}).requires_grad_();
  p.mutable_grad() = at::zeros_like(p);
  Muon({p}, {.weight_decay = 0}).step();
  EXPECT_TRUE(at::equal(p, at::ones({3, 4})));
}

/// Adam on K·vec(W), where K is the transposed Kronecker product of SOAP's eigenvectors, in float64.
TEST(SoapTest, IsAdamInTheKroneckerProductOfTheEigenvectors) {
  constexpr int64_t m = 5, n = 7;
  constexpr double kBeta1 = 0.8, kBeta2 = 0.9, kEps = 1e-3, kLr = 0.1, kDecay = 0.3;
  at::manual_seed(4);
  const auto p = at::randn({m, n}, at::kDouble).requires_grad_();
  Soap soap({p}, {.lr = kLr,
                  .beta1 = kBeta1,
                  .beta2 = kBeta2,
                  .factor_decay = 0.7,
                  .eps = kEps,
                  .interval = 100,
                  .weight_decay = kDecay});
  at::Tensor mean = at::zeros({m * n}, at::kDouble), variance = at::zeros({m * n}, at::kDouble);
  at::Tensor rows = at::zeros({m, m}, at::kDouble), columns = at::zeros({n, n}, at::kDouble);
  for (int64_t i = 0; i < 6; ++i) {
    const at::Tensor before = p.detach().clone();
    p.mutable_grad() = at::randn({m, n}, at::kDouble);
    const at::Tensor& g = p.grad();
    soap.step();
    rows = 0.7 * rows + 0.3 * g.mm(g.t());
    columns = 0.7 * columns + 0.3 * g.t().mm(g);
    EXPECT_TRUE(at::allclose(state(soap, "row_factor")[0], rows));
    EXPECT_TRUE(at::allclose(state(soap, "column_factor")[0], columns));
    if (i == 0) {
      EXPECT_TRUE(at::equal(p, before)) << "the first gradient gives the eigenvectors";
      continue;
    }
    const at::Tensor k = at::kron(state(soap, "row_vectors")[0], state(soap, "column_vectors")[0]).t();
    const at::Tensor rotated = k.mv(g.flatten());
    mean = kBeta1 * mean + (1 - kBeta1) * g.flatten();
    variance = kBeta2 * variance + (1 - kBeta2) * rotated.square();
    const auto t = static_cast<double>(i);
    const at::Tensor root = (variance / (1 - std::pow(kBeta2, t))).sqrt() + kEps;
    const at::Tensor step = k.t().mv(k.mv(mean) / (1 - std::pow(kBeta1, t)) / root).reshape({m, n});
    EXPECT_TRUE(at::allclose(p, before * (1 - kLr * kDecay) - kLr * step, 1e-9, 1e-12)) << i;
  }
}

TEST(SoapTest, EigenvectorsFollowTheFactorsEveryInterval) {
  at::manual_seed(5);
  // Gradients whose rows and columns have variances that differ, in bases of their own.
  const at::Tensor left = std::get<0>(at::linalg_qr(at::randn({8, 8}, at::kDouble))),
                   right = std::get<0>(at::linalg_qr(at::randn({6, 6}, at::kDouble)));
  const at::Tensor scales = at::tensor({8.0, 4.0, 2.0, 1.0, 0.5, 0.25}, at::kDouble);
  const at::Tensor row_scales = at::cat({scales, scales.slice(0, 4) / 8});
  const auto p = at::zeros({8, 6}, at::kDouble).requires_grad_();
  Soap soap({p}, {.factor_decay = 0.99, .interval = 4});
  const auto off_diagonal = [&](std::string_view factor, std::string_view vectors) {
    const at::Tensor q = state(soap, vectors)[0];
    EXPECT_TRUE(at::allclose(q.t().mm(q), at::eye(q.size(0), at::kDouble)));
    const at::Tensor rotated = q.t().mm(state(soap, factor)[0]).mm(q);
    const at::Tensor values = rotated.diagonal();
    EXPECT_TRUE((values.slice(0, 0, -1) >= values.slice(0, 1) * 0.9).all().item<bool>()) << values;
    return (rotated - at::diag(values)).norm().item<double>() / rotated.norm().item<double>();
  };
  for (int64_t i = 0; i < 401; ++i) {
    const at::Tensor before = state(soap, "row_vectors")[0].clone();
    p.mutable_grad() = left.mm(row_scales.unsqueeze(1) * at::randn({8, 6}, at::kDouble) * scales).mm(right.t());
    soap.step();
    EXPECT_EQ(!at::equal(before, state(soap, "row_vectors")[0]), i % 4 == 0) << i;
  }
  EXPECT_LT(off_diagonal("row_factor", "row_vectors"), 0.02);
  EXPECT_LT(off_diagonal("column_factor", "column_vectors"), 0.02);
}

TEST(SoapTest, VariancesTakeTheOrderOfTheEigenvectors) {
  const auto p = at::zeros({2, 3}, at::kDouble).requires_grad_();
  Soap soap({p}, {.beta2 = 0.999, .factor_decay = 0, .interval = 1});
  const auto step = [&](const at::Tensor& gradient) {
    p.mutable_grad() = gradient;
    soap.step();
  };
  const at::Tensor first = at::tensor({3.0, 0.0, 0.0, 0.0, 2.0, 0.0}, at::kDouble).reshape({2, 3});
  step(first);
  step(first);
  const at::Tensor variance = state(soap, "variance")[0].clone();
  EXPECT_GT(variance[0][0].item<double>(), variance[1][1].item<double>());
  // Now the second eigenvector has the larger value, and the first entry still the larger variance.
  step(first * at::tensor({0.1, 1.0, 1.0}, at::kDouble));
  const at::Tensor after = state(soap, "variance")[0];
  EXPECT_GT(after[1][1].item<double>(), after[0][0].item<double>());
}

TEST(SoapTest, WithoutSidesItIsAdamWFromTheSecondGradientOn) {
  auto own = parameters(at::kDouble), theirs = parameters(at::kDouble);
  Soap soap(own, {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .max_side = 1, .weight_decay = 0.1});
  AdamW adamw(theirs, {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1});
  for (int64_t i = 2; i < 7; ++i) {
    give_gradients(own, i);
    give_gradients(theirs, i);
    if (i == 2)
      for (at::Tensor& parameter : theirs) parameter.mutable_grad().reset();
    soap.step();
    adamw.step();
    for (size_t k = 0; k < own.size(); ++k) EXPECT_TRUE(at::allclose(own[k], theirs[k], 1e-10)) << i << ", " << k;
  }
  for (std::string_view name : {"row_factor", "row_vectors", "column_factor", "column_vectors"})
    for (const at::Tensor& tensor : state(soap, name)) EXPECT_FALSE(tensor.defined());
}

TEST(SoapTest, ASideAboveTheLargestIsNotRotated) {
  const auto p = at::zeros({4, 9}).requires_grad_();
  Soap soap({p}, {.max_side = 8});
  EXPECT_TRUE(state(soap, "row_factor")[0].defined());
  EXPECT_FALSE(state(soap, "column_factor")[0].defined());
}

TEST(SoapTest, CountsItsUpdatesOnTheHostBecauseItReadsThem) {
  Soap soap({at::empty({4, 4}, at::kMeta).requires_grad_()}, {});
  EXPECT_TRUE(state(soap, "steps")[0].is_cpu());
  EXPECT_TRUE(state(soap, "mean")[0].is_meta());
}

TEST(MatrixOptimizerTest, GroupingChangesNoBit) {
  for (const Make& make : kBoth) {
    const auto train = [&](int64_t bytes) {
      auto p = parameters();
      return after_steps(p, *make(p, bytes));
    };
    for (int64_t bytes : {1, 4000}) expect_equal(train(bytes), train(1 << 30));
  }
}

TEST(MatrixOptimizerTest, RanksThatShareDirectionsTakeTheSameSteps) {
  for (const Make& make : kBoth) {
    std::vector<at::Tensor> shared;
    const auto train = [&](double rounding, const std::function<void(const at::Tensor&)>& share) {
      auto p = std::vector<at::Tensor>{parameters()[0], parameters()[3]};
      const auto optimizer = make(p, 1);
      optimizer->share_sums(share);
      for (int64_t i = 0; i < 4; ++i) {
        at::manual_seed(i);
        for (const at::Tensor& t : p) t.mutable_grad() = at::randn(t.sizes()) * (1 + rounding * at::rand(t.sizes()));
        optimizer->step();
      }
      return p;
    };
    const auto first = train(0, [&](const at::Tensor& step) { shared.push_back(step.clone()); });
    size_t next = 0;
    expect_equal(first, train(1e-3, [&](const at::Tensor& step) { step.copy_(shared.at(next++)); }));
    EXPECT_EQ(next, shared.size());
    EXPECT_FALSE(at::allclose(first[1], train(1e-3, [](const at::Tensor&) {})[1], 0, 1e-7));
  }
}

TEST(MatrixOptimizerTest, TheLayoutInMemoryChangesNothing) {
  for (const Make& make : kBoth) {
    const auto train = [&](at::MemoryFormat of_weight, at::MemoryFormat of_gradient) {
      at::manual_seed(6);
      at::Tensor p = at::randn({4, 3, 2, 2}).contiguous(of_weight).requires_grad_();
      const auto optimizer = make({p}, kDefaultGroupBytes);
      for (int64_t i = 0; i < 4; ++i) {
        p.mutable_grad() = at::randn({4, 3, 2, 2}).contiguous(of_gradient);
        optimizer->step();
      }
      return p;
    };
    const at::Tensor expected = train(at::MemoryFormat::Contiguous, at::MemoryFormat::Contiguous);
    for (auto of_weight : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast})
      EXPECT_TRUE(at::allclose(train(of_weight, at::MemoryFormat::ChannelsLast), expected, 1e-4, 1e-6));
  }
}

TEST(MatrixOptimizerTest, NeedsOnlyOneGroupResidentAtATime) {
  constexpr int64_t kMatrix = 256 * 256 * 4;
  for (const Make& make : kBoth) {
    std::vector<at::Tensor> p;
    for (int i = 0; i < 12; ++i) p.push_back(at::ones({256, 256}).requires_grad_());
    for (auto& t : p) t.mutable_grad() = at::eye(256);
    Session session({.budget_bytes = 16 * kMatrix, .small_page_bytes = 0});  // a matrix of Soap has 8 with its gradient
    const auto optimizer = make(p, kMatrix);
    for (int i = 0; i < 2; ++i) optimizer->step();
    for (auto& t : p) EXPECT_LT(t[7][7].item<double>(), 1.0);
    EXPECT_LE(session.stats().peak_bytes, 16 * kMatrix);
  }
}

TEST(MatrixOptimizerTest, RefusesBadOptions) {
  const std::vector<at::Tensor> p{at::ones({2, 2}).requires_grad_()};
  EXPECT_THROW(Muon(p, {.lr = 0}), c10::Error);
  EXPECT_THROW(Muon({at::ones({3}).requires_grad_()}, {}), c10::Error);
  EXPECT_THROW(Muon(p, {.momentum = 1}), c10::Error);
  EXPECT_THROW(Muon(p, {.momentum = -0.1}), c10::Error);
  EXPECT_THROW(Muon(p, {.iterations = 0}), c10::Error);
  EXPECT_THROW(Soap(p, {.factor_decay = 1}), c10::Error);
  EXPECT_THROW(Soap(p, {.interval = 0}), c10::Error);
  EXPECT_THROW(Soap(p, {.max_side = 0}), c10::Error);
}

}  // namespace
}  // namespace spillway
