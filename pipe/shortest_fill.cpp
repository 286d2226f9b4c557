#include "pipe/shortest_fill.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace spillway::pipe {
namespace {

/// An extra must take some time.
constexpr double kMinSeconds = 1e-9;

/// Returns the gradients of weights of a cycle of steps, as extras with a deadline.
std::vector<Extra> weight_gradients(const StepProgram& program, const Costs& costs, int steps) {
  std::vector<Extra> extras;
  int next = 0;
  for (int step = 0; step < steps; ++step)
    for (int stage = 0; stage < program.graph.stages; ++stage)
      for (int m = 0; m < program.micro_batches(); ++m) {
        Extra extra{.rank = program.rank_of(stage, m),
                    .seconds = std::max(costs.stages[stage].weight_gradient, kMinSeconds),
                    .ready = {Work::input_gradient, stage, m},
                    .taken_step = step,
                    .serves_step = step,
                    .held_bytes = 1};
        if (m > 0) extra.after = {next - 1};
        extras.push_back(std::move(extra));
        ++next;
      }
  return extras;
}

/// Makes items of a plan's last extras, which are gradients of weights.
void take_as_items(const std::vector<Extra>& extras, int first, Filled& filled) {
  for (size_t rank = 0; rank < filled.items.size(); ++rank)
    for (auto& step : filled.items[rank])
      for (FilledItem& item : step) {
        if (item.extra < first) continue;
        const Extra& extra = extras[item.extra];
        item.item = {Work::weight_gradient, extra.ready.stage, extra.ready.micro_batch};
        item.extra = -1;
        filled.filled[rank] -= extra.seconds;
        filled.busy[rank] += extra.seconds;
      }
}

/// Moves extras behind the passes of their rank, in the step in which they are taken, as without a plan. Those that
/// begin after an update stay as they are.
std::vector<Extra> after_passes(std::vector<Extra> extras, const StepProgram& program) {
  for (Extra& extra : extras) {
    if (extra.ready.work == Work::update) continue;
    const auto& items = program.items[extra.rank];
    const auto last =
        std::find_if(items.rbegin(), items.rend(), [](const Item& item) { return item.work != Work::update; });
    extra.ready = *last;
    extra.serves_step = extra.taken_step;
  }
  return extras;
}

/// Fills the bubbles of a cycle. Gradients of weights that are items of their own are placed anew, beside the extras.
Filled fill_anew(StepProgram program, std::vector<Extra> extras, const Costs& costs, int steps) {
  FillOptions options{.steps = steps};
  for (auto& items : program.items)
    std::erase_if(items, [](const Item& item) { return item.work == Work::weight_gradient; });
  options.held_bytes_limit = program.graph.ranks();  // as many gradients of weights as ZB-H1 keeps
  const auto alone = weight_gradients(program, costs, steps);
  const int first = static_cast<int>(extras.size());
  for (Extra extra : alone) {
    for (int& after : extra.after) after += first;
    extras.push_back(std::move(extra));
  }
  Filled filled = fill(program, extras, costs, options);
  filled.unfilled_seconds = fill(program, alone, costs, options).seconds;
  take_as_items(extras, first, filled);
  return filled;
}

}  // namespace

std::pair<Filled, bool> fill_shortest(const StepProgram& program, std::span<const Extra> extras, const Costs& costs,
                                      int steps) {
  Filled shortest = fill(program, extras, costs, {.steps = steps});
  bool fills_bubbles = true;
  double unfilled = shortest.unfilled_seconds;
  const auto take_if_shorter = [&](Filled other, bool fills) {
    unfilled = std::min(unfilled, other.unfilled_seconds);
    if (other.seconds < shortest.seconds) shortest = std::move(other), fills_bubbles = fills;
  };
  const std::vector<Extra> all(extras.begin(), extras.end());
  if (program.splits_backward) take_if_shorter(fill_anew(program, all, costs, steps), true);
  take_if_shorter(fill(program, after_passes(all, program), costs, {.steps = steps}), false);
  shortest.unfilled_seconds = unfilled;
  return {std::move(shortest), fills_bubbles};
}

}  // namespace spillway::pipe
