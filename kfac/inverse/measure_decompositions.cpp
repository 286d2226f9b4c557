#include "kfac/inverse/measure_decompositions.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "core/clock.h"
#include "core/error.h"
#include "core/median.h"
#include "kfac/inverse/eigenbasis.h"

namespace spillway::kfac {
namespace {

// Runs the operators that take most of the time of invert_factor().
bool invert(const at::Tensor& factor) {
  const auto [root, info] = at::linalg_cholesky_ex(factor);
  return info.eq(0).logical_and(at::isfinite(at::cholesky_inverse(root).sum())).all().item<bool>();
}

// Both methods end with a host synchronization, so that the wall clock is right on every device.
double seconds_of_one(const at::Tensor& factor, const Eigenbasis& basis, Method method) {
  const auto start = Clock::now();
  const bool done = method == Method::eigen ? decompose(factor, basis) : invert(factor);
  TORCH_CHECK(done, "[kfac.measure_decompositions] side ", factor.size(1), " has no decomposition");
  const double seconds = seconds_since(start);
  return std::max(seconds, std::numeric_limits<double>::min());
}

double median_seconds(int64_t side, int64_t rounds, const at::TensorOptions& like, Method method) {
  // This generator is separate, because measuring must not move the user's random numbers.
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(side);
  const auto x = at::randn({1, 2 * side, side}, generator, like.device(at::kCPU)).to(like.device());
  const auto factor = x.transpose(1, 2).bmm(x).div_(static_cast<double>(2 * side));
  const auto basis = Eigenbasis::identity(1, side, like);
  (void)seconds_of_one(factor, basis, method);
  std::vector<double> seconds;
  for (int64_t round = 0; round < rounds; ++round) seconds.push_back(seconds_of_one(factor, basis, method));
  return median(std::move(seconds));
}

}  // namespace

DecompositionCosts measure_decompositions(const c10::TensorOptions& like, Method method,
                                          const std::vector<int64_t>& sides, int64_t rounds) {
  if (rounds < 1) throw BadRequest(str("[kfac.measure_decompositions] rounds = ", rounds, "; allowed is 1 and more"));
  for (int64_t last = 0; int64_t side : sides) {
    if (side <= last)
      throw BadRequest(str("[kfac.measure_decompositions] side ", side, " after ", last, "; sides rise from 1"));
    last = side;
  }
  at::NoGradGuard no_grad;
  DecompositionCosts costs{.points = {}};
  double least = 0;
  for (int64_t side : sides) {
    least = std::max(least, median_seconds(side, rounds, like, method));
    costs.points.push_back({side, least});
  }
  costs.validate();
  return costs;
}

}  // namespace spillway::kfac
