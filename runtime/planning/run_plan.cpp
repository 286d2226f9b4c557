#include "runtime/planning/run_plan.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <limits>
#include <set>
#include <thread>
#include <utility>

#include "core/bytes.h"
#include "core/error.h"

namespace spillway::runtime {
namespace {

/// The share by which a choice must be faster to be taken before an earlier one.
constexpr double kFaster = 0.005;
/// The part of a simulated peak that is added to it.
constexpr int64_t kPeakMargin = 200;
/// The ranks up to which every number of gradient workers is weighed.
constexpr int64_t kAllFractions = 16;

std::string time_text(double seconds) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), seconds < 1 ? "%.3g ms" : "%.3g s", seconds < 1 ? seconds * 1e3 : seconds);
  return text.data();
}

/// Returns the numbers of gradient workers that are weighed in a large world: of each octave the smallest and the
/// largest one that divides the world, because the ranks then form equal groups, as hosts often do; a power of two
/// where none does.
std::set<int64_t> weighed_workers(int64_t world) {
  std::set<int64_t> all;
  for (int64_t octave = 1; octave <= world; octave *= 2) {
    std::vector<int64_t> divisors;
    for (int64_t workers = octave; workers < 2 * octave && workers <= world; ++workers)
      if (world % workers == 0) divisors.push_back(workers);
    if (divisors.empty()) divisors.push_back(octave);
    all.insert({divisors.front(), divisors.back()});
  }
  return all;
}

/// Returns the mean of a part of the time over a run's steps.
double mean(const Forecast& forecast, double StepForecast::*part) {
  double sum = 0;
  for (const StepForecast& kind : forecast.kinds) sum += kind.share * kind.*part;
  return sum;
}

/// Names the part of the time in which `other` is slower than `best` by the most.
std::string difference(const Forecast& best, const Forecast& other) {
  constexpr std::pair<double StepForecast::*, const char*> kParts[]{{&StepForecast::compute_seconds, "operators"},
                                                                    {&StepForecast::copy_seconds, "waits for copies"},
                                                                    {&StepForecast::message_seconds, "messages"}};
  const char* name = "";
  double most = 0;
  for (const auto& [part, text] : kParts)
    if (const double more = mean(other, part) - mean(best, part); more > most) {
      most = more;
      name = text;
    }
  return most > 0 ? str(", with ", time_text(most), " more of ", name) : "";
}

WeighedChoice weigh_one(const PlanChoice& choice, const std::vector<RankSteps>& steps,
                        const swap::ScheduleInputs& inputs) {
  WeighedChoice weighed{.choice = choice, .forecast = forecast(steps, inputs), .floor_operator = {}};
  for (const RankSteps& rank : steps) {
    weighed.unlimited_bytes = std::max(weighed.unlimited_bytes, rank.peak_bytes);
    if (rank.floor_bytes <= weighed.floor_bytes) continue;
    weighed.floor_bytes = rank.floor_bytes;
    weighed.floor_operator = rank.floor_operator;
  }
  // Steps on demand, and those between kinds, hold a little more than the simulated ones. The simulation of operators
  // in windows admits more than the gate does.
  int64_t& peak = weighed.forecast.peak_bytes;
  peak = std::min({peak + peak / kPeakMargin, weighed.unlimited_bytes, inputs.budget_bytes});
  return weighed;
}

double seconds_of(const WeighedChoice& weighed) {
  return weighed.forecast.feasible ? weighed.forecast.seconds : std::numeric_limits<double>::infinity();
}

/// Returns the number of the choice to take: the earliest of those that are as fast as the fastest. Where none fits,
/// that with the least floor.
size_t best_of(const std::vector<WeighedChoice>& weighed) {
  double fastest = std::numeric_limits<double>::infinity();
  for (const WeighedChoice& choice : weighed) fastest = std::min(fastest, seconds_of(choice));
  auto best = std::find_if(weighed.begin(), weighed.end(), [&](const WeighedChoice& choice) {
    return choice.forecast.feasible && seconds_of(choice) <= fastest * (1 + kFaster);
  });
  if (best == weighed.end())
    best = std::min_element(weighed.begin(), weighed.end(), [](const WeighedChoice& a, const WeighedChoice& b) {
      return a.floor_bytes < b.floor_bytes;
    });
  return best - weighed.begin();
}

/// Puts the choice to take first. The others follow by their times, and those that do not fit by their floors.
void order(std::vector<WeighedChoice>& weighed) {
  const auto best = weighed.begin() + static_cast<ptrdiff_t>(best_of(weighed));
  std::rotate(weighed.begin(), best, best + 1);
  std::stable_sort(weighed.begin() + 1, weighed.end(), [](const WeighedChoice& a, const WeighedChoice& b) {
    if (a.forecast.feasible || b.forecast.feasible) return seconds_of(a) < seconds_of(b);
    return a.floor_bytes < b.floor_bytes;
  });
}

/// Returns each choice with each buffer of gradients, one after another.
std::vector<PlanChoice> with_buffers(std::vector<PlanChoice> choices, const std::vector<int64_t>& buffers) {
  if (buffers.empty()) return choices;
  std::vector<PlanChoice> all;
  for (PlanChoice choice : choices)
    for (int64_t bytes : buffers) {
      choice.gradient_buffer_bytes = bytes;
      all.push_back(choice);
    }
  return all;
}

