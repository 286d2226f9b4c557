/// The budget decides grad_worker_frac: memory for eigenbases against a broadcast of gradients in every step.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "kfac/assignment.h"

namespace spillway {

struct GradWorkerInputs {
  std::vector<kfac::LayerShape> layers;
  kfac::KfacOptions options;
  int64_t world = 1;
  int64_t budget_bytes = 0;
  /// Peak and seconds of an unconstrained first step at the smallest fraction, 1/world.
  int64_t first_step_peak_bytes = 0;
  double step_seconds = 0;
  double copy_bytes_per_second = 4e9;       ///< one direction, beside compute
  double broadcast_bytes_per_second = 1e9;  ///< into one rank
};

struct GradWorkerChoice {
  double grad_worker_frac = 1;
  std::string reason;  ///< with the bytes and seconds that decided
};

/// The fraction of 1/world … 1 with the least predicted time per step. A fraction f holds f·E bytes of eigenbases
/// (kfac::bytes_per_rank) and receives what kfac::traffic_per_rank says. Bytes above the budget are paged, out and in
/// each step, and cost only what compute cannot hide; broadcasts are not hidden. On a tie the larger fraction:
/// streaming eigenbases comes before fewer gradient workers. Changes no bit of the result. Deterministic.
GradWorkerChoice choose_grad_worker_frac(const GradWorkerInputs& inputs);

}  // namespace spillway
