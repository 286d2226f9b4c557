#include "kfac/plan/curvature_plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <tuple>

#include "core/error.h"
#include "kfac/plan/decomposition_costs.h"

namespace spillway::kfac {
namespace {

// Operations a second of a large product on the machine of DecompositionCosts' points, and the times that others take
// for one of their operations.
constexpr double kProductRate = 1e11;
constexpr double kNarrowProduct = 2;
constexpr double kOrthogonalization = 4;

constexpr int64_t kMinRank = 16, kMaxRank = 1 << 20;  // powers of two
constexpr int64_t kMinRows = 64;
constexpr int64_t kMinRowsPerSide = 8;  // rows are at least a side's eighth

double eigensolver_work(int64_t side) {
  return DecompositionCosts{}.decomposition_seconds(side, 1) * kProductRate;
}

double decomposition_work(const LayerShape& layer, const FactorShape& factor) {
  const auto n = static_cast<double>(factor.side), r = static_cast<double>(factor.rank);
  const auto count = static_cast<double>(factor.count);
  if (layer.inverse.method != Method::eigen) return count * kNarrowProduct * n * n * n;
  if (!factor.is_truncated()) return count * eigensolver_work(factor.side);
  return count * (4 * n * n * r + kOrthogonalization * 8 * n * r * r + eigensolver_work(factor.rank));
}

// Returns the rows that the sum of a factor of inputs takes.
int64_t rows_of(const FactorShape& factor, int64_t positions, const FactorSamples& samples) {
  return samples.is_exact() ? positions : std::min(positions, samples.fewest(factor.side));
}

double factor_work(const LayerShape& layer, const FactorShape& factor, int64_t positions,
                   const FactorSamples& samples) {
  const auto side = static_cast<double>(factor.side), count = static_cast<double>(factor.count);
  const bool is_output = factor.role == FactorRole::output;
  double rows = static_cast<double>(is_output ? positions : rows_of(factor, positions, samples));
  const int64_t channels = layer.in / layer.groups;
  if (factor.role == FactorRole::offsets) rows *= static_cast<double>(channels);
  return kNarrowProduct * 2 * rows * count * side * side;
}

// A layer's part of a plan in the making.
struct Draft {
  const LayerShape* given;
  int64_t positions;
  double world;
  LayerCurvature now;
  double work = 0;  // a step

