#include "kfac/refresh/refresh_plan.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "kfac/inverse/panel_inverse.h"
#include "kfac/inverse/truncated_eigenbasis.h"
#include "kfac/plan/step_work.h"
#include "kfac/refresh/layer_batches.h"

namespace spillway::kfac {

using What = RefreshWork::What;

RefreshPlan::RefreshPlan(const Setup& setup) : setup_(setup) {
  const auto& options = setup.options;
  const auto shapes = shapes_of(setup.layers);
  for (size_t set = 0; set < setup.cycle.sets().size(); ++set) {
    Groups& groups = sets_.emplace_back();
    groups.buckets = factor_buckets(shapes, setup.assignments, options.factor_dtype, layers(set));
    groups.averages = averages_of(set, groups.buckets);
    groups.renewals = renewals_of(set, setup.rank());
    if (options.curvature_delay > 0) groups.late_pieces = late_pieces_of(set);
  }
  for (int64_t step = 0; options.curvature_delay > 0 && step < setup.cycle.length(); ++step)
    late_kinds_.push_back(str("refresh ", step));
}

// --- when ------------------------------------------------------------------------------------------------------------

StepWork RefreshPlan::work(const KfacCounters& done, const UpdateCycle& cycle) const {
  const int64_t step = done.steps;
  StepWork work;
  if (setup_.options.layer_curvature.empty()) {
    work = work_of_step(done, setup_.options);
  } else {
    work.updates_factors = work.decomposes = !cycle.sets()[cycle.set_of(step)].empty();
    work.kind = cycle.kind(cycle.set_of(step));
  }
  if (!is_late(step)) return work;
  const int64_t taken = step - setup_.options.curvature_delay;
  work.decomposes = taken > 0 && !cycle.sets()[cycle.set_of(taken)].empty();
  work.kind = late_kinds_[step % setup_.cycle.length()];
  return work;
}

bool RefreshPlan::renews(size_t layer, int64_t steps) const {
  for (int64_t step = std::max<int64_t>(1, steps - setup_.options.curvature_delay); step < steps; ++step) {
    const auto& due = layers(set_of(step));
    if (std::find(due.begin(), due.end(), layer) != due.end()) return true;
  }
  return false;
}

// --- what ------------------------------------------------------------------------------------------------------------

std::vector<AverageGroup> RefreshPlan::averages_of(size_t set, const std::vector<FactorBucket>& buckets) const {
  std::vector<AverageGroup> groups;
  std::vector<bool> travels(setup_.layers.size());
  for (size_t b = 0; b < buckets.size(); ++b) {
    groups.push_back({buckets[b].layers, b});
    for (size_t i : buckets[b].layers) travels[i] = true;
  }
  // Reductions that start during backward start, and end, in the order in which backward meets their layers.
  if (setup_.options.overlap_factors) std::reverse(groups.begin(), groups.end());
  AverageGroup stay;
  for (size_t i : layers(set))
    if (!travels[i]) stay.layers.push_back(i);
  if (setup_.options.curvature_delay > 0)  // a piece of a late refresh is small
    for (size_t i : stay.layers) groups.push_back({{i}, std::nullopt});
  else if (!stay.layers.empty())
    groups.push_back(std::move(stay));
  return groups;
}

std::vector<RenewalGroup> RefreshPlan::renewals_of(size_t set, int64_t rank) const {
  const auto& options = setup_.options;
  const bool solves_groups = options.method == Method::eigen && options.warm_start == 0;
  // A piece of a late refresh is small.
  const bool follows_groups =
      options.method == Method::eigen && options.curvature_delay == 0 && batch_elements(setup_) > 0;
  std::vector<FactorId> together;
  std::vector<RenewalGroup> groups;
  for (size_t i : layers(set))
    for (size_t f = 0; f < setup_.assignments[i].owners.size(); ++f) {
      const FactorId id{i, f};
      if (setup_.assignments[i].owners[f] != rank) continue;
      if (setup_.factor(id).is_truncated() ? follows_groups : solves_groups)
        together.push_back(id);
      else
        groups.push_back({id});
    }
  for (auto& group : groups_of_one_side(shapes_of(setup_.layers), together)) groups.push_back(std::move(group));
  return groups;
}

int64_t RefreshPlan::pieces_of(const RenewalGroup& group, bool is_late) const {
  const FactorShape factor = setup_.factor(group.front());
  const int64_t most = setup_.options.panel_columns;
  if (!is_late || factor.side <= most) return 1;
  if (setup_.options.method != Method::eigen) return PanelInverse::pieces(factor.side, most);
  // LAPACK's eigensolver of a whole factor cannot be left in its midst.
  return factor.is_truncated() ? SubspaceIteration::pieces(factor.rank, most) : 1;
}

std::vector<int64_t> RefreshPlan::late_pieces_of(size_t set) const {
  std::vector<int64_t> most;
  for (int64_t rank = 0; rank < setup_.exchange.world(); ++rank) {
    const auto groups = renewals_of(set, rank);
    most.resize(std::max(most.size(), groups.size()));
    for (size_t g = 0; g < groups.size(); ++g) most[g] = std::max(most[g], pieces_of(groups[g], /*is_late=*/true));
  }
  return most;
}

void RefreshPlan::add_renewals(size_t set, bool is_late, std::vector<RefreshWork>& pieces) const {
  const auto& own = sets_[set].renewals;
  const auto most = is_late ? sets_[set].late_pieces : std::vector<int64_t>(own.size(), 1);
  for (size_t g = 0; g < most.size(); ++g)
    for (int64_t piece = 0; piece < most[g]; ++piece) {
      auto& work =
          pieces.emplace_back(RefreshWork{.what = What::renew, .index = static_cast<int64_t>(g), .piece = piece});
      if (g >= own.size() || piece >= pieces_of(own[g], is_late)) continue;
      for (const FactorId& id : own[g]) work.layers.push_back(id.layer);
    }
}

std::vector<RefreshWork> RefreshPlan::pieces(int64_t step, int64_t micro_batches) const {
  std::vector<RefreshWork> all;
  const size_t set = set_of(step);
  for (size_t i : layers(set))
    for (int64_t m = 0; m < micro_batches; ++m)
      all.push_back({.what = What::statistics, .index = static_cast<int64_t>(i), .micro_batch = m, .layers = {i}});
  for (size_t g = 0; g < sets_[set].averages.size(); ++g)
    all.push_back({.what = What::average, .index = static_cast<int64_t>(g), .layers = sets_[set].averages[g].layers});
  add_renewals(set, is_late(step), all);
  if (setup_.exchange.world() > 1 || setup_.options.precompute_outer)
    for (size_t i : layers(set)) all.push_back({.what = What::share, .index = static_cast<int64_t>(i), .layers = {i}});
  return all;
}

}  // namespace spillway::kfac
