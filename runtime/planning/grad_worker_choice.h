/// The choice of grad_worker_frac, and of the strategy for `auto`, by the budget. It weighs the memory for factors and
/// eigenbases against messages.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "kfac/plan/strategy_choice.h"

namespace spillway {
struct TrainOptions;
}

namespace spillway::runtime {

struct GradWorkerInputs {
  std::vector<kfac::LayerShape> layers;
  kfac::KfacOptions options;
  int64_t world = 1;
  int64_t budget_bytes = 0;
  /// Peak and seconds of an unconstrained first step at the smallest fraction, 1/world. The strategy of that step is
  /// hybrid where the strategy is to be chosen too.
  int64_t first_step_peak_bytes = 0;
  /// The smallest budget of that step, 0 where it is unknown. Tensors below min_page_bytes are too small to be paged,
  /// so a choice with more of them needs a larger budget.
  int64_t floor_bytes = 0;
  int64_t min_page_bytes = 4096;
  double step_seconds = 0;
  double copy_bytes_per_second = 4e9;       ///< in one direction, beside compute
  double broadcast_bytes_per_second = 1e9;  ///< received by one rank
};

struct GradWorkerChoice {
  kfac::Strategy strategy = kfac::Strategy::hybrid;  ///< the one asked for, or chosen where that is automatic
  double grad_worker_frac = 1;
  std::string reason;                 ///< explanation with the bytes and seconds that decided
  int64_t gradient_buffer_bytes = 0;  ///< GradientExchangeOptions::buffer_bytes; 0: those that are asked for
};

/// Chooses the fraction of 1/world … 1 with the least predicted time per step, and for Strategy::automatic also the
/// strategy (kfac::exact_choices()). A choice holds the bytes of kfac::bytes_per_rank() and receives the bytes of
/// kfac::traffic_per_rank(). A choice is excluded when the budget has no room for it, because tensors below a page stay
/// resident. Bytes above the budget are paged, out and in each step. They cost only the time that compute cannot hide;
/// messages are not hidden. On a tie the earlier choice is taken, and of fractions the larger, because streaming
/// eigenbases is preferred to fewer gradient workers. The choice changes no bit of the result. Deterministic.
GradWorkerChoice choose_grad_worker_frac(const GradWorkerInputs& inputs);

/// Chooses how K-FAC is distributed over the ranks of a run. Called by every rank together; all get the same choice.
class WorkersPlanner {
 public:
  virtual ~WorkersPlanner() = default;
  /// Returns the fastest of the options' choices that the budget can run.
  virtual GradWorkerChoice choose(const TrainOptions& options, int64_t budget_bytes) = 0;
};

}  // namespace spillway::runtime
