#include "runtime/dry_runs/changes.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "core/error.h"
#include "runtime/dry_runs/make_planner.h"
#include "runtime/models/model_info.h"

namespace spillway::runtime {
namespace {

/// The share by which a change must be faster to be taken where the run fits without it.
constexpr double kFaster = 0.02;
/// Splits are not made smaller than this, because operators then run in many windows.
constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kMinSplit = 4 * kMiB;

/// One kind of change. `make` returns the flags, or nothing where it would change nothing.
struct Kind {
  const char* name;
  std::optional<std::string> (*make)(TrainOptions& options, int64_t world);
};

using Flags = std::optional<std::string>;

Flags make_separable(TrainOptions& options, int64_t) {
  kfac::ConvFactors& form = options.kfac.preconditioner.conv_factors;
  const bool has_convolutions = model_info(options.model.name).has_channels();
  if (!options.kfac.enabled || !has_convolutions || form == kfac::ConvFactors::separable) return {};
  form = kfac::ConvFactors::separable;
  return "--conv-factors separable";
}

Flags make_storage(TrainOptions& options, int64_t) {
  kfac::FactorDtype& storage = options.kfac.preconditioner.storage;
  if (!options.kfac.enabled || storage != kfac::FactorDtype::fp32) return {};
  storage = kfac::FactorDtype::bf16;
  return "--kfac-storage bf16";
}

Flags make_dp(TrainOptions& options, int64_t world) {
  kfac::KfacOptions& k = options.kfac.preconditioner;
  if (!options.kfac.enabled || world == 1 || k.strategy == kfac::Strategy::dp) return {};
  k.strategy = kfac::Strategy::dp;
  options.kfac.choose_grad_worker_frac = false;
  return "--kfac-strategy dp";
}

Flags make_amp(TrainOptions& options, int64_t) {
  if (options.precision.amp != Amp::off) return {};
  options.precision.amp = Amp::bf16;
  return "--amp bf16";
}

Flags make_batch(TrainOptions& options, int64_t) {
  int64_t& batch = options.data.batch;
  if (batch % 2 != 0 || options.kfac.preconditioner.overlap_factors) return {};
  batch /= 2;
  options.optimizer.accumulate *= 2;
  return str("--batch ", batch, " --accumulate ", options.optimizer.accumulate);
}

Flags make_split(TrainOptions& options, int64_t) {
  const int64_t split = options.memory.split_in_use();
  const int64_t smaller = std::min(split, kDefaultSplitBytes) / 4 / kMiB * kMiB;  // as the flag says it
  if (smaller < kMinSplit) return {};
  options.memory.split_bytes = smaller;
  return str("--split ", smaller / kMiB, "MiB");
}

constexpr std::array kKinds{
    Kind{"separable", make_separable}, Kind{"storage", make_storage}, Kind{"dp", make_dp}, Kind{"amp", make_amp},
    Kind{"batch", make_batch},         Kind{"split", make_split}};

const Kind& kind_of(const std::string& name) {
  for (const Kind& kind : kKinds)
    if (name == kind.name) return kind;
  std::string all;
  for (const Kind& kind : kKinds) all += str(all.empty() ? "" : ", ", kind.name);
  throw BadRequest(str("--allow is '", name, "'; allowed: ", all));
}

std::optional<Change> change_of(const Kind& kind, const TrainOptions& given, int64_t world) {
  Change change{kind.name, {}, with_model_defaults(given)};
  Flags flags = kind.make(change.options, world);
  if (!flags) return {};
  change.flags = std::move(*flags);
  return change;
}

/// True when a plan fits where the other does not, or is better by the share `margin`: in its floor where neither fits,
/// else in its time.
bool is_better(const RunPlan& plan, const RunPlan& than, double margin) {
  if (plan.is_feasible() != than.is_feasible()) return plan.is_feasible();
  if (!plan.is_feasible())
    return static_cast<double>(plan.best().floor_bytes) < (1 - margin) * static_cast<double>(than.best().floor_bytes);
  return plan.best().forecast.seconds < (1 - margin) * than.best().forecast.seconds;
}

/// Returns nothing where the change does not go with the other options.
std::optional<Proposal> plan_change(const Change& change, int64_t budget_bytes, PlannedCluster& cluster) {
  try {
    return Proposal{change.name, change.flags, make_planner(change.options, cluster).plan(budget_bytes)};
  } catch (const BadRequest&) {
    return {};
  }
}

}  // namespace

std::vector<std::string> change_names() {
  std::vector<std::string> names;
  for (const Kind& kind : kKinds) names.emplace_back(kind.name);
  return names;
}

std::vector<Change> changes(const TrainOptions& options, int64_t world) {
  std::vector<Change> all;
  for (const Kind& kind : kKinds)
    if (auto change = change_of(kind, options, world)) all.push_back(std::move(*change));
  return all;
}

std::vector<Proposal> propose(const TrainOptions& options, int64_t budget_bytes, PlannedCluster& cluster) {
  std::vector<Proposal> all;
  for (const Change& change : changes(options, cluster.world()))
    if (auto proposal = plan_change(change, budget_bytes, cluster)) all.push_back(std::move(*proposal));
  return all;
}

TakenChanges take_changes(const TrainOptions& options, const std::vector<std::string>& allowed,
                          PlannedCluster& cluster) {
  for (const std::string& name : allowed) (void)kind_of(name);
  if (options.memory.budget.kind == BudgetRequest::Kind::none)
    throw BadRequest("--allow has no effect without --budget, because everything fits then");
  TakenChanges result{.options = with_model_defaults(options)};
  RunPlanner planner = make_planner(options, cluster);
  const int64_t peak = planner.plan(kUnlimitedBytes).best().unlimited_bytes;
  const int64_t budget = budget_bytes(options.memory.budget, peak, cluster);
  result.options.memory.budget = {.kind = BudgetRequest::Kind::bytes, .bytes = budget};
  RunPlan plan = planner.plan(budget);
  while (result.taken.size() < kMaxChanges) {
    std::optional<Proposal> best;
    TrainOptions with_best;
    for (Change& change : changes(result.options, cluster.world())) {
      if (std::find(allowed.begin(), allowed.end(), change.name) == allowed.end()) continue;
      auto proposal = plan_change(change, budget, cluster);
      if (!proposal || !is_better(proposal->plan, plan, kFaster)) continue;
      if (best && !is_better(proposal->plan, best->plan, 0)) continue;
      best = std::move(proposal);
      with_best = std::move(change.options);
    }
    if (!best) break;
    result.options = std::move(with_best);
    plan = best->plan;
    result.taken.push_back(std::move(*best));
  }
  return result;
}

TakenChanges make_changes(const TrainOptions& options, const std::vector<std::string>& names, int64_t world) {
  TakenChanges result{.options = options};
  for (const std::string& name : names) {
    auto change = change_of(kind_of(name), result.options, world);
    if (!change) throw BadRequest(str("--allow ", name, " changes nothing in this run"));
    result.options = std::move(change->options);
    result.taken.push_back({std::move(change->name), std::move(change->flags), {}});
  }
  return result;
}

}  // namespace spillway::runtime
