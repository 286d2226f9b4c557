#include "runtime/pipeline/refresh_in_waits.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <utility>

#include "core/clock.h"
#include "core/error.h"
#include "ddl/comm/communicator.h"
#include "pipe/rerun.h"
#include "pipe/shortest_fill.h"
#include "runtime/pipeline/exchange.h"

namespace spillway::runtime {
namespace {

using kfac::RefreshWork;
using nlohmann::json;
using What = RefreshWork::What;

/// A piece of work must take some time.
constexpr double kLeastSeconds = 1e-9;

/// Returns the kinds of the pieces that a rank has told of.
std::vector<What> kinds_of(const json& rank) {
  std::vector<What> kinds;
  for (const json& piece : rank[4]) kinds.push_back(piece[3].get<What>());
  return kinds;
}

/// Takes what a rank has told of its stages and its update.
void add_costs(const json& rank, pipe::Costs& costs) {
  costs.update = std::min(costs.update, rank[2].get<double>());  // others wait for the busiest rank in it
  for (const auto& [stage, times] : rank[3].items()) {
    pipe::StageSeconds& known = costs.stages[std::stoi(stage)];
    known.forward = std::max(known.forward, times[0].get<double>());
    known.input_gradient = std::max(known.input_gradient, times[1].get<double>());
    known.weight_gradient = std::max(known.weight_gradient, times[2].get<double>());
  }
}

}  // namespace

RefreshInWaits::RefreshInWaits(kfac::Kfac& kfac, std::shared_ptr<const Pipeline> pipeline, ddl::Comm world,
                               int64_t first_step)
    : kfac_(kfac),
      pipeline_(std::move(pipeline)),
      world_(std::move(world)),
      cycle_(kfac.cycle_length()),
      first_cycle_(first_step / cycle_),
      micro_batches_(std::ssize(pipeline_->plan.micro_batches_of(0))),
      waits_together_(pipeline_->plan.directions() == 1) {
  kfac_.defer(true);
  own_ = pieces();
}

/// True for work that is done in waits.
bool RefreshInWaits::fills(const RefreshWork& work) const {
  return waits_together_ || work.what == What::statistics || work.what == What::renew;
}

std::vector<RefreshInWaits::Piece> RefreshInWaits::pieces() const {
  std::vector<Piece> all;
  for (int64_t step = 0; step < cycle_; ++step) {
    const auto work = kfac_.refresh_work(cycle_ + step, micro_batches_);
    for (size_t index = 0; index < work.size(); ++index)
      if (fills(work[index])) all.push_back({step, index});
  }
  return all;
}

PlacedStage RefreshInWaits::stage_of(const RefreshWork& work) const {
  const std::vector<PlacedStage> own = pipeline_->plan.stages_at(pipeline_->place);
  if (work.layers.empty()) return own.front();
  const int stage = pipeline_->plan.stage_of_module(kfac_.layers()[work.layers.front()].shape.name);
  return *std::find_if(own.begin(), own.end(), [&](const PlacedStage& at) { return at.stage == stage; });
}

std::string RefreshInWaits::times_of_rank(const CycleSeconds& seconds) const {
  json stages = json::object(), work = json::array();
  for (const auto [stage, direction] : pipeline_->plan.stages_at(pipeline_->place)) {
    const pipe::StageSeconds& own = seconds.stages[stage];
    stages[std::to_string(stage)] = {own.forward, own.input_gradient, own.weight_gradient};
  }
  bool is_timed = true;
  double refresh = 0;
  for (int64_t step = 0; step < cycle_; ++step) {
    const auto all = kfac_.refresh_work(cycle_ + step, micro_batches_);
    const auto times = kfac_.refresh_seconds(cycle_ + step);
    if (times.size() != all.size()) {
      is_timed = false;
      break;
    }
    std::vector<int> number(all.size(), -1);  // among the step's work that fills waits
    int count = 0;
    for (size_t k = 0; k < all.size(); ++k) {
      if (!fills(all[k])) continue;
      number[k] = count++;
      if (plans_ == 0) refresh += times[k];  // it is done among the passes from then on
      const PlacedStage at = stage_of(all[k]);
      json needs = json::array();
      for (size_t need : kfac::needs_of(all, k, ddl::size_of(pipeline_->of_place)))
        if (number[need] >= 0) needs.push_back(number[need]);
      const int64_t micro_batch = all[k].what == What::statistics ? all[k].micro_batch : micro_batches_ - 1;
      work.push_back({step, at.stage, pipeline_->plan.micro_batches_of(at.direction)[micro_batch], all[k].what,
                      times[k], std::move(needs)});
    }
  }
  const double update = std::max(0.0, seconds.update - refresh / static_cast<double>(cycle_));
  return json{pipeline_->place, is_timed, update, stages, work}.dump();
}

void RefreshInWaits::plan(const CycleSeconds& seconds) {
  constexpr int kTimedCycles = 2;
  const std::vector<std::string> times = gather_texts(*world_->communicator, times_of_rank(seconds));
  const auto is_timed = [](const std::string& rank) { return json::parse(rank)[1].get<bool>(); };
  if (std::all_of(times.begin(), times.end(), is_timed) && ++timed_cycles_ >= kTimedCycles) plan_from(times);
  if (plans_ > 0) kfac_.forget_refresh_seconds();
}

bool RefreshInWaits::plans_again(int64_t step) const {
  if (plans_ == 0 || step % cycle_ != 0) return false;
  const int64_t cycle = step / cycle_ - first_cycle_;
  int64_t next = 8;
  while (next < cycle) next *= 4;
  return cycle == next;
}

void RefreshInWaits::plan_again(const CycleSeconds& seconds) {
  constexpr double kLeastGain = 0.1;
  std::optional<Plan> other = plan_of(gather_texts(*world_->communicator, times_of_rank(seconds)));
  kfac_.forget_refresh_seconds();
  if (!other) return;
  pipe::Filled now = pipe::rerun(plan_.filled, pipeline_->plan.program, other->extras, other->costs);
  if (other->filled.seconds <= (1 - kLeastGain) * now.seconds) return follow(*std::move(other));
  plan_.extras = std::move(other->extras);
  plan_.costs = std::move(other->costs);
  plan_.filled = std::move(now);
}

bool RefreshInWaits::plan_from(const std::vector<std::string>& times) {
  std::optional<Plan> plan = plan_of(times);
  if (!plan) return false;
  follow(*std::move(plan));
  return true;
}

void RefreshInWaits::follow(Plan plan) {
  plan_ = std::move(plan);
  ++plans_;
  first_own_ = static_cast<int>(std::count_if(plan_.extras.begin(), plan_.extras.end(),
                                              [&](const pipe::Extra& one) { return one.rank < pipeline_->place; }));
}

std::optional<RefreshInWaits::Plan> RefreshInWaits::plan_of(const std::vector<std::string>& times) const {
  std::vector<json> ranks;
  for (const std::string& text : times) ranks.push_back(json::parse(text));
  if (!std::all_of(ranks.begin(), ranks.end(), [](const json& rank) { return rank[1].get<bool>(); }))
    return std::nullopt;
  Plan plan{.costs = {.stages = std::vector<pipe::StageSeconds>(pipeline_->plan.stages()),
                      .update = std::numeric_limits<double>::infinity(),
                      .message = message_seconds(*pipeline_, world_)}};
  take(ranks, plan);
  std::tie(plan.filled, plan.fills_waits) =
      pipe::fill_shortest(pipeline_->plan.program, plan.extras, plan.costs, static_cast<int>(cycle_));
  return plan;
}

void RefreshInWaits::take(const std::vector<json>& ranks, Plan& plan) const {
  std::vector<std::vector<pipe::Extra>> of_place(pipeline_->places);
  std::vector<std::vector<What>> kinds_of_place(pipeline_->places);
  for (const json& rank : ranks) {
    add_costs(rank, plan.costs);
    auto extras = extras_of(rank);
    auto& known = of_place[rank[0].get<int>()];
    // Copies have the same pieces; the slowest one counts.
    for (size_t k = 0; k < known.size(); ++k) extras[k].seconds = std::max(extras[k].seconds, known[k].seconds);
    known = std::move(extras);
    kinds_of_place[rank[0].get<int>()] = kinds_of(rank);
  }
  for (int place = 0; place < pipeline_->places; ++place) {
    const int first = static_cast<int>(plan.extras.size());
    for (pipe::Extra extra : of_place[place]) {
      for (int& after : extra.after) after += first;
      plan.extras.push_back(std::move(extra));
    }
    plan.kinds.insert(plan.kinds.end(), kinds_of_place[place].begin(), kinds_of_place[place].end());
  }
}

std::vector<pipe::Extra> RefreshInWaits::extras_of(const json& rank) const {
  std::vector<pipe::Extra> extras;
  size_t first_of_step = 0;
  for (const json& piece : rank[4]) {
    const int step = piece[0];
    const bool is_product = piece[3].get<What>() == What::statistics;
    if (extras.empty() || extras.back().taken_step != step) first_of_step = extras.size();
    pipe::Extra& extra = extras.emplace_back();
    extra.rank = rank[0];
    extra.seconds = std::max(piece[4].get<double>(), kLeastSeconds);
    extra.ready = {pipeline_->plan.program.backward_work(), piece[1], piece[2]};
    extra.taken_step = step;
    extra.serves_step = static_cast<int>(step + kfac_.options().curvature_delay);
    if (!waits_together_ && is_product) extra.serves_step = step;  // averages follow the passes
    if (!waits_together_ && !is_product) extra.ready = {pipe::Work::update};
    for (const json& need : piece[5]) extra.after.push_back(static_cast<int>(first_of_step + need.get<size_t>()));
  }
  return extras;
}

std::string describe(const RefreshInWaits& in_waits) {
  const pipe::Filled& filled = in_waits.filled();
  const auto milliseconds = [&](double seconds) {
    return static_cast<int64_t>(std::round(1000 * seconds / filled.steps()));
  };
  return str(in_waits.plans() > 1 ? "times have changed: " : "",
             in_waits.fills_waits() ? "from here on K-FAC's work is done while ranks wait: "
                                    : "K-FAC's work stays after the passes, because waits are too short for it: ",
             in_waits.extras().size(), " pieces in ", filled.steps(), " steps, ",
             milliseconds(*std::max_element(filled.filled.begin(), filled.filled.end())),
             " ms a step on the busiest rank, make a step of ", milliseconds(filled.unfilled_seconds), " ms take ",
             milliseconds(filled.seconds), " ms");
}

const std::vector<pipe::FilledItem>* RefreshInWaits::items_of(int64_t step) const {
  return plans_ == 0 ? nullptr : &filled().items[pipeline_->place][step % cycle_];
}

std::string RefreshInWaits::kind_of_step(int64_t step) const {
  return str("filled ", step % cycle_, plans_ > 1 ? str(" of plan ", plans_) : "");
}

void RefreshInWaits::run(const pipe::FilledItem& extra, int64_t step) {
  const Piece& piece = own_.at(extra.extra - first_own_);
  const int64_t taken = (step / cycle_ - extra.age) * cycle_ + piece.taken_step;
  const Stopwatch stopwatch(seconds_[static_cast<size_t>(kind_of(extra.extra))]);
  if (!kfac_.waits(taken, piece.index) || needs_others(taken, piece.index)) return;
  kfac_.run(taken, micro_batches_, piece.index);
}

/// True where a piece comes after work that ranks do together and have not done, as in a refresh that began before the
/// plan. Such a piece is left to the step that the refresh serves.
bool RefreshInWaits::needs_others(int64_t taken, size_t index) const {
  if (waits_together_) return false;
  const auto work = kfac_.refresh_work(taken, micro_batches_);
  const auto is_open = [&](size_t need) {
    return kfac_.waits(taken, need) && (!fills(work[need]) || needs_others(taken, need));
  };
  const auto needs = kfac::needs_of(work, index, ddl::size_of(pipeline_->of_place));
  return std::any_of(needs.begin(), needs.end(), is_open);
}

void RefreshInWaits::run_together(int64_t step) {
  if (waits_together_ || !items_of(step)) return;
  const auto work = kfac_.refresh_work(step, micro_batches_);
  for (size_t index = 0; index < work.size(); ++index)
    if (work[index].what == What::average && kfac_.waits(step, index)) kfac_.run(step, micro_batches_, index);
}

}  // namespace spillway::runtime
