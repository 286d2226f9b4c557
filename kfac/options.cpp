#include "kfac/options.h"

#include <array>
#include <cmath>
#include <limits>
#include <regex>
#include <utility>

#include "core/error.h"

namespace spillway::kfac {
namespace {

constexpr std::array<std::pair<std::string_view, Strategy>, 6> kStrategies{{{"comm_opt", Strategy::comm_opt},
                                                                            {"mem_opt", Strategy::mem_opt},
                                                                            {"hybrid", Strategy::hybrid},
                                                                            {"dp", Strategy::dp},
                                                                            {"owner_reduce", Strategy::owner_reduce},
                                                                            {"auto", Strategy::automatic}}};
constexpr std::array<std::pair<std::string_view, Placement>, 4> kPlacements{{{"round-robin", Placement::round_robin},
                                                                             {"lpt-time", Placement::lpt_time},
                                                                             {"lpt-memory", Placement::lpt_memory},
                                                                             {"measured", Placement::measured}}};
constexpr std::array<std::pair<std::string_view, FactorDtype>, 3> kFactorDtypes{
    {{"fp32", FactorDtype::fp32}, {"bf16", FactorDtype::bf16}, {"fp16", FactorDtype::fp16}}};
constexpr std::array<std::pair<std::string_view, ConvFactors>, 3> kConvFactors{
    {{"full", ConvFactors::full}, {"separable", ConvFactors::separable}, {"auto", ConvFactors::automatic}}};
constexpr std::array<std::pair<std::string_view, Method>, 3> kMethods{
    {{"eigen", Method::eigen}, {"plain", Method::plain}, {"pi", Method::pi}}};
constexpr std::array<std::pair<std::string_view, Convention>, 3> kConventions{
    {{"fisher", Convention::fisher}, {"kaisa", Convention::kaisa}, {"dp_kfac", Convention::dp_kfac}}};

template <class Table>
auto value_named(const Table& table, std::string_view what, std::string_view text) {
  std::string known;
  for (const auto& [key, value] : table) {
    if (key == text) return value;
    known += (known.empty() ? "" : ", ") + std::string(key);
  }
  throw BadRequest(str("[kfac.options] ", what, " '", text, "' is not one of ", known));
}

template <class Table, class Value>
std::string_view name_of(const Table& table, Value wanted) {
  for (const auto& [key, value] : table)
    if (value == wanted) return key;
  return "?";
}

template <class Value>
void require(bool allowed, std::string_view field, Value value, std::string_view range) {
  if (!allowed) throw BadRequest(str("[kfac.options] ", field, " = ", value, " is outside ", range));
}

void require_multiple(const Scheduled& factor, const Scheduled& inverse) {
  if (!factor.is_constant() || !inverse.is_constant()) return;
  const double f = factor.at(0), i = inverse.at(0), ratio = i / f;
  if (std::fabs(ratio - std::round(ratio)) * f < 1e-6) return;
  std::string nearest = str(std::ceil(ratio) * f);
  if (ratio > 1) nearest = str(std::floor(ratio) * f, " or ", nearest);
  throw BadRequest(str("[kfac.options] inverse_interval = ", i, " is no multiple of factor_interval = ", f,
                       "; the nearest is ", nearest));
}

}  // namespace

Strategy strategy_named(std::string_view name) {
  return value_named(kStrategies, "strategy", name);
}
Placement placement_named(std::string_view name) {
  return value_named(kPlacements, "placement", name);
}
FactorDtype factor_dtype_named(std::string_view name) {
  return value_named(kFactorDtypes, "factor_dtype", name);
}
ConvFactors conv_factors_named(std::string_view name) {
  return value_named(kConvFactors, "conv_factors", name);
}
Method method_named(std::string_view name) {
  return value_named(kMethods, "method", name);
}
Convention convention_named(std::string_view name) {
  return value_named(kConventions, "convention", name);
}
std::string_view name(Strategy strategy) {
  return name_of(kStrategies, strategy);
}
std::string_view name(Placement placement) {
  return name_of(kPlacements, placement);
}
std::string_view name(FactorDtype dtype) {
  return name_of(kFactorDtypes, dtype);
}
std::string_view name(ConvFactors form) {
  return name_of(kConvFactors, form);
}
std::string_view name(Method method) {
  return name_of(kMethods, method);
}
std::string_view name(Convention convention) {
  return name_of(kConventions, convention);
}

KlClipDefault default_kl_clip(Convention convention) {
  if (convention == Convention::fisher) return {3e-5, 10};
  return {1e-3, std::numeric_limits<double>::infinity()};
}

StepNumbers KfacOptions::at(int64_t step) const {
  const auto [clip, clip_steps] = default_kl_clip(convention);
  const auto number = [&](const Scheduled& schedule, std::string_view field, double least, bool above,
                          std::string_view range) {
    const double value = schedule.at(step);
    const bool allowed = above ? value > least : value >= least;  // NaN is neither
    require(allowed, step == 0 ? std::string(field) : str("at step ", step, " ", field), value, range);
    return value;
  };
  StepNumbers now{.lr = number(lr, "lr", 0, false, "[0, inf)"),
                  .kl_clip = number(kl_clip.value_or(harmonic(clip, clip_steps)), "kl_clip", 0, true, "(0, inf]"),
                  .factor_interval = number(factor_interval, "factor_interval", 1, false, "1 and more steps"),
                  .inverse_interval = number(inverse_interval, "inverse_interval", 1, false, "1 and more steps"),
                  .relative_damping = number(relative_damping, "relative_damping", 0, true, "(0, inf)"),
                  .damping = std::nullopt};
  require(staleness >= 0 && static_cast<double>(staleness) <= now.inverse_interval,
          step == 0 ? "staleness" : str("at step ", step, " staleness"), staleness,
          str("0 to inverse_interval, ", now.inverse_interval));
  if (damping) now.damping = number(*damping, "damping", 0, true, "(0, inf)");
  return now;
}

void KfacOptions::validate() const {
  // Written so that NaN fails too.
  require(grad_worker_frac > 0 && grad_worker_frac <= 1, "grad_worker_frac", grad_worker_frac, "(0, 1]");
  for (double share : layer_grad_worker_fracs)
    require(share > 0 && share <= 1, "layer_grad_worker_fracs", share, "(0, 1]");
  require(!overlap_factors || factor_dtype == FactorDtype::fp32, "factor_dtype", name(factor_dtype),
          "what overlap_factors can send: fp32");
  require(burn_in >= 0, "burn_in", burn_in, "0 and more steps");
  require(decay >= 0 && decay < 1, "decay", decay, "[0, 1)");
  at(0);
  require_multiple(factor_interval, inverse_interval);
  if (precompute_outer && method != Method::eigen)
    throw BadRequest(str("[kfac.options] precompute_outer goes with method eigen; method is ", name(method)));
  require(warm_start >= 0 && warm_start < 1, "warm_start", warm_start, "[0, 1)");
  require(warm_start == 0 || method == Method::eigen, "warm_start", warm_start, str("0 with method ", name(method)));
  require(staleness == 0 || method == Method::eigen, "staleness", staleness, str("0 with method ", name(method)));
  require(staleness == 0 || warm_start == 0, "staleness", staleness, "0 with warm_start, which needs the last basis");
  require(max_factor_dim >= 1, "max_factor_dim", max_factor_dim, "1 and more");
  require(max_linear_dim >= 1, "max_linear_dim", max_linear_dim, "1 and more");
  require(patch_workspace_bytes >= (1 << 16), "patch_workspace_bytes", patch_workspace_bytes, "65536 and more bytes");
  for (const auto& pattern : skip) {
    try {
      std::regex compiled(pattern);
    } catch (const std::regex_error& error) {
      throw BadRequest(str("[kfac.options] skip '", pattern, "' is not a regular expression: ", error.what()));
    }
  }
}

}  // namespace spillway::kfac
