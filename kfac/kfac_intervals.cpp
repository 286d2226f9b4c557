// The intervals of a Kfac's work, and its decompositions beside the steps.
#include <ATen/ATen.h>

#include <algorithm>

#include "kfac/plan/step_work.h"
#include "kfac/preconditioner.h"

namespace spillway::kfac {

bool Preconditioner::updates_factors(const UpdateCycle& cycle) const {
  if (!options_.layer_curvature.empty()) return !cycle.sets()[cycle.set_of(counters_.steps)].empty();
  return work_of_step(counters_, options_).updates_factors;
}

bool Preconditioner::decomposes(const UpdateCycle& cycle) const {
  if (is_late(counters_.steps)) {
    const int64_t taken = counters_.steps - options_.curvature_delay;
    return taken > 0 && !cycle.sets()[cycle.set_of(taken)].empty();
  }
  if (!options_.layer_curvature.empty()) return !cycle.sets()[cycle.set_of(counters_.steps)].empty();
  return work_of_step(counters_, options_).decomposes;
}

bool Preconditioner::launches() const {
  return options_.layer_curvature.empty() && work_of_step(counters_, options_).launches;
}

std::string_view Preconditioner::kind() const {
  if (is_late(counters_.steps)) return late_kinds_[counters_.steps % cycle_.length()];
  if (!options_.layer_curvature.empty()) return cycle_.kind(due_set());
  return work_of_step(counters_, options_).kind();
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
      const auto basis = renewed(i).basis(layers_[i].shape, f);
      basis.vectors.copy_(rows.transpose(1, 2));
      basis.values.copy_(values.clamp_min(0));
    } else {
      keep_eigenvectors(i, f);
    }
  }
}

}  // namespace spillway::kfac