  double work_of(const LayerCurvature& curvature) const {
    auto work = curvature_work(*given, positions, curvature);
    work.decomposition /= world;
    return work.per_step(curvature.interval);
  }
  void take(const LayerCurvature& curvature) {
    now = curvature;
    work = work_of(curvature);
  }
};

// Returns `now` with fewer rows in an update's sums; as it is where none are left to save.
LayerCurvature with_fewer_rows(const LayerShape& layer, int64_t positions, LayerCurvature now) {
  const int64_t side = layer.factors().front().side;
  const int64_t rows = std::min(positions, now.samples.fewest(side));
  const int64_t least = std::max(kMinRows, side / kMinRowsPerSide);
  if (rows > least) now.samples = FactorSamples::at_least(std::max(rows / 2, least));
  return now;
}

// Returns the rank of the factor that keeps most eigenvectors.
int64_t largest_rank(LayerShape layer, EigenRank rank) {
  layer.inverse.rank = rank;
  int64_t most = 0;
  for (const auto& factor : layer.factors())
    if (factor.role != FactorRole::offsets) most = std::max(most, factor.rank);
  return most;
}

// Returns `now` with about half of the eigenvectors, or fewer, of the factor that keeps most. Ranks near a side count
// as full, so the next power of two may change nothing.
LayerCurvature with_lower_rank(const LayerShape& layer, LayerCurvature now) {
  const int64_t most = largest_rank(layer, now.rank);
  for (int64_t rank = kMaxRank; rank >= kMinRank; rank /= 2)
    if (rank < most && largest_rank(layer, EigenRank::of(rank)) < most) {
      now.rank = EigenRank::of(rank);
      break;
    }
  return now;
}

// Takes the cut that saves most, of those that `cuts`(draft) returns. Returns false when none saves anything.
template <class Cuts>
bool cut(std::vector<Draft>& drafts, const Cuts& cuts) {
  Draft* best = nullptr;
  LayerCurvature choice;
  double saved = 0;
  for (auto& draft : drafts)
    for (const auto& candidate : cuts(draft))
      if (const double saving = draft.work - draft.work_of(candidate); saving > saved) {
        best = &draft;
        choice = candidate;
        saved = saving;
      }
  if (best) best->take(choice);
  return best;
}

double total(const std::vector<Draft>& drafts) {
  return std::accumulate(drafts.begin(), drafts.end(), 0.0,
                         [](double sum, const Draft& draft) { return sum + draft.work; });
}

// Spreads the updates over the steps of the longest interval: the longest work first, to where least is due.
void spread(std::vector<Draft>& drafts) {
  int64_t cycle = 1;
  for (const auto& draft : drafts) cycle = std::max(cycle, draft.now.interval);
  std::vector<double> load(cycle, 0.0);
  std::vector<size_t> order(drafts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto update_work = [&](const Draft& draft) {
    const auto work = curvature_work(*draft.given, draft.positions, draft.now);
    return work.factors + work.decomposition / draft.world;
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return update_work(drafts[a]) > update_work(drafts[b]); });
  for (size_t i : order) {
    auto& now = drafts[i].now;
    const auto peak = [&](int64_t slot) {
      double most = 0;
      for (int64_t step = slot; step < cycle; step += now.interval) most = std::max(most, load[step]);
      return most;
    };
    for (int64_t slot = 1; slot < now.interval; ++slot)
      if (peak(slot) < peak(now.slot)) now.slot = slot;
    for (int64_t step = now.slot; step < cycle; step += now.interval) load[step] += update_work(drafts[i]);
  }
}

void check(const CurvatureInputs& inputs, const KfacOptions& options) {
  if (!(inputs.time_share > 0 && inputs.time_share <= 1))
    throw BadRequest(str("[kfac.plan] time_share = ", inputs.time_share, " is outside (0, 1]"));
  const StepSchedule factor = options.factor_interval_in_use(), inverse = options.inverse_interval_in_use();
  const bool is_default = !options.factor_interval && !options.inverse_interval;
  if (!is_default && (!factor.is_constant() || !inverse.is_constant() || factor.at(0) != inverse.at(0)))
    throw BadRequest(str("[kfac.plan] time_share goes with constant and equal intervals; factor_interval = ",
                         factor.at(0), ", inverse_interval = ", inverse.at(0), " at step 0"));
  if (inputs.positions.size() != inputs.layers.size())
    throw BadRequest(
        str("[kfac.plan] positions of ", inputs.positions.size(), " layers were given for ", inputs.layers.size()));
}

}  // namespace

CurvatureWork curvature_work(const LayerShape& layer, int64_t positions, const LayerCurvature& curvature) {
  LayerShape shape = layer;
  if (shape.inverse.method == Method::eigen) shape.inverse.rank = curvature.rank;
  CurvatureWork work;
  for (const auto& factor : shape.factors()) {
    work.factors += factor_work(shape, factor, positions, curvature.samples);
    work.decomposition += decomposition_work(shape, factor);
  }
  work.preconditioning = precondition_flops(shape);
  return work;
}

double first_order_work(const LayerShape& layer, int64_t positions) {
  return 6 * static_cast<double>(positions) * static_cast<double>(layer.gradient_elements());
}

CurvaturePlan plan_curvature(const CurvatureInputs& inputs, const KfacOptions& options) {
  check(inputs, options);
  const auto interval = static_cast<int64_t>(std::ceil(options.at(0).factor_interval));
  std::vector<Draft> drafts;
  double first_order = 0;
  for (size_t i = 0; i < inputs.layers.size(); ++i) {
    first_order += first_order_work(inputs.layers[i], inputs.positions[i]);
    drafts.push_back({&inputs.layers[i], inputs.positions[i], static_cast<double>(inputs.world), {}});
    drafts.back().take({inputs.layers[i].name, options.factor_samples, options.rank_in_use(), interval, 0});
  }
  const bool saves_rows = options.factor_samples == FactorSamples::automatic();
  const bool saves_ranks = options.rank_in_use() == EigenRank::automatic();
  const auto smaller = [&](const Draft& draft) {
    std::vector<LayerCurvature> cuts;
    if (saves_rows && draft.given->kind != LayerKind::linear)
      cuts.push_back(with_fewer_rows(*draft.given, draft.positions, draft.now));
    if (saves_ranks) cuts.push_back(with_lower_rank(*draft.given, draft.now));
    return cuts;
  };
  int64_t longest = interval;
  while (longest < kMaxStretch * interval && 2 * longest <= kMaxCycle) longest *= 2;
  const auto rarer = [&](const Draft& draft) {
    LayerCurvature now = draft.now;
    now.interval = std::min(2 * now.interval, longest);
    return std::vector{now};
  };
  const auto too_much = [&] { return total(drafts) > inputs.time_share * first_order; };
  while (too_much() && cut(drafts, smaller)) {
  }
  while (too_much() && cut(drafts, rarer)) {
  }
  spread(drafts);
  CurvaturePlan plan;
  for (const auto& draft : drafts) plan.layers.push_back(draft.now);
  plan.time_share = first_order > 0 ? total(drafts) / first_order : 0;
  KfacOptions with_plan = options;
  with_plan.layer_curvature = plan.layers;
  with_plan.validate();
  return plan;
}

}  // namespace spillway::kfac
