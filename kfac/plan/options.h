/// The options of second-order preconditioning that a user chooses. LibTorch-free.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kfac/plan/layer_curvature.h"
#include "kfac/plan/option_types.h"

namespace spillway::kfac {

/// Returns the default κ: infinity under `fisher`, where norm_clip bounds the steps, and 1e-3, as published, under the
/// other conventions.
double default_kl_clip(Convention convention);

/// Returns 0.02 under `fisher`, and infinity under the other conventions, as published.
double default_norm_clip(Convention convention);

/// Returns `network` under `fisher`, and `layer` under the other conventions.
DampingScope default_damping_scope(Convention convention);

/// Returns 0.1 for `network` and 0.3 for `layer`.
double default_relative_damping(DampingScope scope);

/// The columns of a panel, unless KfacOptions::panel_columns says otherwise. A product of such a panel with a matrix of
/// side 3072 takes some tens of milliseconds on a core.
inline constexpr int64_t kPanelColumns = 256;

/// The numbers of one optimizer step.
struct StepNumbers {
  double lr;
  double kl_clip;
  double factor_interval;
  double inverse_interval;
  double relative_damping;
  std::optional<double> damping;
};

/// The steps after which the default intervals are long.
inline constexpr int64_t kStartSteps = 30;

/// The options of a Kfac. The statistics are the empirical Fisher's (gradients of the true labels). Intervals count
/// optimizer steps.
struct KfacOptions {
  Strategy strategy = Strategy::hybrid;
  /// Share of the ranks that precondition a layer: k/W for a whole k, in (0, 1]. Two decimals are enough (0.33 is a
  /// third). A larger share costs eigenbasis bytes on more ranks. A smaller share costs a broadcast of the layer's
  /// gradient in every step. `hybrid` and `owner_reduce` read it.
  double grad_worker_frac = 1.0;
  /// A separate share for each layer, in the order of Kfac::layers(). When empty, all layers have grad_worker_frac.
  std::vector<double> layer_grad_worker_fracs = {};
  Placement placement = Placement::lpt_time;
  /// Seconds to decompose `count` matrices of `side`, > 0, for Placement::measured. Rank 0's numbers count. When rank 0
  /// has no function, it measures the seconds (measure_decompositions()). The seconds are those of full bases; a
  /// truncated one is taken to need as much less as its operations are fewer.
  std::function<double(int64_t side, int64_t count)> decomposition_seconds = nullptr;
  /// The type in which factors travel. 16 bits halve the factors' traffic. Each factor is first divided by a power of
  /// two that all ranks share, so nothing overflows. Entries lose the digits beyond 8 (bf16) or 11 (fp16) bits. With
  /// fp16, entries below 2⁻²⁴ of the largest are also lost.
  FactorDtype factor_dtype = FactorDtype::fp32;
  /// True when a layer's factors are reduced while backward goes on with the layers before it; the bits stay the same.
  /// This needs one watch() a step, and memory for messages until the end of the step
  /// (kfac/comm/overlapped_reduction.h).
  bool overlap_factors = false;

  /// The learning rate that the optimizer will use, ≥ 0, because κ bounds lr times the step.
  StepSchedule lr = 0.1;
  Method method = Method::eigen;
  Convention convention = Convention::fisher;
  /// True when gradient workers hold 1/(v_G v_Aᵀ + γ) of each layer instead of v_A and v_G (KAISA §4.4); with `eigen`
  /// only. It takes as many bytes as the gradient, saves a division and an outer product a step, and fixes γ until the
  /// next decomposition.
  bool precompute_outer = false;

  /// Steps between factor updates, ≥ 1. An update is due once that many steps have passed since the last due update.
  /// Where neither interval is given, both are 3 in the first kStartSteps, when curvature changes fast. From then on
  /// factors are updated every 10 steps and decomposed every 100. Where one is given, the other is 3.
  std::optional<StepSchedule> factor_interval = std::nullopt;
  /// Steps between decompositions, ≥ 1; a multiple of factor_interval where both are constant.
  std::optional<StepSchedule> inverse_interval = std::nullopt;
  int64_t burn_in = 0;  ///< number of first steps that all update the factors, ≥ 0
  double decay = 0.8;   ///< running average F ← decay·F + (1−decay)·F_new, [0, 1)

