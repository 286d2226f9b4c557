/// What a user chooses about second-order preconditioning. LibTorch-free.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kfac/scheduled.h"

namespace spillway::kfac {

/// Who decomposes and who preconditions; the factors are averaged over all ranks in each of them. A choice of strategy
/// or of grad_worker_frac moves bytes between ranks and never changes a bit of the result.
enum class Strategy : uint8_t {
  comm_opt,  ///< every rank preconditions every layer; A and G of a layer may be decomposed by different ranks
  mem_opt,   ///< one rank per layer preconditions and broadcasts the result
  hybrid,    ///< grad_worker_frac of the ranks precondition a layer, each serves a share of the others (KAISA)
};

/// The form of a convolution's input factor A (changes the result).
enum class ConvFactors : uint8_t {
  full,       ///< A over channels × kernel offsets
  separable,  ///< A ≈ C ⊗ K: channels × channels and offsets × offsets
  automatic,  ///< separable where A's side would exceed max_factor_dim
};

/// Reads `comm_opt`, `mem_opt`, `hybrid`. Throws BadRequest naming the value and these names.
Strategy strategy_named(std::string_view name);
/// Reads `full`, `separable`, `auto`. Throws BadRequest naming the value and these names.
ConvFactors conv_factors_named(std::string_view name);
std::string_view name(Strategy strategy);
std::string_view name(ConvFactors form);

/// The statistics are the empirical Fisher's (gradients of the true labels) under the `fisher` convention: A and G do
/// not depend on world size or accumulation. Intervals count optimizer steps.
struct KfacOptions {
  Strategy strategy = Strategy::hybrid;
  /// Share of the ranks that precondition a layer, (0, 1]; max(1, round(f·W)) ranks. More costs eigenbasis bytes on
  /// more ranks, less costs a broadcast of the layer's gradient in every step. Read by `hybrid` only.
  double grad_worker_frac = 1.0;

  /// What the optimizer will use: κ bounds lr times the step. ≥ 0.
  Scheduled lr = 0.1;
  int64_t factor_interval = 5;   ///< steps between factor updates, ≥ 1
  int64_t inverse_interval = 5;  ///< steps between decompositions, ≥ 1
  int64_t burn_in = 10;          ///< factors are updated in every one of the first steps, ≥ 0
  double decay = 0.95;           ///< running average F ← decay·F + (1−decay)·F_new, [0, 1)

  /// γ of a layer = relative_damping · (tr A/dim A) · (tr G/dim G), > 0. Lower is bolder and less steady.
  double relative_damping = 0.3;
  /// An absolute γ for every layer instead, > 0. It must suit the loss's scale: a Dice loss has G of order 1e-6.
  std::optional<double> damping = std::nullopt;
  /// κ of the trust region ν = min(1, √(κ / (lr² Σ|⟨V, ∇⟩|))), > 0; infinity switches it off. While it binds, the
  /// step's length is √κ in the Fisher metric whatever lr is: decaying lr then changes nothing, decaying κ does. A
  /// constant κ stays unsteady late.
  Scheduled kl_clip = harmonic(3e-5, 10);

  ConvFactors conv_factors = ConvFactors::automatic;
  int64_t max_factor_dim = 1024;   ///< `automatic` goes separable above this side of A, ≥ 1
  int64_t max_linear_dim = 32768;  ///< a Linear layer with a longer side is left alone (vocabulary heads), ≥ 1
  /// Largest patch matrix that is formed for a convolution's A, bytes, ≥ 64 KiB; one row of patches is always allowed.
  int64_t patch_workspace_bytes = int64_t{16} << 20;
  std::vector<std::string> skip = {};  ///< regular expressions (ECMAScript, searched) of layer names to leave alone

  /// Throws BadRequest naming the field, its value and the allowed range.
  void validate() const;
};

}  // namespace spillway::kfac
