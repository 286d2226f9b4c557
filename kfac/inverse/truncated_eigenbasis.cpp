#include "kfac/inverse/truncated_eigenbasis.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <tuple>
#include <utility>

namespace spillway::kfac {
namespace {

constexpr uint64_t kSeed = 1;

at::Tensor trace_of(const at::Tensor& factor) {
  return factor.diagonal(0, -2, -1).sum(-1, true);
}

// Returns `values` [count, rank] and, where they are not all, τ = (tr F − Σv) / (side − rank); `trace` [count, 1].
at::Tensor with_tail(const at::Tensor& values, const at::Tensor& trace, int64_t side) {
  const int64_t rank = values.size(1);
  if (rank == side) return values;
  const auto rest = trace - values.sum(-1, true);
  return at::cat({values, rest.div_(static_cast<double>(side - rank)).clamp_min_(0)}, 1);
}

// Overwrites the basis where the factor is not zero. Returns false, and changes nothing, where the new one is not
// finite.
bool keep_finite(const Eigenbasis& basis, const at::Tensor& last, const at::Tensor& vectors, const at::Tensor& values) {
  if (!at::isfinite(vectors.sum() + values.sum()).item<bool>()) return false;
  const auto seen = values.sum(1).gt(0).view({-1, 1, 1});
  basis.vectors.copy_(at::where(seen, vectors, last));
  basis.values.copy_(values);
  return true;
}

}  // namespace

void randomize(const Eigenbasis& basis) {
  // This generator is separate, because a decomposition must not move the user's random numbers.
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(kSeed);
  basis.vectors.copy_(at::randn(basis.vectors.sizes(), generator, at::kFloat));
}

bool iterate_subspace(const at::Tensor& factor, const Eigenbasis& basis, int64_t iterations) {
  const auto last = basis.vectors.to(factor.scalar_type());
  auto q = last;
  for (int64_t i = 0; i < iterations; ++i) q = std::get<0>(at::linalg_qr(factor.bmm(q)));
  auto [values, rotation] = eigh(q.transpose(1, 2).bmm(factor.bmm(q)));
  const auto vectors = q.bmm(rotation);
  return keep_finite(basis, last, vectors, with_tail(values.clamp_min_(0), trace_of(factor), factor.size(1)));
}

SubspaceIteration::SubspaceIteration(at::Tensor factor, int64_t rank, int64_t most_columns)
    : factor_(std::move(factor)),
      trace_(trace_of(factor_)),
      q_(at::zeros({factor_.size(0), factor_.size(1), rank}, factor_.options())),
      panels_{rank, most_columns} {}

void SubspaceIteration::run_next(const Eigenbasis& basis) {
  const int64_t n = panels_.count(), piece = done_;
  const auto panel = [&](const at::Tensor& matrix, int64_t k) {
    return matrix.narrow(2, panels_.begin(k), panels_.width(k));
  };
  if (piece < n) {
    panel(q_, piece).copy_(factor_.bmm(panel(basis.vectors, piece).to(factor_.scalar_type())));
  } else if (piece == n) {
    q_ = std::get<0>(at::linalg_qr(q_));
    h_ = at::zeros({q_.size(0), q_.size(2), q_.size(2)}, q_.options());
  } else if (piece <= 2 * n) {
    const int64_t k = piece - n - 1;
    panel(h_, k).copy_(q_.transpose(1, 2).bmm(factor_.bmm(panel(q_, k))));
    if (piece == 2 * n) factor_.reset();
  } else if (piece == 2 * n + 1) {
    std::tie(values_, h_) = eigh(h_);
    vectors_ = at::zeros_like(q_);
  } else {
    panel(vectors_, piece - 2 * n - 2).copy_(q_.bmm(panel(h_, piece - 2 * n - 2)));
  }
  ++done_;
}

bool SubspaceIteration::keep(const Eigenbasis& basis) const {
  const auto values = with_tail(values_.clamp_min(0), trace_, q_.size(1));
  return keep_finite(basis, basis.vectors.to(vectors_.scalar_type()), vectors_, values);
}

at::Tensor rayleigh_quotients(const at::Tensor& factor, const at::Tensor& vectors) {
  return with_tail((factor.bmm(vectors) * vectors).sum(1).clamp_min_(0), trace_of(factor), factor.size(1));
}

}  // namespace spillway::kfac
