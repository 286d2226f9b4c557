#include "kfac/inverse/truncated_eigenbasis.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

namespace spillway::kfac {
namespace {

constexpr uint64_t kSeed = 1;

// Returns `values` [count, rank] and, where they are not all, τ = (tr F − Σv) / (side − rank).
at::Tensor with_tail(const at::Tensor& values, const at::Tensor& factor) {
  const int64_t side = factor.size(1), rank = values.size(1);
  if (rank == side) return values;
  const auto rest = factor.diagonal(0, -2, -1).sum(-1, true) - values.sum(-1, true);
  return at::cat({values, rest.div_(static_cast<double>(side - rank)).clamp_min_(0)}, 1);
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
  values = with_tail(values.clamp_min_(0), factor);
  if (!at::isfinite(vectors.sum() + values.sum()).item<bool>()) return false;
  const auto seen = values.sum(1).gt(0).view({-1, 1, 1});
  basis.vectors.copy_(at::where(seen, vectors, last));
  basis.values.copy_(values);
  return true;
}

at::Tensor rayleigh_quotients(const at::Tensor& factor, const at::Tensor& vectors) {
  return with_tail((factor.bmm(vectors) * vectors).sum(1).clamp_min_(0), factor);
}

}  // namespace spillway::kfac
