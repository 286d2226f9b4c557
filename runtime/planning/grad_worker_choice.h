/// The budget decides grad_worker_frac, and strategy `auto`: memory for factors and eigenbases against messages.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "kfac/plan/strategy_choice.h"

namespace spillway {

struct GradWorkerInputs {
  std::vector<kfac::LayerShape> layers;
  kfac::KfacOptions options;
  int64_t world = 1;
  int64_t budget_bytes = 0;
  /// Peak and seconds of an unconstrained first step at the smallest fraction, 1/world; of hybrid where the strategy is
  /// to be chosen too.
  int64_t first_step_peak_bytes = 0;
  /// The smallest budget of that step, 0 where nobody knows, and what is too small to be paged: more of it needs more.
  int64_t floor_bytes = 0;
  int64_t min_page_bytes = 4096;
  double step_seconds = 0;
  double copy_bytes_per_second = 4e9;       ///< one direction, beside compute
  double broadcast_bytes_per_second = 1e9;  ///< into one rank
};

struct GradWorkerChoice {
  kfac::Strategy strategy = kfac::Strategy::hybrid;  ///< the one asked for, or chosen where that is automatic
  double grad_worker_frac = 1;
  std::string reason;  ///< with the bytes and seconds that decided
};

/// The fraction of 1/world … 1, and for Strategy::automatic the strategy (kfac::exact_choices), with the least
/// predicted time per step. A choice holds what kfac::bytes_per_rank says and receives what kfac::traffic_per_rank
/// says; one that the budget has no room for, since tensors below a page stay, is no choice. Bytes above the budget are
/// paged, out and in each step, and cost only what compute cannot hide; messages are not hidden. On a tie the earlier
/// choice, of fractions the larger: streaming eigenbases comes before fewer gradient workers. Changes no bit of the
/// result. Deterministic.
GradWorkerChoice choose_grad_worker_frac(const GradWorkerInputs& inputs);

}  // namespace spillway
