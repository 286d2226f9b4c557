/// What a user chooses about second-order preconditioning. LibTorch-free.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kfac/scheduled.h"

namespace spillway::kfac {

/// Who holds factors, who decomposes and who preconditions; kfac/assignment.h has the details. All but `dp` give the
/// gradient of a single process that sees the global batch, and among those a choice of strategy, grad_worker_frac or
/// placement moves bytes between ranks and never changes a bit of the result.
enum class Strategy : uint8_t {
  comm_opt,  ///< every rank preconditions every layer; A and G of a layer may be decomposed by different ranks
  mem_opt,   ///< one rank per layer preconditions and broadcasts the result
  hybrid,    ///< grad_worker_frac of the ranks precondition a layer, each serves a share of the others (KAISA)
  /// DP-KFAC: a layer's owner takes the statistics of its own mini-batch, keeps, decomposes and preconditions alone,
  /// and broadcasts the result. No factor travels, but each is estimated from 1/W of the global batch, another one for
  /// every layer: ranks need shuffled shards, since an owner whose shard lacks some kinds of samples misses their
  /// curvature.
  dp,
  owner_reduce,  ///< as hybrid, but factors are reduced to the layer's owner, who alone holds them
  automatic,     ///< the best of the exact ones, never dp; see kfac/strategy_choice.h
};

/// How owners are chosen. Published: round_robin by SC'20 and DP-KFAC, lpt_time and lpt_memory by KAISA.
enum class Placement : uint8_t {
  round_robin,  ///< in turn: layer by layer; with comm_opt and more ranks than layers factor by factor (A, G, A, G, …)
  lpt_time,     ///< longest processing time first on Σ groups·side³
  lpt_memory,   ///< the same on Σ groups·side², which evens out bytes
  measured,     ///< the same on KfacOptions::decomposition_seconds
};

/// The type in which factors travel between ranks. Sums are formed in float32 whichever it is.
enum class FactorDtype : uint8_t { fp32, bf16, fp16 };

/// The form of a convolution's input factor A (changes the result).
enum class ConvFactors : uint8_t {
  full,       ///< A over channels × kernel offsets
  separable,  ///< A ≈ C ⊗ K: channels × channels and offsets × offsets
  automatic,  ///< separable where A's side would exceed max_factor_dim
};

/// How a layer's curvature is inverted (changes the result). γ is its damping.
enum class Method : uint8_t {
  eigen,  ///< G ⊗ A + γI, exactly, in the factors' eigenbases
  plain,  ///< (G + γI)⁻¹ ∇ (A + γI)⁻¹ by Cholesky (SC'20 eq. 11–12, KAISA eq. 12–14); γ should be absolute
  pi,     ///< (G + √γ/π I)⁻¹ ∇ (A + π√γ I)⁻¹ by Cholesky, π² = (tr A/dim A)/(tr G/dim G) (DP-KFAC)
};

/// How sums over samples and positions become factors, and what their running average starts from (changes the
/// result). B samples, S positions a sample, N = B·S rows; g is the raw gradient of a mean loss. A Linear layer's rows
/// are samples, S = 1, under `kaisa` and `dp_kfac`. With several ranks each is a mean over ranks.
enum class Convention : uint8_t {
  fisher,  ///< A = 1/N Σ ããᵀ, G = B Σ ggᵀ: independent of world size and accumulation; starts at the first factor
  kaisa,    ///< A = 1/(N·S²) Σ ããᵀ (the ones ÷ S too), G = 1/(N·S²) Σ ggᵀ, symmetrised; starts at I
  dp_kfac,  ///< A = 1/(N·S) Σ ããᵀ, G = N Σ ggᵀ; starts at the first factor
};

/// Reads `comm_opt`, `mem_opt`, `hybrid`, `dp`, `owner_reduce`, `auto`. Throws BadRequest naming the value and these.
Strategy strategy_named(std::string_view name);
/// Reads `round-robin`, `lpt-time`, `lpt-memory`, `measured`. Throws BadRequest naming the value and these names.
Placement placement_named(std::string_view name);
/// Reads `fp32`, `bf16`, `fp16`. Throws BadRequest naming the value and these names.
FactorDtype factor_dtype_named(std::string_view name);
/// Reads `full`, `separable`, `auto`. Throws BadRequest naming the value and these names.
ConvFactors conv_factors_named(std::string_view name);
/// Reads `eigen`, `plain`, `pi`. Throws BadRequest naming the value and these names.
Method method_named(std::string_view name);
/// Reads `fisher`, `kaisa`, `dp_kfac`. Throws BadRequest naming the value and these names.
Convention convention_named(std::string_view name);
std::string_view name(Strategy strategy);
std::string_view name(Placement placement);
std::string_view name(FactorDtype dtype);
std::string_view name(ConvFactors form);
std::string_view name(Method method);
std::string_view name(Convention convention);

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
  /// For Placement::measured: seconds to decompose `groups` factors of `side`, > 0. Rank 0's numbers count; without
  /// any it measures them (measure_decompositions()).
  std::function<double(int64_t side, int64_t groups)> decomposition_seconds = nullptr;
  /// 16 bits halve the factors' traffic. Each factor is first divided by a power of two that all ranks share, so
  /// nothing overflows; entries lose what exceeds 8 (bf16) or 11 (fp16) bits, and with fp16 those below 2⁻²⁴ of the
  /// largest.
  FactorDtype factor_dtype = FactorDtype::fp32;
  /// Starts to reduce a layer's factors while backward goes on with the layers before it; the bits stay the same. Wants
  /// one watch() a step, fp32, and memory for messages outside every budget (kfac/early_reduction.h).
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
  /// gradient, in the Fisher metric (kfac/decomposer.h derives and checks it); a decomposition then only refreshes
  /// eigenvalues and is three times as fast. 0: always anew. A factor that is refused costs a third more, and after an
  /// ordinary update of the factors most are: for factors that have settled (a decay near 1, many positions). [0, 1).
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
  int64_t max_factor_dim = 1024;   ///< `automatic` goes separable above this side of A, ≥ 1
  int64_t max_linear_dim = 32768;  ///< a Linear layer with a longer side is left alone (vocabulary heads), ≥ 1
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