/// Calls `body` for 0 … count − 1, on as many threads as there are cores.
void in_parallel(size_t count, const std::function<void(size_t)>& body) {
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) body(i);
  };
  std::vector<std::jthread> threads;
  const size_t cores = std::max(1U, std::thread::hardware_concurrency());
  for (size_t t = 1; t < std::min(cores, count); ++t) threads.emplace_back(work);
  work();
}

}  // namespace

std::string describe(const PlanChoice& choice) {
  std::vector<std::string> parts;
  if (choice.pipeline) parts.emplace_back(name(choice.pipeline->schedule));
  if (choice.pipeline && choice.pipeline->recompute) parts.emplace_back("recomputed");
  if (choice.shares_kfac) {
    parts.push_back(str(kfac::name(choice.workers.strategy), " f=", choice.workers.grad_worker_frac));
    parts.emplace_back(kfac::name(choice.placement));
  }
  if (choice.gradient_buffer_bytes > 0)
    parts.push_back(str("gradients in ", format_bytes(choice.gradient_buffer_bytes)));
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

std::vector<PlanChoice> with_pipelines(const std::vector<PlanChoice>& choices,
                                       const std::vector<PipelineChoice>& pipelines) {
  std::vector<PlanChoice> all;
  for (const PipelineChoice& pipeline : pipelines)
    for (PlanChoice choice : choices) {
      choice.pipeline = pipeline;
      all.push_back(choice);
    }
  return all;
}

std::vector<PlanChoice> plan_choices(const kfac::KfacOptions& options, bool choose_workers, int64_t world) {
  const PlanChoice own{{options.strategy, options.grad_worker_frac}, options.placement};
  if (!choose_workers) return {own};
  const std::set<int64_t> few = weighed_workers(world);
  std::vector<PlanChoice> choices;
  for (const kfac::StrategyChoice& workers : kfac::exact_choices(world)) {
    const bool is_asked = options.strategy == kfac::Strategy::automatic || workers.strategy == options.strategy;
    const bool is_weighed =
        world <= kAllFractions || few.contains(std::llround(workers.grad_worker_frac * static_cast<double>(world)));
    if (is_asked && is_weighed) choices.push_back({workers, options.placement});
  }
  return choices.empty() ? std::vector{own} : choices;
}

std::string RunPlan::reason() const {
  if (!is_feasible()) return str("no choice fits; the smallest feasible budget is ", format_bytes(best().floor_bytes));
  if (weighed.size() == 1) return str(time_text(best().forecast.seconds), " a step; there is nothing to choose");
  std::string text = str(describe(best().choice), ": ", time_text(best().forecast.seconds), " a step");
  const WeighedChoice& next = weighed[1];
  if (!next.forecast.feasible)
    return text + str("; ", describe(next.choice), " needs ", format_bytes(next.floor_bytes), " at least");
  return text + str("; next ", describe(next.choice), ": ", time_text(next.forecast.seconds),
                    difference(best().forecast, next.forecast));
}

RunPlanner::RunPlanner(std::vector<PlanChoice> choices, swap::ScheduleInputs inputs, Steps steps,
                       const std::vector<int64_t>& gradient_buffers)
    : buffers_(std::max<size_t>(1, gradient_buffers.size())),
      choices_(with_buffers(std::move(choices), gradient_buffers)),
      inputs_(inputs),
      make_steps_(std::move(steps)) {}

const std::vector<RankSteps>& RunPlanner::steps(size_t choice) {
  auto known = steps_.find(choice);
  if (known == steps_.end()) known = steps_.emplace(choice, make_steps_(choices_[choice])).first;
  return known->second;
}

std::vector<WeighedChoice> RunPlanner::weigh(const std::vector<size_t>& choices, const swap::ScheduleInputs& inputs) {
  for (size_t choice : choices) (void)steps(choice);
  std::vector<WeighedChoice> weighed(choices.size());
  in_parallel(choices.size(),
              [&](size_t i) { weighed[i] = weigh_one(choices_[choices[i]], steps_.at(choices[i]), inputs); });
  return weighed;
}

RunPlan RunPlanner::plan(int64_t budget_bytes) {
  RunPlan plan{.budget_bytes = budget_bytes, .weighed = {}};
  swap::ScheduleInputs inputs = inputs_;
  inputs.budget_bytes = budget_bytes;
  inputs.slack_bytes = budget_bytes == kUnlimitedBytes ? 0 : budget_bytes / 100;
  std::vector<size_t> with_first_buffer, of_best;
  for (size_t c = 0; c < choices_.size(); c += buffers_) with_first_buffer.push_back(c);
  plan.weighed = weigh(with_first_buffer, inputs);
  const size_t best = with_first_buffer[best_of(plan.weighed)];
  for (size_t c = best + 1; c < best + buffers_; ++c) of_best.push_back(c);
  for (WeighedChoice& choice : weigh(of_best, inputs)) plan.weighed.push_back(std::move(choice));
  order(plan.weighed);
  return plan;
}

std::pair<RunPlan, RunPlan> RunPlanner::neighbors(int64_t budget_bytes) {
  return {plan(budget_bytes / 4 * 3), plan(budget_bytes / 3 * 4)};
}

}  // namespace spillway::runtime
