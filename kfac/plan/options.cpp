#include "kfac/plan/options.h"

#include <cmath>
#include <limits>
#include <regex>

#include "core/error.h"

namespace spillway::kfac {
namespace {

template <class Value>
void require(bool allowed, std::string_view field, Value value, std::string_view range) {
  if (!allowed) throw BadRequest(str("[kfac.options] ", field, " = ", value, " is outside ", range));
}

// Returns the default of an interval that is `later` once the start is over, where neither interval is given.
StepSchedule default_interval(const KfacOptions& options, double later) {
  constexpr double kAtFirst = 3;
  if (options.factor_interval || options.inverse_interval) return kAtFirst;
  return StepSchedule([later](int64_t step) { return step < kStartSteps ? kAtFirst : later; });
}

void require_multiple(const StepSchedule& factor, const StepSchedule& inverse) {
  if (!factor.is_constant() || !inverse.is_constant()) return;
  const double f = factor.at(0), i = inverse.at(0), ratio = i / f;
  if (std::fabs(ratio - std::round(ratio)) * f < 1e-6) return;
  std::string nearest = str(std::ceil(ratio) * f);
  if (ratio > 1) nearest = str(std::floor(ratio) * f, " or ", nearest);
  throw BadRequest(str("[kfac.options] inverse_interval = ", i, " is no multiple of factor_interval = ", f,
                       "; the nearest is ", nearest));
}

void validate_patterns(const std::vector<std::string>& patterns) {
  for (const auto& pattern : patterns) {
    try {
      std::regex compiled(pattern);
    } catch (const std::regex_error& error) {
      throw BadRequest(str("[kfac.options] skip '", pattern, "' is not a regular expression: ", error.what()));
    }
  }
}

void validate_plan(const KfacOptions& o) {
  validate(o.layer_curvature);
  const bool planned = !o.layer_curvature.empty();
  require(!planned || o.burn_in == 0, "burn_in", o.burn_in, "0 steps with layer_curvature");
  require(o.curvature_delay >= 0, "curvature_delay", o.curvature_delay, "0 steps or more");
  require(planned || o.curvature_delay == 0, "curvature_delay", o.curvature_delay, "0 steps without layer_curvature");
  for (const LayerCurvature& layer : o.layer_curvature)
    require(o.curvature_delay < layer.interval, "curvature_delay", o.curvature_delay,
            str("less than the interval of layer '", layer.layer, "', ", layer.interval));
  require(!planned || o.staleness == 0, "staleness", o.staleness, "0 steps with layer_curvature");
  require(!planned || !o.overlap_factors, "overlap_factors", "true", "false with layer_curvature");
}

}  // namespace

double default_kl_clip(Convention convention) {
  return convention == Convention::fisher ? std::numeric_limits<double>::infinity() : 1e-3;
}

double default_norm_clip(Convention convention) {
  return convention == Convention::fisher ? 0.02 : std::numeric_limits<double>::infinity();
}

DampingScope default_damping_scope(Convention convention) {
  return convention == Convention::fisher ? DampingScope::network : DampingScope::layer;
}

double default_relative_damping(DampingScope scope) {
  return scope == DampingScope::network ? 0.1 : 0.3;
}

DampingScope KfacOptions::damping_scope_in_use() const {
  return damping ? DampingScope::layer : damping_scope.value_or(default_damping_scope(convention));
}

StepSchedule KfacOptions::factor_interval_in_use() const {
  return factor_interval.value_or(default_interval(*this, 10));
}

StepSchedule KfacOptions::inverse_interval_in_use() const {
  return inverse_interval.value_or(default_interval(*this, 100));
}

StepSchedule KfacOptions::relative_damping_in_use() const {
  return relative_damping.value_or(default_relative_damping(damping_scope_in_use()));
}

double KfacOptions::norm_clip_in_use() const {
  return norm_clip.value_or(kl_clip ? std::numeric_limits<double>::infinity() : default_norm_clip(convention));
}

StepNumbers KfacOptions::at(int64_t step) const {
  const auto number = [&](const StepSchedule& schedule, std::string_view field, double least, bool above,
                          std::string_view range) {
    const double value = schedule.at(step);
    const bool finite = std::isfinite(value) || range.ends_with(']');
    const bool allowed = finite && (above ? value > least : value >= least);  // NaN is neither
    require(allowed, step == 0 ? std::string(field) : str("at step ", step, " ", field), value, range);
    return value;
  };
  StepNumbers now{
      .lr = number(lr, "lr", 0, false, "[0, inf)"),
      .kl_clip = number(kl_clip.value_or(default_kl_clip(convention)), "kl_clip", 0, true, "(0, inf]"),
      .factor_interval = number(factor_interval_in_use(), "factor_interval", 1, false, "1 and more steps"),
      .inverse_interval = number(inverse_interval_in_use(), "inverse_interval", 1, false, "1 and more steps"),
      .relative_damping = number(relative_damping_in_use(), "relative_damping", 0, true, "(0, inf)"),
      .damping = std::nullopt};
  require(staleness >= 0 && static_cast<double>(staleness) <= now.inverse_interval,
          step == 0 ? "staleness" : str("at step ", step, " staleness"), staleness,
          str("0 to inverse_interval, ", now.inverse_interval));
  if (damping) now.damping = number(*damping, "damping", 0, true, "(0, inf)");
  return now;
}

StepNumbers KfacOptions::in_long_run() const {
  StepNumbers numbers = at(0);
  const auto interval = [](const StepSchedule& schedule, const char* field) {
    const double steps = schedule.at(kStartSteps);
    require(steps >= 1, str("at step ", kStartSteps, " ", field), steps, "1 and more steps");
    return steps;
  };
  numbers.factor_interval = interval(factor_interval_in_use(), "factor_interval");
  numbers.inverse_interval = interval(inverse_interval_in_use(), "inverse_interval");
  return numbers;
}

FactorSamples KfacOptions::samples_of(size_t i) const {
  return layer_curvature.empty() ? factor_samples : layer_curvature.at(i).samples;
}

EigenRank KfacOptions::rank_in_use() const {
  const bool needs_full = method != Method::eigen || warm_start > 0 || staleness > 0;
  return needs_full && eigen_rank == EigenRank::automatic() ? EigenRank::full() : eigen_rank;
}

void KfacOptions::validate() const {
  // Written so that NaN fails too.
  require(grad_worker_frac > 0 && grad_worker_frac <= 1, "grad_worker_frac", grad_worker_frac, "(0, 1]");
  for (double share : layer_grad_worker_fracs)
    require(share > 0 && share <= 1, "layer_grad_worker_fracs", share, "(0, 1]");
  require(burn_in >= 0, "burn_in", burn_in, "0 and more steps");
  require(decay >= 0 && decay < 1, "decay", decay, "[0, 1)");
  const int64_t samples = factor_samples.positions().value_or(1);
  require(samples >= 1, "factor_samples", samples, "1 and more positions");
  eigen_rank.validate();
  require(norm_clip_in_use() > 0, "norm_clip", norm_clip_in_use(), "(0, inf]");
  if (damping && damping_scope)
    throw BadRequest(str("[kfac.options] damping_scope = ", name(*damping_scope),
                         " is of no use with damping, which is "
                         "absolute"));
  at(0);
  require_multiple(factor_interval_in_use(), inverse_interval_in_use());
  if (precompute_outer && method != Method::eigen)
    throw BadRequest(str("[kfac.options] precompute_outer goes with method eigen; method is ", name(method)));
  require(warm_start >= 0 && warm_start < 1, "warm_start", warm_start, "[0, 1)");
  require(warm_start == 0 || method == Method::eigen, "warm_start", warm_start, str("0 with method ", name(method)));
  require(staleness == 0 || method == Method::eigen, "staleness", staleness, str("0 with method ", name(method)));
  require(warm_start == 0 || storage == FactorDtype::fp32, "warm_start", warm_start,
          str("0 with storage ", name(storage), ", which rounds the last basis"));
  require(staleness == 0 || warm_start == 0, "staleness", staleness, "0 with warm_start, which needs the last basis");
  const EigenRank rank = rank_in_use();
  require(rank.is_full() || method == Method::eigen, "eigen_rank", name(rank), str("full with method ", name(method)));
  require(rank.is_full() || warm_start == 0, "eigen_rank", name(rank), "full with warm_start");
  require(rank.is_full() || staleness == 0, "eigen_rank", name(rank), "full with staleness");
  validate_plan(*this);
  require(panel_columns >= 1, "panel_columns", panel_columns, "1 and more");
  require(batch_elements.value_or(0) >= 0, "batch_elements", batch_elements.value_or(0), "0 and more");
  require(max_factor_dim >= 1, "max_factor_dim", max_factor_dim, "1 and more");
  require(max_linear_dim >= 1, "max_linear_dim", max_linear_dim, "1 and more");
  require(patch_workspace_bytes >= (1 << 16), "patch_workspace_bytes", patch_workspace_bytes, "65536 and more bytes");
  validate_patterns(skip);
}

}  // namespace spillway::kfac
