// Tests of the choice among ways to fill a pipeline's waits.
#include "pipe/shortest_fill.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "pipe/schedules.h"

namespace spillway::pipe {
namespace {

constexpr int kSteps = 3;

struct Case {
  StepProgram program;
  Costs costs;
  std::vector<Extra> extras = {};
};

Case random_case(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto between = [&](double least, double most) {
    return std::uniform_real_distribution<double>(least, most)(random);
  };
  const auto below = [&](int limit) { return static_cast<int>(random() % limit); };
  const int ranks = 2 + below(3), micro_batches = ranks + below(4);
  Case made;
  made.program = below(2) == 0 ? zero_bubble(ranks, micro_batches) : one_forward_one_backward(ranks, micro_batches);
  for (int stage = 0; stage < ranks; ++stage)
    made.costs.stages.push_back({between(1, 3), between(1, 3), between(1, 3)});
  made.costs.update = between(0, 2);
  made.costs.message = between(0, 0.5);
  const double longest = between(1, 12);
  for (int rank = 0; rank < ranks; ++rank)
    for (int x = below(8); x > 0; --x) {
      const int step = below(kSteps);
      made.extras.push_back({.rank = rank,
                             .seconds = between(0.1, longest),
                             .ready = {made.program.backward_work(), rank, below(micro_batches)},
                             .taken_step = step,
                             .serves_step = step + 1});
    }
  return made;
}

/// Returns the seconds of a cycle that does each step's extras after the passes, when all ranks wait for the slowest.
double seconds_without_a_plan(const Case& made, double unfilled) {
  double seconds = unfilled;
  for (int step = 0; step < kSteps; ++step) {
    std::map<int, double> of_rank;
    for (const Extra& extra : made.extras)
      if (extra.taken_step == step) of_rank[extra.rank] += extra.seconds;
    double most = 0;
    for (const auto& [rank, sum] : of_rank) most = std::max(most, sum);
    seconds += most;
  }
  return seconds;
}

/// Returns how often each item and each piece of an extra is in a step of the cycle.
std::map<std::pair<int, Item>, int> counts(const Filled& filled) {
  std::map<std::pair<int, Item>, int> counts;
  for (const auto& of_rank : filled.items)
    for (int step = 0; step < filled.steps(); ++step)
      for (const FilledItem& item : of_rank[step])
        if (item.extra < 0 && item.item.work != Work::update) ++counts[{step, item.item}];
  return counts;
}

TEST(ShortestFillTest, IsNeverLongerThanOneWayOrNoPlan) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const Case made = random_case(seed);
    const auto [filled, fills_bubbles] = fill_shortest(made.program, made.extras, made.costs, kSteps);
    const Filled one = fill(made.program, made.extras, made.costs, {.steps = kSteps});
    EXPECT_LE(filled.seconds, one.seconds) << "seed " << seed;
    EXPECT_LE(filled.seconds, seconds_without_a_plan(made, one.unfilled_seconds) + 1e-9) << "seed " << seed;
    EXPECT_LE(filled.unfilled_seconds, one.unfilled_seconds);
    EXPECT_LE(filled.unfilled_seconds, filled.seconds + 1e-9) << "seed " << seed;
  }
}

TEST(ShortestFillTest, HasEachItemOfEachStepOnce) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const Case made = random_case(seed);
    const Filled filled = fill_shortest(made.program, made.extras, made.costs, kSteps).first;
    size_t items = 0;
    for (const auto& of_rank : made.program.items)
      items += std::count_if(of_rank.begin(), of_rank.end(), [](const Item& i) { return i.work != Work::update; });
    const auto known = counts(filled);
    EXPECT_EQ(known.size(), kSteps * items) << "seed " << seed;
    for (const auto& [item, count] : known) EXPECT_EQ(count, 1) << "seed " << seed << ", " << describe(item.second);
  }
}

TEST(ShortestFillTest, WorkThatStaysAfterThePassesIsBehindAllItemsOfItsStep) {
  int stays = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const Case made = random_case(seed);
    const auto [filled, fills_bubbles] = fill_shortest(made.program, made.extras, made.costs, kSteps);
    if (fills_bubbles) continue;
    ++stays;
    for (const auto& of_rank : filled.items)
      for (int step = 0; step < kSteps; ++step) {
        bool has_extra = false;
        for (const FilledItem& item : of_rank[step]) {
          has_extra |= item.extra >= 0;
          if (item.extra >= 0) {
            EXPECT_EQ(made.extras[item.extra].taken_step, step);
          } else {
            EXPECT_TRUE(!has_extra || item.item.work == Work::update) << "seed " << seed;
          }
        }
      }
  }
  EXPECT_GT(stays, 0);
}

}  // namespace
}  // namespace spillway::pipe
