/// The choices that K-FAC offers and their names, and numbers that change with the step. LibTorch-free.
#pragma once
#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

namespace spillway::kfac {

/// The ways to share K-FAC's work: which ranks hold factors, which decompose and which precondition.
/// kfac/plan/assignment.h has the details. All strategies but `dp` give the gradient of a single process that sees the
/// global batch. Among those, a choice of strategy, grad_worker_frac or placement moves bytes between ranks and never
/// changes a bit of the result.
enum class Strategy : uint8_t {
  comm_opt,  ///< every rank preconditions every layer; A and G of a layer may be decomposed by different ranks
  mem_opt,   ///< one rank per layer preconditions and broadcasts the result
  hybrid,    ///< grad_worker_frac of the ranks precondition a layer, and each serves a share of the others (KAISA)
  /// DP-KFAC: a layer's owner takes the statistics of its own mini-batch, keeps, decomposes and preconditions alone,
  /// and broadcasts the result. No factor travels, but each is estimated from 1/W of the global batch, a different part
  /// for every layer. Ranks need shuffled shards, because an owner whose shard lacks some kinds of samples misses their
  /// curvature.
  dp,
  owner_reduce,  ///< hybrid, but factors are reduced to the layer's owner, which alone holds them
  automatic,     ///< the best of the exact strategies, never dp; see kfac/plan/strategy_choice.h
};

/// The rule by which owners are chosen. Published: round_robin by SC'20 and DP-KFAC, lpt_time and lpt_memory by KAISA.
enum class Placement : uint8_t {
  round_robin,  ///< in turn: layer by layer; with comm_opt and more ranks than layers factor by factor (A, G, A, G, …)
  lpt_time,     ///< longest processing time first on Σ count·side³ over factors
  lpt_memory,   ///< longest first on Σ count·side², which evens out bytes
  measured,     ///< longest first on KfacOptions::decomposition_seconds
};

/// The type in which factors travel between ranks, or in which K-FAC's state is kept. With every type, sums are formed
/// in float32.
enum class FactorDtype : uint8_t { fp32, bf16, fp16 };

/// The form of a convolution's factors (changes the result).
enum class ConvFactors : uint8_t {
  full,       ///< A over channels × kernel offsets
  separable,  ///< A ≈ C ⊗ K: channels × channels and offsets × offsets
  block,      ///< A and G block-diagonal, in the fewest equal blocks of channels with sides up to max_factor_dim
  automatic,  ///< separable where A's side would exceed max_factor_dim, else full
};

/// The way a layer's curvature is inverted (changes the result). γ is its damping.
enum class Method : uint8_t {
  eigen,  ///< G ⊗ A + γI, exactly, in the factors' eigenbases
  plain,  ///< (G + γI)⁻¹ ∇ (A + γI)⁻¹ by Cholesky (SC'20 eq. 11–12, KAISA eq. 12–14); γ should be absolute
  pi,     ///< (G + √γ/π I)⁻¹ ∇ (A + π√γ I)⁻¹ by Cholesky, π² = (tr A/dim A)/(tr G/dim G) (DP-KFAC)
};

/// The convention by which sums over samples and positions become factors, and by which their running average starts
/// (changes the result). B samples, S positions a sample, N = B·S rows; g is the raw gradient of a mean loss. Under
/// `kaisa` and `dp_kfac` a Linear layer's rows are samples, S = 1. With several ranks each factor is a mean over ranks.
enum class Convention : uint8_t {
  fisher,  ///< A = 1/N Σ ããᵀ, G = B Σ ggᵀ: independent of world size and accumulation; starts at the first factor
  kaisa,    ///< A = 1/(N·S²) Σ ããᵀ (the ones ÷ S too), G = 1/(N·S²) Σ ggᵀ, symmetrized; starts at I
  dp_kfac,  ///< A = 1/(N·S) Σ ããᵀ, G = N Σ ggᵀ; starts at the first factor
};

/// The curvature that a layer's relative damping is a share of (changes the result). m is the layer's mean curvature,
/// (tr A/dim A) · (tr G/dim G), and m̂ the largest m of its decompositions so far.
enum class DampingScope : uint8_t {
  layer,  ///< m
  /// √(m̂ · max m̂), the maximum over all layers. Layers with little curvature are damped more, as by one γ for all of
  /// them, and the damping does not fall when the loss does. So late steps become short by themselves. A decomposition
  /// exchanges one number for each factor.
  network,
};

/// Reads `comm_opt`, `mem_opt`, `hybrid`, `dp`, `owner_reduce`, `auto`. Throws BadRequest naming the value and these
/// names.
Strategy parse_strategy(std::string_view name);
/// Reads `round-robin`, `lpt-time`, `lpt-memory`, `measured`. Throws BadRequest naming the value and these names.
Placement parse_placement(std::string_view name);
/// Reads `fp32`, `bf16`, `fp16`. Throws BadRequest naming the value and these names.
FactorDtype parse_factor_dtype(std::string_view name);
/// Reads `full`, `separable`, `block`, `auto`. Throws BadRequest naming the value and these names.
ConvFactors parse_conv_factors(std::string_view name);
/// Reads `eigen`, `plain`, `pi`. Throws BadRequest naming the value and these names.
Method parse_method(std::string_view name);
/// Reads `fisher`, `kaisa`, `dp_kfac`. Throws BadRequest naming the value and these names.
Convention parse_convention(std::string_view name);
/// Reads `layer`, `network`. Throws BadRequest naming the value and these names.
DampingScope parse_damping_scope(std::string_view name);
std::string_view name(Strategy strategy);      ///< the name that parse_strategy() reads
std::string_view name(Placement placement);    ///< the name that parse_placement() reads
std::string_view name(FactorDtype dtype);      ///< the name that parse_factor_dtype() reads
std::string_view name(ConvFactors form);       ///< the name that parse_conv_factors() reads
std::string_view name(Method method);          ///< the name that parse_method() reads
std::string_view name(Convention convention);  ///< the name that parse_convention() reads
std::string_view name(DampingScope scope);     ///< the name that parse_damping_scope() reads

/// A constant, or a function of the optimizer step (counted from 0). The function is called on the thread that owns the
/// Kfac, several times for a step. It must give the same number each time, and on every rank.
class StepSchedule {
 public:
  StepSchedule(double value) : value_(value) {}  // NOLINT: 0.3 is a schedule
  StepSchedule(std::function<double(int64_t step)> function) : function_(std::move(function)) {}  // NOLINT: so is this

  double at(int64_t step) const { return function_ ? function_(step) : value_; }
  bool is_constant() const { return !function_; }

 private:
  double value_ = 0;
  std::function<double(int64_t step)> function_ = nullptr;
};

/// Returns value / (1 + step/steps): half of `value` after `steps`. Infinite `steps` keep `value` constant.
inline StepSchedule harmonic(double value, double steps) {
  return StepSchedule([=](int64_t step) { return value / (1 + static_cast<double>(step) / steps); });
}

/// A decay from step `step` on: a number is then `factor` times as large.
struct StepDecay {
  int64_t step;
  double factor;
};

/// Returns `value` times the factors of all decays whose step has come; the decays may be in any order. (SC'20 §V-C:
/// damping shrinks and intervals grow at given epochs.)
inline StepSchedule decayed(const StepSchedule& value, std::vector<StepDecay> decays) {
  return StepSchedule([value, decays = std::move(decays)](int64_t step) {
    double now = value.at(step);
    for (const auto& decay : decays)
      if (step >= decay.step) now *= decay.factor;
    return now;
  });
}

}  // namespace spillway::kfac
