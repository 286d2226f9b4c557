/// What a Kfac has done so far. LibTorch-free.
#pragma once
#include <cstdint>

namespace spillway::kfac {

/// What has happened since construction, on this rank.
struct KfacCounters {
  int64_t steps = 0;
  int64_t factor_updates = 0;         ///< steps that updated the factors
  int64_t decompositions = 0;         ///< steps that refreshed the eigenbases
  int64_t dropped_factors = 0;        ///< new factors that were not finite; the running average was kept
  int64_t failed_decompositions = 0;  ///< factors that kept their last eigenbasis or inverse
  int64_t warm_starts = 0;            ///< factors that kept their last eigenvectors, with new eigenvalues
  int64_t last_factor_step = -1;  ///< the last whose update the interval asked for (burn-in does not count); -1: none
  int64_t last_decomposition_step = -1;  ///< the last whose factors were decomposed or launched; -1: none
  int64_t last_launch_step = -1;         ///< the last whose factors went to the thread that decomposes them; -1: none
  int64_t last_adaptation = 0;           ///< steps that were done when adapt_damping() was last called
  double damping_scale = 1;              ///< what adapt_damping() has made of the options' damping: a factor
};

/// Wall seconds on the calling thread since construction (on CUDA: until the work was queued).
struct KfacSeconds {
  double factor_compute = 0;
  double factor_communicate = 0;
  double decompose = 0;  ///< with staleness: copies to and from the thread, and waiting for it
  double eigenbasis_communicate = 0;
  double precondition = 0;
  double gradient_communicate = 0;
};

/// Floating-point operations on this rank since construction, in the phases of KfacSeconds.
struct KfacFlops {
  double factor_compute = 0;  ///< of the products that were carried out, however many those are
  double decompose = 0;       ///< decomposition_flops(): as if by full solves
  double precondition = 0;
};

}  // namespace spillway::kfac