  /// The positions that an update of a layer's A (C and K) sums over; G is always of all positions, because it has
  /// fewer rows and is of few large gradients. A lattice of them is drawn anew for each update, from
  /// `seed`, the layer and the number of the update. So it is the same on every rank and after a resume, and the
  /// expectation of the sums does not change.
  /// More than any layer's positions are refused at the first update.
  FactorSamples factor_samples = FactorSamples::automatic();
  uint64_t seed = 0;  ///< seed of the lattices

  /// The eigenvectors that are kept of each factor; with `eigen` only. A truncated basis follows its factor by one
  /// subspace iteration a decomposition, which costs side²·rank in place of side³, and it makes the state, the traffic
  /// of eigenbases and preconditioning smaller by about rank/side. The K of a separable layer is always kept whole.
  /// Numbers do not go with other methods, warm_start or staleness, which are for full bases; `auto` means full bases
  /// there.
  EigenRank eigen_rank = EigenRank::automatic();

  /// The samples, the rank and the steps of each layer, in the order of Kfac::layers(), in place of factor_samples,
  /// eigen_rank and both intervals; empty: those. plan_curvature() makes them. Layers' updates need not be of the same
  /// steps, so that no step is much longer than others. With burn_in 0, no staleness and no overlap_factors only.
  std::vector<LayerCurvature> layer_curvature = {};

  /// Steps after which a layer's new curvature is used, counted from the step of its statistics. In between, its work
  /// may be done at any time (KfacRefreshes::defer()): no bit depends on when. The first curvature is used at once.
  /// With layer_curvature only, 0 up to, not including, each interval.
  int64_t curvature_delay = 0;
  /// Columns of a panel, ≥ 1. With curvature_delay, inverses and truncated bases of factors with a longer side are
  /// renewed in pieces of a panel each. Fewer columns fit shorter waits. The last bits depend on it.
  int64_t panel_columns = kPanelColumns;

  /// Largest relative error that kept eigenvectors may bring into a layer's preconditioned gradient, in the Fisher
  /// metric, [0, 1). With `eigen` only; kfac/inverse/eigenbasis_refresh.h derives and checks the error. A decomposition
  /// that keeps the last eigenvectors only refreshes eigenvalues and is three times as fast. With 0, every
  /// decomposition is full. A factor whose eigenvectors are refused costs a third more. After an ordinary update of the
  /// factors most are refused. The option is for factors that have settled (a decay near 1, many positions).
  double warm_start = 0;
  /// Steps that a decomposition may take, on a thread and a core of its own beside forward and backward; with `eigen`
  /// only. The eigenbases of step t's factors are used from step t + staleness on, exactly, whatever the timing. The
  /// first eigenbases are never late. Costs memory beside the device's (FactorBytes::background). Allowed: 0 (at once)
  /// to the inverse_interval of every step; not with warm_start.
  int64_t staleness = 0;

  /// Relative damping, > 0: γ of a layer is this share of the curvature that damping_scope says. With a lower value,
  /// steps are larger and less steady. `plain` and `pi` take the γ of the step of the decomposition. The default is
  /// default_relative_damping(damping_scope_in_use()).
  std::optional<StepSchedule> relative_damping = std::nullopt;
  /// The default is default_damping_scope(convention).
  std::optional<DampingScope> damping_scope = std::nullopt;
  /// An absolute γ for every layer, in place of the relative one, > 0. It must suit the loss's scale: a Dice loss has G
  /// of order 1e-6. Not with damping_scope.
  std::optional<StepSchedule> damping = std::nullopt;
  /// The κ of the trust region ν = min(1, √(κ / (lr² Σ|⟨V, ∇⟩|))), in the loss's units squared, > 0; infinity switches
  /// it off. While the bound applies, the step's length is √κ in the Fisher metric whatever lr is. Decaying lr then
  /// changes nothing; decaying κ does. With a constant κ, late steps stay unsteady. The default is
  /// default_kl_clip(convention).
  std::optional<StepSchedule> kl_clip = std::nullopt;
  /// The longest step as a share of the weights: lr·ν·‖V‖ ≤ norm_clip·‖W‖, with the 2-norms over all preconditioned
  /// weights, > 0; infinity switches it off. It has no unit, so it holds for losses whose scale nobody has tried, where
  /// κ may be too large by any factor. Weights or steps of norm zero are not bounded. The default is
  /// default_norm_clip(convention), and infinity where kl_clip is given. Costs two norms of each layer a step.
  std::optional<double> norm_clip = std::nullopt;

