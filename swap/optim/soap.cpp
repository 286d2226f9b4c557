#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <tuple>

#include "core/category.h"
#include "swap/optim/matrix_optimizer.h"

namespace spillway {
namespace {

constexpr int64_t kRows = 0, kColumns = 1;

/// Returns the eigenvectors of a factor, in the order of falling eigenvalues.
at::Tensor eigenvectors(const at::Tensor& factor) {
  return std::get<1>(at::linalg_eigh(factor)).flip(1);
}

}  // namespace

Soap::Soap(const std::vector<at::Tensor>& parameters, SoapOptions options)
    : MatrixOptimizer(parameters, options.lr, options.weight_decay, options.group_bytes, 6),
      options_(options),
      mean_(make_state()),
      steps_(make_steps(StepsReader::host)) {
  TORCH_CHECK(options.factor_decay >= 0 && options.factor_decay < 1, "[optimizer] factor_decay is ",
              options.factor_decay, "; it must be in [0, 1)");
  TORCH_CHECK(options.interval >= 1, "[optimizer] interval is ", options.interval, "; it must be 1 or more");
  TORCH_CHECK(options.max_side >= 1, "[optimizer] max_side is ", options.max_side, "; it must be 1 or more");
  at::NoGradGuard no_grad;
  CategoryScope category(Category::optimizer);
  for (const at::Tensor& mean : mean_)
    variance_.push_back(at::zeros({mean.size(0), mean.numel() / mean.size(0)}, mean.options()));
  rows_ = make_side(kRows);
  columns_ = make_side(kColumns);
}

Soap::Side Soap::make_side(int64_t dimension) const {
  Side side{.factors = std::vector<at::Tensor>(variance_.size()), .vectors = std::vector<at::Tensor>(variance_.size())};
  for (size_t i = 0; i < variance_.size(); ++i) {
    const int64_t n = variance_[i].size(dimension);
    if (n > options_.max_side) continue;
    side.factors[i] = at::zeros({n, n}, variance_[i].options());
    side.vectors[i] = at::zeros_like(side.factors[i]);
  }
  return side;
}

std::vector<OptimizerState> Soap::state() const {
  return {{"mean", mean_},
          {"variance", variance_},
          {"steps", steps_},
          {"row_factor", rows_.factors},
          {"row_vectors", rows_.vectors},
          {"column_factor", columns_.factors},
          {"column_vectors", columns_.vectors}};
}

at::Tensor Soap::direction(size_t i, const at::Tensor& gradient) {
  const auto gradients = static_cast<int64_t>(steps_[i].add_(1).item<double>());
  if (gradients == 1) {
    average(i, gradient);
    decompose(i);
    return {};
  }
  const auto updates = static_cast<double>(gradients - 1);
  const at::Tensor rotated = to_basis(i, gradient);
  const at::Tensor mean = as_matrix(mean_[i].lerp_(parameters()[i].grad(), 1 - options_.beta1));
  variance_[i].mul_(options_.beta2).addcmul_(rotated, rotated, 1 - options_.beta2);
  const at::Tensor root = (variance_[i] / (1 - std::pow(options_.beta2, updates))).sqrt_().add_(options_.eps);
  at::Tensor step = from_basis(i, (to_basis(i, mean) / (1 - std::pow(options_.beta1, updates))).div_(root));
  average(i, gradient);
  if ((gradients - 1) % options_.interval == 0) follow(i);
  return step;
}

void Soap::average(size_t i, const at::Tensor& gradient) {
  const double rest = 1 - options_.factor_decay;
  if (const at::Tensor& rows = rows_.factors[i]; rows.defined())
    rows.addmm_(gradient, gradient.t(), options_.factor_decay, rest);
  if (const at::Tensor& columns = columns_.factors[i]; columns.defined())
    columns.addmm_(gradient.t(), gradient, options_.factor_decay, rest);
}

void Soap::decompose(size_t i) {
  for (const Side* side : {&rows_, &columns_})
    if (side->factors[i].defined()) side->vectors[i].copy_(eigenvectors(side->factors[i]));
}

void Soap::follow(size_t i) {
  for (const Side* side : {&rows_, &columns_}) {
    if (!side->factors[i].defined()) continue;
    const at::Tensor& vectors = side->vectors[i];
    const at::Tensor product = at::mm(side->factors[i], vectors);
    const at::Tensor order = (vectors * product).sum(0).argsort(/*dim=*/0, /*descending=*/true);
    variance_[i].copy_(variance_[i].index_select(side == &rows_ ? kRows : kColumns, order));
    vectors.copy_(std::get<0>(at::linalg_qr(product.index_select(1, order))));
  }
}

at::Tensor Soap::to_basis(size_t i, const at::Tensor& matrix) const {
  const at::Tensor &rows = rows_.vectors[i], &columns = columns_.vectors[i];
  const at::Tensor half = rows.defined() ? at::mm(rows.t(), matrix) : matrix;
  return columns.defined() ? at::mm(half, columns) : half;
}

at::Tensor Soap::from_basis(size_t i, const at::Tensor& matrix) const {
  const at::Tensor &rows = rows_.vectors[i], &columns = columns_.vectors[i];
  const at::Tensor half = rows.defined() ? at::mm(rows, matrix) : matrix;
  return columns.defined() ? at::mm(half, columns.t()) : half;
}

}  // namespace spillway
