// The intervals of a Kfac's work, and its decompositions beside the steps.
#include <ATen/ATen.h>

#include <algorithm>
#include <array>

#include "kfac/preconditioner.h"

namespace spillway::kfac {
namespace {

bool is_due(int64_t step, int64_t last, double interval) {
  return last < 0 || static_cast<double>(step - last) >= interval;
}

bool decompositions_are_due(const KfacCounters& c, const KfacOptions& options) {
  return is_due(c.steps, c.last_decomposition_step, options.at(c.steps).inverse_interval);
}

}  // namespace

bool Preconditioner::updates_factors() const {
  if (!options_.layer_curvature.empty()) return !due_layers().empty();
  return counters_.steps < options_.burn_in || factors_are_due();
}

bool Preconditioner::factors_are_due() const {
  return is_due(counters_.steps, counters_.last_factor_step, options_.at(counters_.steps).factor_interval);
}

bool Preconditioner::decomposes() const {
  if (!options_.layer_curvature.empty()) return !due_layers().empty();
  if (options_.staleness == 0 || counters_.last_decomposition_step < 0)
    return decompositions_are_due(counters_, options_);
  return counters_.last_launch_step >= 0 && counters_.steps == counters_.last_launch_step + options_.staleness;
}

bool Preconditioner::launches() const {
  return options_.staleness > 0 && counters_.last_decomposition_step >= 0 &&
         decompositions_are_due(counters_, options_);
}

std::string_view Preconditioner::kind() const {
  if (!options_.layer_curvature.empty()) return cycle_.kind(due_set());
  static constexpr std::array<std::string_view, 8> kKinds{
      "plain",  "factor",        "decompose",        "factor+decompose",
      "launch", "factor+launch", "decompose+launch", "factor+decompose+launch"};
  return kKinds[updates_factors() + 2 * decomposes() + 4 * launches()];
}

Eigenbasis Preconditioner::pending_basis(size_t i, size_t f) const {
  const auto job = std::find(owned_.begin(), owned_.end(), FactorId{i, f});
  if (!background_ || job == owned_.end()) return {};
  BackgroundSolver& solver = *background_;
  solver.wait();
  const size_t stack = job - owned_.begin();
  const auto [role, side, count, rank] = layers_[i].shape.factors()[f];
  const auto type = state_options(layers_[i].weight).device(at::kCPU);
  return {at::from_blob(solver.matrices(stack), {count, side, side}, type),
          at::from_blob(solver.values(stack), {count, side}, type)};
}

void Preconditioner::start_decomposition() {
  Stopwatch watch(seconds_.decompose);
  for (const auto& [i, f] : owned_) {
    pending_basis(i, f).vectors.copy_(factor(i, f));
    flops_.decompose += decomposition_flops(layers_[i].shape, layers_[i].shape.factors()[f]);
  }
  background_->start();
  counters_.last_launch_step = counters_.last_decomposition_step = counters_.steps;
}

void Preconditioner::adopt_decomposition() {
  Stopwatch watch(seconds_.decompose);
  for (const auto& [i, f] : owned_) {
    const auto [rows, values] = pending_basis(i, f);
    if (at::isfinite(values.sum() + rows.sum()).item<bool>()) {
      const auto basis = inverses_[i].basis(layers_[i].shape, f);
      basis.vectors.copy_(rows.transpose(1, 2));
      basis.values.copy_(values.clamp_min(0));
    } else {
      keep_eigenvectors(i, f);
    }
  }
}

}  // namespace spillway::kfac