  ConvFactors conv_factors = ConvFactors::automatic;
  int64_t max_factor_dim = 1024;  ///< `automatic` is separable above this side of A, `block` keeps sides up to it, ≥ 1
  int64_t max_linear_dim = 32768;  ///< a Linear layer with a longer side is left alone (vocabulary heads), ≥ 1
  /// True when a Linear layer with a longer side gets block-diagonal factors instead, in the fewest equal blocks of
  /// features with sides up to max_linear_dim.
  bool block_linear = false;
  /// The type in which the state is kept from step to step (changes the result). Work is done in float32 on one layer's
  /// matrices at a time. Float64 weights have float64 work, and fp32 means float64 for them. 16 bits halve the state
  /// and the bytes that eigenbases cost to send. Factors and inverses are kept as correlations, M_ij/√(M_ii M_jj),
  /// beside a float32 diagonal. Entries lose the digits beyond 8 (bf16) or 11 (fp16) bits, whatever their scale. A
  /// running average does not follow a correlation that moves by less than 2⁻⁹ or 2⁻¹² an update. Eigenvalues and
  /// precompute_outer's reciprocals stay float32. Not allowed with warm_start, because rounded eigenvectors are not
  /// orthogonal enough to be kept.
  FactorDtype storage = FactorDtype::fp32;
  /// Largest patch matrix that is formed for a convolution's A, in bytes, ≥ 64 KiB. One row of patches is always
  /// allowed.
  int64_t patch_workspace_bytes = int64_t{16} << 20;
  /// False: factors of convolutions are sums over patches on every device, as on a GPU. True: on the CPU products of
  /// the input with its own shifts replace patches where that is faster. The last bits depend on it.
  bool shifted_products = true;
  /// The most elements of the gradients and inverses of layers of one shape that are preconditioned side by side, ≥ 0;
  /// 0: each layer by itself. A step of small layers takes as long as its operators are many, and those of a batch
  /// count once. It costs a copy of the batch's gradients while it is preconditioned. Above 0, truncated eigenbases of
  /// one side and rank are renewed together too. The last bits depend on it. The default is default_batch_elements() of
  /// the layers' device.
  std::optional<int64_t> batch_elements = std::nullopt;
  /// Regular expressions (ECMAScript, searched) for the names of layers to leave alone. Kronecker factors treat
  /// positions as independent. Where all of a sample's positions pull together, as at the heads of a soft Dice loss,
  /// the step is too long by their number. The optimizer alone serves such a layer better.
  std::vector<std::string> skip = {};

  /// Returns the samples of layer `i`: layer_curvature's, else factor_samples.
  FactorSamples samples_of(size_t i) const;
  /// Returns the rank of the eigenbases without layer_curvature: eigen_rank, and full where `auto` meets an option that
  /// is for full bases.
  EigenRank rank_in_use() const;
  StepSchedule factor_interval_in_use() const;   ///< factor_interval, or its default
  StepSchedule inverse_interval_in_use() const;  ///< inverse_interval, or its default
  double norm_clip_in_use() const;               ///< norm_clip, or its default
  DampingScope damping_scope_in_use() const;     ///< damping_scope, or its default; `layer` with an absolute damping
  StepSchedule relative_damping_in_use() const;  ///< relative_damping, or its default
  /// Throws BadRequest naming the field, its value and the allowed range. Schedules are checked at step 0.
  void validate() const;
  /// Returns the numbers that the schedules give for `step`. Throws BadRequest naming the field, the step, its value
  /// and the allowed range.
  StepNumbers at(int64_t step) const;
  /// Returns the numbers of step 0 with the intervals of step kStartSteps, which stand for a long run's. Throws as
  /// at().
  StepNumbers in_long_run() const;
};

}  // namespace spillway::kfac
