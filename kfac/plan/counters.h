/// The work of a Kfac: of one step, and the counts, times, operations and bytes so far. LibTorch-free.
#pragma once
#include <cstdint>
#include <string_view>

namespace spillway::kfac {

/// The work of one step besides preconditioning.
struct StepWork {
  bool updates_factors = false;
  bool decomposes = false;  ///< it renews eigenbases or inverses: now, or from the solver's thread
  bool launches = false;    ///< it hands factors to the solver's thread (KfacOptions::staleness)
  /// The name of the kind of step: `plain`, or those of `factor`, `decompose` and `launch` that apply, joined by `+`.
  /// With layer_curvature it is UpdateCycle::kind(). Steps of one kind do the same work on the same memory, except for
  /// the work that warm_start saves.
  std::string_view kind = "plain";
};

/// Counts of events since construction, on this rank. Those of a stage of a model differ from the other stages' in
/// factors that had trouble alone.
struct KfacCounters {
  int64_t steps = 0;
  int64_t factor_updates = 0;         ///< steps that updated the factors
  int64_t decompositions = 0;         ///< steps that refreshed the eigenbases
  int64_t dropped_factors = 0;        ///< new factors that were not finite; the running average was kept
  int64_t failed_decompositions = 0;  ///< factors that kept their last eigenbasis or inverse
  int64_t warm_starts = 0;            ///< factors that kept their last eigenvectors, with new eigenvalues
  int64_t last_factor_step = -1;  ///< last step whose update the interval asked for (burn-in does not count); -1: none
  int64_t last_decomposition_step = -1;  ///< last step whose factors were decomposed or launched; -1: none
  int64_t last_launch_step = -1;         ///< last step whose factors went to the solver's thread; -1: none
  int64_t last_adaptation = 0;           ///< steps that were done when adapt_damping() was last called
  double damping_scale = 1;              ///< factor on the options' damping, set by adapt_damping()
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

/// A phase of a step, and its seconds.
struct KfacPhase {
  std::string_view name;   ///< in JSON
  std::string_view title;  ///< for readers
  double KfacSeconds::*seconds;
};

/// The phases in their order.
inline constexpr KfacPhase kKfacPhases[] = {
    {"factor_compute", "factors", &KfacSeconds::factor_compute},
    {"factor_communicate", "averaging factors", &KfacSeconds::factor_communicate},
    {"decompose", "decomposition", &KfacSeconds::decompose},
    {"eigenbasis_communicate", "sending eigenbases", &KfacSeconds::eigenbasis_communicate},
    {"precondition", "preconditioning", &KfacSeconds::precondition},
    {"gradient_communicate", "sending gradients", &KfacSeconds::gradient_communicate}};

/// Floating-point operations on this rank since construction, in the phases of KfacSeconds.
struct KfacFlops {
  double factor_compute = 0;  ///< operations of the products that were actually carried out
  double decompose = 0;       ///< decomposition_flops(), counted as if every factor took a full solve
  double precondition = 0;
};

/// Bytes of K-FAC state on one rank.
struct FactorBytes {
  int64_t factors = 0;     ///< running averages, always held
  int64_t eigenbases = 0;  ///< Q and v of the layers for which the rank is a gradient worker, always held
  int64_t scales = 0;      ///< 1/(v_G v_Aᵀ + γ) of these layers where it is held: scale_tensors()
  int64_t staged = 0;      ///< a factor step's new factors, from the layer's backward to the end of step()
  int64_t messages = 0;    ///< with overlap_factors: factors in transit, and scratch, from a bucket's start to step()
  int64_t background = 0;  ///< with KfacOptions::staleness: plain memory beside the device's, neither counted nor paged
  int64_t held() const { return factors + eigenbases + scales; }
  int64_t peak() const { return held() + staged; }
  bool operator==(const FactorBytes&) const = default;
};

/// The bytes that a Kfac holds on this rank now, and its work since construction.
struct KfacUsage {
  FactorBytes bytes;  ///< the Ledger counts the same tensors, each with the allocator's rounding
  KfacSeconds seconds;
  KfacFlops flops;
};

}  // namespace spillway::kfac
