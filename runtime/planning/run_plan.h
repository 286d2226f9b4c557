/// The choice of how to run a training under a budget, by simulation of each way.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kfac/plan/option_types.h"
#include "kfac/plan/strategy_choice.h"
#include "runtime/options/pipeline_options.h"
#include "runtime/planning/forecast.h"
#include "runtime/planning/rank_steps.h"
#include "swap/schedule/schedule_inputs.h"

namespace spillway::runtime {

/// One way to run a model that is cut over ranks.
struct PipelineChoice {
  PipelineSchedule schedule = PipelineSchedule::one_forward_one_backward;
  bool recompute = false;
};

/// One way to run a model on ranks. No choice changes a bit of the result.
struct PlanChoice {
  kfac::StrategyChoice workers;
  kfac::Placement placement = kfac::Placement::lpt_time;
  std::optional<PipelineChoice> pipeline = std::nullopt;
  bool shares_kfac = true;  ///< false: `workers` and `placement` tell nothing, because no ranks share K-FAC's work
  int64_t gradient_buffer_bytes = 0;  ///< GradientExchangeOptions::buffer_bytes; 0: those that are asked for
};

/// Returns `hybrid f=0.5, lpt-time`, with a pipeline `zb-h1, recomputed, hybrid f=0.5, lpt-time`, with a buffer of its
/// own `hybrid f=0.5, lpt-time, gradients in 4.00 MiB`.
std::string describe(const PlanChoice& choice);

/// Returns every choice with every pipeline.
std::vector<PlanChoice> with_pipelines(const std::vector<PlanChoice>& choices,
                                       const std::vector<PipelineChoice>& pipelines);

/// Returns the choices that a plan weighs for `world` ranks: the strategies and fractions of kfac::exact_choices() that
/// `options` leave open, above 16 ranks one or two fractions of each octave. Where `choose_workers` is false, the
/// options' own.
std::vector<PlanChoice> plan_choices(const kfac::KfacOptions& options, bool choose_workers, int64_t world);

struct WeighedChoice {
  PlanChoice choice;
  Forecast forecast;
  int64_t floor_bytes = 0;      ///< smallest feasible budget; maximum over ranks
  std::string floor_operator;   ///< the operator that needs it
  int64_t unlimited_bytes = 0;  ///< peak without a budget; maximum over ranks
};

/// The outcome of weighing all choices under one budget.
struct RunPlan {
  int64_t budget_bytes = 0;
  std::vector<WeighedChoice> weighed;  ///< choices that fit come first, the fastest first
  bool is_feasible() const { return weighed.front().forecast.feasible; }
  const WeighedChoice& best() const { return weighed.front(); }
  /// Returns why the best choice is the best, in one line: its time, the runner-up, and what tells them apart.
  std::string reason() const;
};

/// Weighs choices under budgets. The steps of each choice are made once, when they are first needed.
class RunPlanner {
 public:
  /// Returns the steps of the ranks that stand for all, for a choice.
  using Steps = std::function<std::vector<RankSteps>(const PlanChoice& choice)>;

  /// `inputs` are for the schedules, but for their budget. `choices` has one entry at least. `gradient_buffers` are
  /// sizes of PlanChoice::gradient_buffer_bytes that the plan may choose from.
  RunPlanner(std::vector<PlanChoice> choices, swap::ScheduleInputs inputs, Steps steps,
             const std::vector<int64_t>& gradient_buffers = {});

  /// Weighs every choice under the budget, with the first buffer of gradients, and then the best one with the others.
  /// Deterministic. A choice is taken before an earlier one only when it is
  /// faster by more than 0.5 %, because forecasts are no more exact than that.
  RunPlan plan(int64_t budget_bytes);
  /// Plans under three quarters, and under four thirds, of the budget.
  std::pair<RunPlan, RunPlan> neighbors(int64_t budget_bytes);

 private:
  const std::vector<RankSteps>& steps(size_t choice);
  std::vector<WeighedChoice> weigh(const std::vector<size_t>& choices, const swap::ScheduleInputs& inputs);

  const size_t buffers_;                   // of each choice
  const std::vector<PlanChoice> choices_;  // with each buffer, one after another
  const swap::ScheduleInputs inputs_;
  const Steps make_steps_;
  std::map<size_t, std::vector<RankSteps>> steps_;
};

}  // namespace spillway::runtime
