#include "kfac/inverse/truncated_eigenbasis.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <limits>
#include <tuple>
#include <utility>

namespace spillway::kfac {
namespace {

constexpr uint64_t kSeed = 1;
constexpr double kOrthogonal = 1e-10;  // the most that products of cholesky_qr()'s columns are off

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

// Returns the vectors of all bases, one behind the other.
at::Tensor last_vectors(const std::vector<Eigenbasis>& bases, at::ScalarType type) {
  std::vector<at::Tensor> all;
  for (const Eigenbasis& basis : bases) all.push_back(basis.vectors.to(type));
  return all.size() == 1 ? all.front() : at::cat(all);
}

at::Tensor random_numbers(const at::Tensor& like) {
  // This generator is separate, because a decomposition must not move the user's random numbers.
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(kSeed);
  return at::randn(like.sizes(), generator, at::kFloat).to(like.options());
}

// Overwrites each basis where its factor is not zero. Returns false for one whose new vectors and values are not
// finite, which stays as it was. `last`, `vectors` and `values` have the matrices of all bases, one behind the other.
std::vector<bool> keep_finite(const std::vector<Eigenbasis>& bases, const at::Tensor& last, const at::Tensor& vectors,
                              const at::Tensor& values) {
  const auto finite = at::isfinite(vectors.sum({1, 2}) + values.sum(1)).cpu();
  const auto chosen = at::where(values.sum(1).gt(0).view({-1, 1, 1}), vectors, last);
  auto kept = all_of_each(bases, finite);
  overwrite(bases, kept, values, chosen);
  return kept;
}

// Returns an orthogonal basis of the columns of each matrix.
at::Tensor orthogonal(const at::Tensor& y) {
  const auto by_reflections = [&] { return std::get<0>(at::linalg_qr(y)); };
  if (y.is_cpu()) return by_reflections();
  const auto q = cholesky_qr(y);
  return at::isfinite(q.sum()).item<bool>() ? q : by_reflections();
}

}  // namespace

void randomize(const std::vector<Eigenbasis>& bases) {
  std::vector<at::Tensor> places, contents;
  for (const Eigenbasis& basis : bases) {
    places.push_back(basis.vectors);
    const bool is_new = contents.empty() || contents.back().sizes() != basis.vectors.sizes();
    contents.push_back(is_new ? random_numbers(basis.vectors) : contents.back());
  }
  at::_foreach_copy_(places, contents);
}

at::Tensor cholesky_qr(const at::Tensor& y) {
  auto q = y.to(at::kDouble);
  q = q / q.norm(2, {1}, true);  // a column of zeros becomes NaN
  for (int pass = 0; pass < 2; ++pass) {
    const auto [root, info] = at::linalg_cholesky_ex(q.transpose(1, 2).bmm(q));
    // LibTorch throws for a root with a zero on its diagonal, which a failed one may have.
    root.diagonal(0, -2, -1).masked_fill_(info.ne(0).unsqueeze(1), std::numeric_limits<double>::quiet_NaN());
    q = at::linalg_solve_triangular(root.transpose(1, 2), q, /*upper=*/true, /*left=*/false);
  }
  const auto error = (q.transpose(1, 2).bmm(q) - at::eye(q.size(2), q.options())).abs().amax({1, 2}, true);
  return q.masked_fill_(error.gt(kOrthogonal), std::numeric_limits<double>::quiet_NaN()).to(y.scalar_type());
}

bool iterate_subspace(const at::Tensor& factor, const Eigenbasis& basis, int64_t iterations) {
  return iterate_subspaces(factor, {basis}, iterations).front();
}

std::vector<bool> iterate_subspaces(const at::Tensor& factors, const std::vector<Eigenbasis>& bases,
                                    int64_t iterations) {
  const auto last = last_vectors(bases, factors.scalar_type());
  auto q = last;
  for (int64_t i = 0; i < iterations; ++i) q = orthogonal(factors.bmm(q));
  auto [values, rotation] = eigh(q.transpose(1, 2).bmm(factors.bmm(q)));
  const auto vectors = q.bmm(rotation);
  return keep_finite(bases, last, vectors, with_tail(values.clamp_min_(0), trace_of(factors), factors.size(1)));
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
  return keep_finite({basis}, basis.vectors.to(vectors_.scalar_type()), vectors_, values).front();
}

at::Tensor rayleigh_quotients(const at::Tensor& factor, const at::Tensor& vectors) {
  return with_tail((factor.bmm(vectors) * vectors).sum(1).clamp_min_(0), trace_of(factor), factor.size(1));
}

}  // namespace spillway::kfac
