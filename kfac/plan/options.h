/// What a user chooses about second-order preconditioning. LibTorch-free.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kfac/plan/option_types.h"
#include "kfac/plan/step_schedule.h"

namespace spillway::kfac {

/// κ = value / (1 + step/steps): what a convention comes with.
struct KlClipDefault {
  double value, steps;
};
/// 3e-5 that falls over 10 steps under `fisher`, whose G is small; a constant 1e-3, as published, under the others.
KlClipDefault default_kl_clip(Convention convention);

/// The numbers of one optimizer step.
struct StepNumbers {
  double lr;
  double kl_clip;
  double factor_interval;
  double inverse_interval;
  double relative_damping;
  std::optional<double> damping;
};

/// The statistics are the empirical Fisher's (gradients of the true labels). Intervals count optimizer steps.
struct KfacOptions {
  Strategy strategy = Strategy::hybrid;
  /// Share of the ranks that precondition a layer: k/W for a whole k, in (0, 1]; two decimals will do (0.33 is a
  /// third). More costs eigenbasis bytes on more ranks, less costs a broadcast of the layer's gradient in every step.
  /// Read by `hybrid` and `owner_reduce`.
  double grad_worker_frac = 1.0;
  /// A share for each layer instead, in the order of Kfac::layers(); empty: the same for all.
  std::vector<double> layer_grad_worker_fracs = {};
  Placement placement = Placement::lpt_time;
  /// For Placement::measured: seconds to decompose `count` matrices of `side`, > 0. Rank 0's numbers count; without
  /// any it measures them (measure_decompositions()).
  std::function<double(int64_t side, int64_t count)> decomposition_seconds = nullptr;
  /// 16 bits halve the factors' traffic. Each factor is first divided by a power of two that all ranks share, so
  /// nothing overflows; entries lose what exceeds 8 (bf16) or 11 (fp16) bits, and with fp16 those below 2⁻²⁴ of the
  /// largest.
  FactorDtype factor_dtype = FactorDtype::fp32;
  /// Starts to reduce a layer's factors while backward goes on with the layers before it; the bits stay the same. Wants
  /// one watch() a step, and memory for messages until the end of the step (kfac/comm/overlapped_reduction.h).
  bool overlap_factors = false;

  /// What the optimizer will use: κ bounds lr times the step. ≥ 0.
  Scheduled lr = 0.1;
  Method method = Method::eigen;
  Convention convention = Convention::fisher;
  /// With `eigen`: gradient workers hold 1/(v_G v_Aᵀ + γ) of each layer instead of v_A and v_G (KAISA §4.4). It takes
  /// as many bytes as the gradient, saves a division and an outer product a step, and fixes γ until the next
  /// decomposition.
  bool precompute_outer = false;

  /// Steps between factor updates, ≥ 1. An update is due once that many steps have passed since the last that was due.
  Scheduled factor_interval = 5;
  /// Steps between decompositions, ≥ 1; a multiple of factor_interval where both are constant.
  Scheduled inverse_interval = 5;
  int64_t burn_in = 10;  ///< factors are updated in every one of the first steps, ≥ 0
  double decay = 0.95;   ///< running average F ← decay·F + (1−decay)·F_new, [0, 1)

  /// With `eigen`: largest relative error that keeping last time's eigenvectors may bring into a layer's preconditioned
  /// gradient, in the Fisher metric (kfac/inverse/eigenbasis_refresh.h derives and checks it); a decomposition then
  /// only refreshes eigenvalues and is three times as fast. 0: always anew. A factor that is refused costs a third
  /// more, and after an ordinary update of the factors most are: for factors that have settled (a decay near 1, many
  /// positions). [0, 1).
  double warm_start = 0;
  /// With `eigen`: steps that a decomposition may take, on a thread and a core of its own beside forward and backward.
  /// The eigenbases of step t's factors serve from step t + staleness on, exactly, whatever the timing; the first are
  /// never late. Costs memory beside the device's (FactorBytes::background). 0 (at once) to inverse_interval, of every
  /// step; not with warm_start.
  int64_t staleness = 0;

  /// γ of a layer = relative_damping · (tr A/dim A) · (tr G/dim G), > 0. Lower is bolder and less steady. `plain` and
  /// `pi` take the γ of the step of the decomposition.
  Scheduled relative_damping = 0.3;
  /// An absolute γ for every layer instead, > 0. It must suit the loss's scale: a Dice loss has G of order 1e-6.
  std::optional<Scheduled> damping = std::nullopt;
  /// κ of the trust region ν = min(1, √(κ / (lr² Σ|⟨V, ∇⟩|))), in the loss's units squared, > 0; infinity switches it
  /// off. While it binds, the
  /// step's length is √κ in the Fisher metric whatever lr is: decaying lr then changes nothing, decaying κ does. A
  /// constant κ stays unsteady late. Without one: default_kl_clip(convention).
  std::optional<Scheduled> kl_clip = std::nullopt;

  ConvFactors conv_factors = ConvFactors::automatic;
  int64_t max_factor_dim = 1024;  ///< `automatic` goes separable above this side of A, `block` keeps sides to it, ≥ 1
  int64_t max_linear_dim = 32768;  ///< a Linear layer with a longer side is left alone (vocabulary heads), ≥ 1
  /// … or gets block-diagonal factors, in the fewest equal blocks of features with sides up to max_linear_dim.
  bool block_linear = false;
  /// What the state is kept in from step to step (changes the result); work is done in float32 (float64 for float64
  /// weights, as which fp32 counts) on a layer's matrices at a time. 16 bits halve it, and what eigenbases cost to
  /// send. Factors and inverses are kept as correlations, M_ij/√(M_ii M_jj), beside a float32 diagonal: entries lose
  /// what exceeds 8 (bf16) or 11 (fp16) bits whatever their scale, and a running average does not follow a correlation
  /// that moves by less than 2⁻⁹ or 2⁻¹² an update. Eigenvalues and precompute_outer's reciprocals stay float32. Not
  /// with warm_start: rounded eigenvectors are not orthogonal enough to be kept.
  FactorDtype storage = FactorDtype::fp32;
  /// Largest patch matrix that is formed for a convolution's A, bytes, ≥ 64 KiB; one row of patches is always allowed.
  int64_t patch_workspace_bytes = int64_t{16} << 20;
  /// Regular expressions (ECMAScript, searched) of layer names to leave alone. Kronecker factors take positions as
  /// independent: where all of a sample's positions pull together, as at the heads of a soft Dice loss, the step is too
  /// long by their number, and such a layer is better left to the optimizer.
  std::vector<std::string> skip = {};

  /// Throws BadRequest naming the field, its value and the allowed range. Schedules are tried at step 0.
  void validate() const;
  /// What the schedules give for `step`. Throws BadRequest naming the field, the step, its value and the allowed range.
  StepNumbers at(int64_t step) const;
};

}  // namespace spillway::kfac
