// Tests of extras in the waits of a pipeline.
#include "pipe/fill.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/error.h"
#include "pipe/rerun.h"
#include "pipe/schedules.h"
#include "pipe/simulate.h"

namespace spillway::pipe {
namespace {

/// Statistics of each micro-batch's forward and backward on each rank, and a decomposition after them.
std::vector<Extra> statistics_and_decompositions(const StepProgram& program, double statistics, double decomposition,
                                                 int serves_step = -1) {
  std::vector<Extra> extras;
  for (int r = 0; r < static_cast<int>(program.items.size()); ++r) {
    std::vector<int> before;
    for (const Item& item : program.items[r]) {
      if (item.work == Work::update || item.work == Work::weight_gradient) continue;
      before.push_back(static_cast<int>(extras.size()));
      extras.push_back({.rank = r, .seconds = statistics, .ready = item, .serves_step = serves_step, .held_bytes = 1});
    }
    extras.push_back({.rank = r,
                      .seconds = decomposition,
                      .pieces = 4,
                      .ready = program.items[r].front(),
                      .after = before,
                      .serves_step = serves_step});
  }
  return extras;
}

TEST(FillTest, WithoutExtrasACycleIsItsSteps) {
  const StepProgram program = one_forward_one_backward(4, 6);
  const Costs costs = equal_stages(4, 1, 2);
  const Filled filled = fill(program, {}, costs, {.steps = 2});
  EXPECT_NEAR(filled.seconds, 2 * simulate(program, costs).seconds, 1e-9);
  EXPECT_NEAR(filled.exceeded_seconds(), 0, 1e-9);
  EXPECT_NEAR(filled.utilization(), simulate(program, costs).utilization(), 1e-9);
  for (int r = 0; r < 4; ++r)
    for (int step = 0; step < 2; ++step) {
      std::vector<Item> items;
      for (const FilledItem& item : filled.items[r][step]) items.push_back(item.item);
      EXPECT_EQ(items, program.items[r]);
    }
}

TEST(FillTest, GradientsOfWeightsAreExtrasToo) {
  // One forward, one backward, whose gradients of weights are filled in, waits as little as ZB-H1.
  for (int ranks : {2, 3, 4, 8})
    for (int micro_batches : {ranks, 2 * ranks}) {
      const Costs costs = equal_stages(ranks, 1, 2.2, 0.4);
      const double published = simulate(zero_bubble(ranks, micro_batches), costs).seconds;
      StepProgram program = zero_bubble(ranks, micro_batches);
      std::vector<Extra> extras;
      for (int r = 0; r < ranks; ++r) {
        std::erase_if(program.items[r], [](const Item& item) { return item.work == Work::weight_gradient; });
        for (int m = 0; m < micro_batches; ++m)
          extras.push_back({.rank = r,
                            .seconds = costs.stages[r].weight_gradient,
                            .ready = {Work::input_gradient, r, m},
                            .serves_step = 0,
                            .held_bytes = 1});
      }
      const Filled filled = fill(program, extras, costs, {.margin = 0, .held_bytes_limit = ranks});
      EXPECT_LE(filled.seconds, published + 1e-9) << ranks << " ranks, " << micro_batches << " micro-batches";
      EXPECT_NEAR(filled.seconds, rerun(filled, program, extras, costs).seconds, 1e-9);
      for (int64_t held : filled.held_bytes) EXPECT_LE(held, ranks);
    }
}

TEST(FillTest, ExtrasThatFitMakeNothingLonger) {
  const StepProgram program = one_forward_one_backward(4, 4);
  const Costs costs = equal_stages(4, 29.24, 49.35);  // BERT-Base on P100s, as published
  const auto extras = statistics_and_decompositions(program, 76.64 / 2, 215);
  const Filled filled = fill(program, extras, costs, {.steps = 3});
  EXPECT_NEAR(filled.exceeded_seconds(), 0, 1e-6);
  EXPECT_NEAR(filled.seconds, rerun(filled, program, extras, costs).seconds, 1e-6);
  EXPECT_GT(filled.utilization(), 0.85);
}

TEST(FillTest, ACycleMayHaveAsManyStepsAsExtrasNeed) {
  const StepProgram program = gpipe(4, 4);
  const Costs costs = equal_stages(4, 29.24, 49.35);
  const auto extras = statistics_and_decompositions(program, 76.64 / 2, 215);
  const Filled filled = fill(program, extras, costs, {.steps = 0});
  EXPECT_EQ(filled.steps(), 3);  // the bubbles of 2.21 steps
  EXPECT_NEAR(filled.exceeded_seconds(), 0, 1e-6);
  for (int r = 0; r < 4; ++r) EXPECT_LE(filled.steps_until_done(r, extras), 3);
  EXPECT_NEAR(filled.seconds, rerun(filled, program, extras, costs).seconds, 1e-6);
}

TEST(FillTest, AnExtraWithoutRoomIsDoneBeforeTheUpdateThatNeedsIt) {
  const StepProgram program = one_forward_one_backward(2, 2);
  const Costs costs = equal_stages(2, 1, 2);
  const std::vector<Extra> extras = {{.rank = 0, .seconds = 10, .ready = {Work::backward, 0, 1}, .serves_step = 0}};
  const Filled filled = fill(program, extras, costs, {});
  const auto& step = filled.items[0][0];
  ASSERT_GE(step.size(), 2);
  EXPECT_EQ(step[step.size() - 2].extra, 0);
  EXPECT_NEAR(filled.exceeded_seconds(), 10, 1e-9);
}

TEST(FillTest, AnExtraMayServeTheNextCycle) {
  const StepProgram program = one_forward_one_backward(2, 2);
  const Costs costs = equal_stages(2, 1, 2);
  const std::vector<Extra> extras = {{.rank = 0, .seconds = 2.5, .ready = {Work::backward, 0, 1}, .serves_step = 1}};
  const Filled filled = fill(program, extras, costs, {});
  EXPECT_NEAR(filled.exceeded_seconds(), 0, 1e-9);
  EXPECT_EQ(filled.steps_until_done(0, extras), 2);
  const auto& step = filled.items[0][0];
  EXPECT_EQ(std::count_if(step.begin(), step.end(), [](auto& item) { return item.extra == 0 && item.age == 1; }), 1);
}

TEST(FillTest, HeldBytesStayBelowTheLimit) {
  const StepProgram program = one_forward_one_backward(4, 8);
  const Costs costs = equal_stages(4, 1, 2);
  const auto extras = statistics_and_decompositions(program, 0.5, 1, /*serves_step=*/2);
  const Filled free = fill(program, extras, costs, {.steps = 3});
  const Filled limited = fill(program, extras, costs, {.steps = 3, .held_bytes_limit = 3});
  EXPECT_GT(*std::max_element(free.held_bytes.begin(), free.held_bytes.end()), 3);
  EXPECT_LE(*std::max_element(limited.held_bytes.begin(), limited.held_bytes.end()), 3);
  EXPECT_GE(limited.seconds, free.seconds - 1e-9);
}

TEST(FillTest, BadExtrasAreRefusedByNumber) {
  const StepProgram program = one_forward_one_backward(2, 2);
  const Costs costs = equal_stages(2, 1, 2);
  const Extra good{.rank = 1, .seconds = 1, .ready = {Work::forward, 1, 0}, .serves_step = 0};
  const auto refused = [&](auto change) -> std::string {
    std::vector<Extra> extras = {good, good};
    change(extras[1]);
    try {
      (void)fill(program, extras, costs, {});
    } catch (const BadRequest& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refused([](Extra&) {}), "");
  EXPECT_NE(refused([](Extra& extra) { extra.rank = 2; }).find("extra 1 is of rank 2 of 2"), std::string::npos);
  EXPECT_NE(refused([](Extra& extra) { extra.ready.stage = 0; }).find("forward of stage 0"), std::string::npos);
  EXPECT_NE(refused([](Extra& extra) { extra.pieces = 0; }).find("in 0 pieces"), std::string::npos);
  EXPECT_NE(refused([](Extra& extra) { extra.taken_step = 1; }).find("in step 1 of 1"), std::string::npos);
  EXPECT_NE(refused([](Extra& extra) { extra.serves_step = 2; }).find("serves step 2; allowed: 0 to 1"),
            std::string::npos);
  EXPECT_NE(refused([](Extra& extra) { extra.after = {7}; }).find("comes after extra 7"), std::string::npos);
  EXPECT_NE(refused([](Extra& extra) { extra.after = {1}; }).find("wait for each other"), std::string::npos);
}

struct RandomCase {
  StepProgram program;
  Costs costs;
  std::vector<Extra> extras;
  int steps = 1;
};

RandomCase random_case(std::mt19937& random, int most_ranks, int most_extras) {
  const auto number = [&](int low, int high) { return std::uniform_int_distribution(low, high)(random); };
  const auto real = [&](double low, double high) { return std::uniform_real_distribution(low, high)(random); };
  RandomCase one;
  const int ranks = number(2, most_ranks), micro_batches = number(1, 4);
  one.program = number(0, 1) ? gpipe(ranks, micro_batches) : one_forward_one_backward(ranks, micro_batches);
  for (int s = 0; s < ranks; ++s) one.costs.stages.push_back({real(0.5, 2), real(0.5, 2), real(0.5, 2)});
  one.costs.update = real(0, 0.5);
  one.costs.message = real(0, 0.2);
  one.steps = number(1, 3);
  const int extras = number(1, most_extras);
  for (int x = 0; x < extras; ++x) {
    Extra extra{.rank = number(0, ranks - 1), .seconds = real(0.1, 2), .pieces = number(1, 3)};
    const auto& items = one.program.items[extra.rank];
    extra.ready = items[number(0, static_cast<int>(items.size()) - 2)];
    extra.taken_step = number(0, one.steps - 1);
    if (number(0, 1)) extra.serves_step = number(extra.taken_step, 2 * one.steps - 1);
    if (x > 0 && number(0, 2) == 0) {
      const int before = number(0, x - 1);
      // An extra is taken after those that it comes after, so that every deadline can be met.
      extra.taken_step = std::max(extra.taken_step, one.extras[before].taken_step);
      if (extra.serves_step != -1) extra.serves_step = std::max(extra.serves_step, extra.taken_step);
      extra.after = {before};
    }
    one.extras.push_back(extra);
  }
  return one;
}

TEST(FillTest, RandomCyclesRunAsTheyWereFilled) {
  std::mt19937 random(7);
  for (int i = 0; i < 400; ++i) {
    const RandomCase one = random_case(random, 5, 24);
    const Filled filled = fill(one.program, one.extras, one.costs, {.steps = one.steps});
    std::vector<std::vector<std::pair<int, int>>> pieces(one.extras.size());  // by extra: steps since it was taken
    for (size_t r = 0; r < filled.items.size(); ++r) {
      EXPECT_LE(filled.busy[r] + filled.filled[r], filled.seconds + 1e-9) << i;
      for (int step = 0; step < one.steps; ++step)
        for (const FilledItem& item : filled.items[r][step]) {
          if (item.extra < 0) continue;
          const Extra& extra = one.extras[item.extra];
          EXPECT_EQ(extra.rank, static_cast<int>(r));
          pieces[item.extra].emplace_back(step + item.age * one.steps, item.piece);
          if (extra.serves_step != -1) {
            EXPECT_LE(step + item.age * one.steps, extra.serves_step) << i;
          }
        }
    }
    for (size_t x = 0; x < pieces.size(); ++x) {
      EXPECT_EQ(std::ssize(pieces[x]), one.extras[x].pieces) << i;
      std::sort(pieces[x].begin(), pieces[x].end());
      for (size_t p = 0; p < pieces[x].size(); ++p) EXPECT_EQ(pieces[x][p].second, static_cast<int>(p)) << i;
    }
    EXPECT_GE(filled.exceeded_seconds(), -1e-9) << i;
    const double simulated = rerun(filled, one.program, one.extras, one.costs).seconds;
    EXPECT_LE(simulated, filled.seconds * 1.001 + 1e-9) << i;
  }
}

/// Returns the shortest cycle of one step over all orders, in which extras from `next` on are still to be inserted.
double shortest(Filled& cycle, size_t next, const RandomCase& one) {
  if (next == one.extras.size()) return rerun(cycle, one.program, one.extras, one.costs).seconds;
  const Extra& extra = one.extras[next];
  auto& items = cycle.items[extra.rank].front();
  const auto ready = std::find_if(items.begin(), items.end(),
                                  [&](const FilledItem& item) { return item.extra < 0 && item.item == extra.ready; });
  double least = std::numeric_limits<double>::infinity();
  for (auto place = ready - items.begin() + 1; place < std::ssize(items); ++place) {
    items.insert(items.begin() + place, {.extra = static_cast<int>(next)});
    least = std::min(least, shortest(cycle, next + 1, one));
    items.erase(items.begin() + place);
  }
  return least;
}

TEST(FillTest, IsNearTheBestOfAllOrders) {
  std::mt19937 random(11);
  double sum = 0, worst = 0;
  constexpr int kTries = 30;
  for (int i = 0; i < kTries; ++i) {
    RandomCase one = random_case(random, 3, 6);
    one.steps = 1;
    for (Extra& extra : one.extras) {
      extra.rank = std::min(extra.rank, 1);  // two ranks are busy, and a third one is not
      if (extra.ready.stage != extra.rank) extra.ready = one.program.items[extra.rank].front();
      extra.pieces = 1, extra.taken_step = 0, extra.serves_step = 0, extra.after = {};
      extra.seconds *= 1.5;
    }
    Filled cycle;
    for (const auto& of_rank : one.program.items) {
      auto& items = cycle.items.emplace_back(1).front();
      for (const Item& item : of_rank) items.push_back({.item = item});
    }
    const double best = shortest(cycle, 0, one);
    const double ratio = fill(one.program, one.extras, one.costs, {.margin = 0}).seconds / best;
    EXPECT_GE(ratio, 1 - 1e-9) << i;
    sum += ratio;
    worst = std::max(worst, ratio);
  }
  EXPECT_LE(sum / kTries, 1.02);
  EXPECT_LE(worst, 1.25);
}

TEST(RerunTest, KeepsToTheOrderWhenTimesAreOthers) {
  // Two ranks, one micro-batch: rank 1 waits for a forward of 1 s and then for nothing, rank 0 for 3 s.
  const StepProgram program = one_forward_one_backward(2, 1);
  Costs costs = equal_stages(2, 1, 2);
  const std::vector<Extra> extras{{.rank = 0, .seconds = 2, .ready = {Work::forward, 0, 0}, .serves_step = 0}};
  const Filled filled = fill(program, extras, costs, {});
  EXPECT_NEAR(filled.exceeded_seconds(), 0, 1e-9);
  EXPECT_NEAR(rerun(filled, program, extras, costs).seconds, 6, 1e-9);
  costs.stages[1] = {.forward = 2, .input_gradient = 2, .weight_gradient = 2};
  EXPECT_NEAR(rerun(filled, program, extras, costs).seconds, 9, 1e-9);
  auto longer = extras;
  longer[0].seconds = 7;  // one more than rank 0 waits
  EXPECT_NEAR(rerun(filled, program, longer, costs).seconds, 10, 1e-9);
}

TEST(RerunTest, ACycleOfTheSameTimesIsTheOneThatWasFilled) {
  const StepProgram program = one_forward_one_backward(4, 4);
  const Costs costs = equal_stages(4, 29.24, 49.35);
  const auto extras = statistics_and_decompositions(program, 76.64 / 2, 215);
  const Filled filled = fill(program, extras, costs, {.steps = 3});
  const Filled again = rerun(filled, program, extras, costs);
  EXPECT_NEAR(again.unfilled_seconds, filled.unfilled_seconds, 1e-6);
  for (size_t r = 0; r < filled.items.size(); ++r) {
    EXPECT_NEAR(again.busy[r], filled.busy[r], 1e-6);
    EXPECT_NEAR(again.filled[r], filled.filled[r], 1e-6);
    for (int step = 0; step < filled.steps(); ++step)
      for (size_t i = 0; i < filled.items[r][step].size(); ++i) {
        EXPECT_NEAR(again.items[r][step][i].begin, filled.items[r][step][i].begin, 1e-6) << r << ' ' << step;
        EXPECT_NEAR(again.items[r][step][i].end, filled.items[r][step][i].end, 1e-6) << r << ' ' << step;
        EXPECT_EQ(again.items[r][step][i].extra, filled.items[r][step][i].extra);
      }
  }
}

TEST(RerunTest, AnOrderThatWaitsForEverIsRefused) {
  const StepProgram program = one_forward_one_backward(2, 2);
  const Costs costs = equal_stages(2, 1, 2);
  Filled filled = fill(program, {}, costs, {});
  std::swap(filled.items[1][0].front(), filled.items[1][0].back());
  EXPECT_THROW((void)rerun(filled, program, {}, costs), BadRequest);
}

}  // namespace
}  // namespace spillway::pipe
