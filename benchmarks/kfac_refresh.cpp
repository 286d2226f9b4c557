// The time that a warm start saves where a factor has moved little. An eigenbasis is computed anew, and refreshed from
// the last one, in turns. The factor is a covariance after an update of its running average, F ← 0.95 F + 0.05 F_new.
// F_new has the same eigenvectors except for a share MOVED of noise. Columns: seconds anew, refreshed and
// refused-then-anew (medians), the first over the second, and two relative errors. These are the errors of (F + δ)⁻¹∇
// through the refreshed and through the new basis, against float64; δ = 0.3 · mean eigenvalue, ∇ random.
//
// Behind that, what it costs to renew a factor in pieces (KfacOptions::panel_columns), in turns with the whole renewal:
// inverses by Cholesky, and truncated bases of side/3 and side/32 eigenvectors. Columns: seconds at once and in pieces
// (medians), the second over the first, the number of pieces, and the longest one's seconds (median) and number.
//     build/bin/kfac_refresh [MOVED [TOLERANCE [ROUNDS]]]
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <tuple>
#include <vector>

#include "core/median.h"
#include "kfac/inverse/eigenbasis_refresh.h"
#include "kfac/inverse/panel_inverse.h"
#include "kfac/inverse/truncated_eigenbasis.h"
#include "kfac/plan/options.h"

namespace {

using spillway::kfac::Eigenbasis;
using spillway::kfac::Refreshed;

double seconds_of(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Moved {
  at::Tensor before, after, elsewhere;
};

Moved factors(int64_t side, double moved) {
  const auto scale = at::logspace(0, -1.5, side);
  const auto covariance = [&] {
    const auto x = at::randn({2 * side, side}) * scale;
    return x.t().mm(x).div_(static_cast<double>(2 * side)).unsqueeze(0);
  };
  const auto before = covariance(), other = covariance();
  return {before, before * 0.95 + (before * 1.1 * (1 - moved) + other * moved) * 0.05, other};
}

double error_of(const Eigenbasis& basis, const at::Tensor& factor, const at::Tensor& damping, const at::Tensor& g) {
  const auto q = basis.vectors[0];
  const auto v = q.mm(q.t().mm(g) / (basis.values[0].unsqueeze(1) + damping));
  const auto dense = factor[0].to(at::kDouble) + damping * at::eye(factor.size(1), at::kDouble);
  const auto exact = at::linalg_solve(dense, g.to(at::kDouble));
  return ((v - exact).norm() / exact.norm()).item<double>();
}

void measure(int64_t side, double moved, double tolerance, int64_t rounds) {
  const Moved factor = factors(side, moved);
  const auto damping = factor.after.diagonal(0, 1, 2).mean() * 0.3, g = at::randn({side, 32});
  const auto last = Eigenbasis::identity(1, side, factor.before.options());
  if (!decompose(factor.before, last)) std::abort();
  const auto copy = [&] { return Eigenbasis{last.vectors.clone(), last.values.clone()}; };
  const Eigenbasis anew = copy(), warm = copy();
  Refreshed outcome{};
  std::array<std::vector<double>, 3> seconds;
  for (int64_t round = 0; round <= rounds; ++round) {
    const Eigenbasis refused = copy();
    warm.vectors.copy_(last.vectors);
    const std::array<double, 3> taken{
        seconds_of([&] { (void)refresh(factor.after, anew); }),
        seconds_of([&] { outcome = refresh(factor.after, warm, damping, tolerance); }),
        seconds_of([&] { (void)refresh(factor.elsewhere, refused, damping, tolerance); })};
    for (size_t i = 0; round > 0 && i < taken.size(); ++i) seconds[i].push_back(taken[i]);
  }
  const double full = spillway::median(seconds[0]), quick = spillway::median(seconds[1]);
  std::printf("%5lld %10.2f ms %10.2f ms %10.2f ms %6.2f  %-8s %.1e  %.1e\n", static_cast<long long>(side), full * 1e3,
              quick * 1e3, spillway::median(seconds[2]) * 1e3, full / quick,
              outcome == Refreshed::rescaled ? "kept" : "solved", error_of(warm, factor.after, damping, g),
              error_of(anew, factor.after, damping, g));
}

/// Prints a line for a renewal `at_once`, and in pieces of which `next` does one. `begin` makes what they work on.
void compare(const char* what, int64_t side, int64_t pieces, int64_t rounds, const std::function<void()>& at_once,
             const std::function<void()>& begin, const std::function<void()>& next) {
  std::vector<double> whole, all, longest;
  int64_t longest_piece = 0;
  for (int64_t round = 0; round <= rounds; ++round) {
    const double once = seconds_of(at_once);
    double sum = seconds_of(begin), most = 0;
    for (int64_t piece = 0; piece < pieces; ++piece) {
      const double one = seconds_of(next);
      sum += one;
      if (one > most) longest_piece = piece;
      most = std::max(most, one);
    }
    if (round == 0) continue;
    whole.push_back(once);
    all.push_back(sum);
    longest.push_back(most);
  }
  const double once = spillway::median(whole), sum = spillway::median(all);
  std::printf("%5lld %-12s %10.2f ms %10.2f ms %6.2f %4lld pieces, longest %8.2f ms, piece %lld\n",
              static_cast<long long>(side), what, once * 1e3, sum * 1e3, sum / once, static_cast<long long>(pieces),
              spillway::median(longest) * 1e3, static_cast<long long>(longest_piece));
}

void measure_pieces(int64_t side, int64_t rounds) {
  using spillway::kfac::kPanelColumns, spillway::kfac::PanelInverse, spillway::kfac::SubspaceIteration;
  const auto factor = factors(side, 0).before, matrix = factor + 0.1 * at::eye(side);
  at::Tensor kept = at::zeros_like(matrix);
  std::optional<PanelInverse> inverse;
  compare(
      "inverse", side, PanelInverse::pieces(side, kPanelColumns), rounds,
      [&] { kept.copy_(at::cholesky_inverse(std::get<0>(at::linalg_cholesky_ex(matrix.clone())))); },
      [&] { inverse.emplace(matrix.clone(), kPanelColumns); }, [&] { inverse->run_next(); });
  for (int64_t rank : {side / 3, side / 32}) {
    const Eigenbasis last{at::zeros({1, side, rank}), at::zeros({1, rank + 1})};
    spillway::kfac::randomize({last});
    if (!iterate_subspace(factor, last)) std::abort();
    const Eigenbasis basis{last.vectors.clone(), last.values.clone()};
    std::optional<SubspaceIteration> iteration;
    compare(
        rank == side / 3 ? "third" : "automatic", side, SubspaceIteration::pieces(rank, kPanelColumns), rounds,
        [&] { (void)iterate_subspace(factor, basis); }, [&] { iteration.emplace(factor, rank, kPanelColumns); },
        [&] { iteration->run_next(last); });
  }
}

}  // namespace

int main(int argc, char** argv) {
  const double moved = argc > 1 ? std::atof(argv[1]) : 1e-4, tolerance = argc > 2 ? std::atof(argv[2]) : 1e-3;
  const int64_t rounds = argc > 3 ? std::atoll(argv[3]) : 5;
  at::NoGradGuard no_grad;
  std::printf("moved %g, tolerance %g, median of %lld\n%5s %13s %13s %13s %6s  %-8s %s\n", moved, tolerance,
              static_cast<long long>(rounds), "side", "anew", "refreshed", "refused", "ratio", "", "errors");
  for (int64_t side : {64, 256, 864, 1728}) measure(side, moved, tolerance, rounds);
  for (int64_t side : {768, 3072}) measure_pieces(side, rounds);
}
