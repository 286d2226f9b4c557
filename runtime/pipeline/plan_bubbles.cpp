#include "runtime/pipeline/plan_bubbles.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "pipe/shortest_fill.h"

namespace spillway::runtime {
namespace {

using What = kfac::RefreshWork::What;

/// A piece of work must take some time.
constexpr double kMinSeconds = 1e-9;

/// Takes a rank's times of its stages and its update.
void add_costs(const RankTimes& rank, pipe::Costs& costs) {
  costs.update = std::min(costs.update, rank.update);  // others wait for the busiest rank in it
  for (size_t stage = 0; stage < costs.stages.size(); ++stage) {
    const pipe::StageSeconds& own = rank.stages[stage];
    pipe::StageSeconds& known = costs.stages[stage];
    known.forward = std::max(known.forward, own.forward);
    known.input_gradient = std::max(known.input_gradient, own.input_gradient);
    known.weight_gradient = std::max(known.weight_gradient, own.weight_gradient);
  }
}

/// Returns the extras of a rank, numbered from 0.
std::vector<pipe::Extra> extras_of(const RankTimes& rank, const PipelinePlan& pipeline, int64_t delay) {
  const bool waits_together = pipeline.directions() == 1;
  std::vector<pipe::Extra> extras;
  int first_of_step = 0;
  for (const PieceTimes& piece : rank.pieces) {
    const bool is_product = piece.what == What::statistics;
    if (extras.empty() || extras.back().taken_step != piece.step) first_of_step = std::ssize(extras);
    pipe::Extra& extra = extras.emplace_back();
    extra.rank = rank.place;
    extra.seconds = std::max(piece.seconds, kMinSeconds);
    extra.ready = {pipeline.program.backward_work(), piece.stage, piece.micro_batch};
    extra.taken_step = piece.step;
    extra.serves_step = piece.step + delay;
    if (!waits_together && is_product) extra.serves_step = piece.step;  // averages follow the passes
    if (!waits_together && !is_product) extra.ready = {pipe::Work::update};
    for (int need : piece.needs) extra.after.push_back(first_of_step + need);
  }
  return extras;
}

/// Takes the extras and the costs of all ranks.
void add_ranks(const std::vector<RankTimes>& ranks, const PipelinePlan& pipeline, int64_t delay, BubblePlan& plan) {
  const int places = pipeline.program.graph.ranks();
  std::vector<std::vector<pipe::Extra>> of_place(places);
  std::vector<std::vector<What>> kinds_of_place(places);
  for (const RankTimes& rank : ranks) {
    add_costs(rank, plan.costs);
    auto extras = extras_of(rank, pipeline, delay);
    auto& known = of_place[rank.place];
    // Copies have the same pieces; the slowest one counts.
    for (size_t k = 0; k < known.size(); ++k) extras[k].seconds = std::max(extras[k].seconds, known[k].seconds);
    known = std::move(extras);
    kinds_of_place[rank.place].clear();
    for (const PieceTimes& piece : rank.pieces) kinds_of_place[rank.place].push_back(piece.what);
  }
  for (int place = 0; place < places; ++place) {
    const int first = std::ssize(plan.extras);
    for (pipe::Extra extra : of_place[place]) {
      for (int& after : extra.after) after += first;
      plan.extras.push_back(std::move(extra));
    }
    plan.kinds.insert(plan.kinds.end(), kinds_of_place[place].begin(), kinds_of_place[place].end());
  }
}

}  // namespace

std::optional<BubblePlan> plan_bubbles(const PipelinePlan& pipeline, const std::vector<RankTimes>& ranks,
                                       const RefreshCycle& cycle, double message_seconds) {
  if (!std::all_of(ranks.begin(), ranks.end(), [](const RankTimes& rank) { return rank.is_timed; }))
    return std::nullopt;
  BubblePlan plan{.costs = {.stages = std::vector<pipe::StageSeconds>(pipeline.stages()),
                            .update = std::numeric_limits<double>::infinity(),
                            .message = message_seconds}};
  add_ranks(ranks, pipeline, cycle.delay, plan);
  std::tie(plan.filled, plan.fills_bubbles) =
      pipe::fill_shortest(pipeline.program, plan.extras, plan.costs, cycle.steps);
  return plan;
}

}  // namespace spillway::runtime
