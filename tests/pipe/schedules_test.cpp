// Tests of schedules against the closed forms of their papers, by simulation.
#include "pipe/schedules.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "pipe/simulate.h"

namespace spillway::pipe {
namespace {

constexpr double kForward = 1, kBackward = 2.2;

struct Case {
  int ranks, micro_batches;
};

class SchedulesTest : public ::testing::TestWithParam<Case> {
 protected:
  int ranks() const { return GetParam().ranks; }
  int micro_batches() const { return GetParam().micro_batches; }
  SimulatedStep simulated(const StepProgram& program, double scale = 1) const {
    check(program);
    return simulate(program, equal_stages(program.graph.stages, kForward * scale, kBackward * scale));
  }
  /// The work of a rank, which all schedules have.
  double work() const { return micro_batches() * (kForward + kBackward); }
};

TEST_P(SchedulesTest, GpipeWaitsForEachRankOnce) {
  const SimulatedStep all = simulated(gpipe(ranks(), micro_batches()));
  EXPECT_NEAR(all.seconds, (micro_batches() + ranks() - 1) * (kForward + kBackward), 1e-9);
  for (int r = 0; r < ranks(); ++r) EXPECT_EQ(all.in_flight[r], micro_batches());
}

TEST_P(SchedulesTest, OneForwardOneBackwardWaitsAsLongAndHoldsLess) {
  const SimulatedStep all = simulated(one_forward_one_backward(ranks(), micro_batches()));
  EXPECT_NEAR(all.seconds, (micro_batches() + ranks() - 1) * (kForward + kBackward), 1e-9);
  for (int r = 0; r < ranks(); ++r) EXPECT_EQ(all.in_flight[r], std::min(micro_batches(), ranks() - r));
}

TEST_P(SchedulesTest, InterleavedStagesWaitForAShareOfThat) {
  if (micro_batches() % ranks() != 0) {
    EXPECT_THROW((void)interleaved(ranks(), micro_batches(), 2), BadRequest);
    return;
  }
  for (int chunks : {1, 2, 4}) {
    const SimulatedStep all = simulated(interleaved(ranks(), micro_batches(), chunks), 1.0 / chunks);
    for (int r = 0; r < ranks(); ++r) {
      EXPECT_NEAR(all.busy[r], work(), 1e-9);
      EXPECT_NEAR(all.bubble(r), (ranks() - 1) * (kForward + kBackward) / chunks, 1e-9) << chunks << " chunks";
    }
  }
}

TEST_P(SchedulesTest, ChimeraWaitsForBackwardsAlone) {
  if (ranks() % 2 != 0 || micro_batches() % ranks() != 0) {
    EXPECT_THROW((void)chimera(ranks(), micro_batches()), BadRequest);
    return;
  }
  const StepProgram program = chimera(ranks(), micro_batches());
  const SimulatedStep all = simulated(program);
  if (micro_batches() == ranks()) {
    EXPECT_NEAR(all.seconds, ranks() * kForward + (2 * ranks() - 2) * kBackward, 1e-9);
    for (int r = 0; r < ranks(); ++r) EXPECT_LE(all.in_flight[r], ranks());
  }
  const auto down = std::count(program.copy_of.begin(), program.copy_of.end(), 0);
  EXPECT_EQ(down * 2, micro_batches()) << "each direction has half of the micro-batches";
}

TEST_P(SchedulesTest, ZeroBubbleFillsWaitsWithGradientsOfWeights) {
  const StepProgram program = zero_bubble(ranks(), micro_batches());
  check(program);
  if (micro_batches() < ranks()) return;
  for (double weight_share : {0.3, 0.45}) {
    const Costs costs = equal_stages(ranks(), kForward, kBackward, weight_share);
    const SimulatedStep all = simulate(program, costs);
    const StageSeconds& stage = costs.stages.front();
    for (int r = 0; r < ranks(); ++r) {
      EXPECT_NEAR(all.bubble(r), (ranks() - 1) * (stage.forward + stage.input_gradient - stage.weight_gradient), 1e-9);
      EXPECT_LE(all.in_flight[r], ranks());
    }
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (int ranks : {1, 2, 3, 4, 6, 8, 16})
    for (int micro_batches : {1, ranks - 1, ranks, ranks + 1, 2 * ranks, 3 * ranks, 4 * ranks})
      if (micro_batches > 0 && std::none_of(all.begin(), all.end(), [&](const Case& known) {
            return known.ranks == ranks && known.micro_batches == micro_batches;
          }))
        all.push_back({ranks, micro_batches});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Shapes, SchedulesTest, ::testing::ValuesIn(cases()), [](const auto& info) {
  return str(info.param.ranks, "Ranks", info.param.micro_batches, "MicroBatches");
});

// Checks the published order for more micro-batches than ranks. It misses the published formula, 57 and 81.
TEST(ChimeraTest, UnitsFollowEachOtherWithTheirBubbles) {
  const auto seconds = [](int micro_batches) {
    return simulate(chimera(8, micro_batches), equal_stages(8, 1, 2)).seconds;
  };
  EXPECT_NEAR(seconds(16), 66, 1e-9);
  EXPECT_NEAR(seconds(24), 96, 1e-9);
}

TEST(SimulateTest, MessagesDelayWhatReadsThem) {
  Costs costs = equal_stages(2, 1, 2);
  costs.message = 0.25;
  costs.update = 0.5;
  const SimulatedStep all = simulate(one_forward_one_backward(2, 1), costs);
  EXPECT_NEAR(all.seconds, 1 + 0.25 + 1 + 2 + 0.25 + 2 + 0.5, 1e-9);
  EXPECT_NEAR(all.spans[1][0].begin, 1.25, 1e-9);
  EXPECT_NEAR(all.utilization(), (2 * 3 + 2 * 0.5) / (2 * all.seconds), 1e-9);
}

TEST(SimulateTest, TheSlowestStageSetsThePace) {
  Costs costs = equal_stages(3, 1, 2);
  costs.stages[1] = {2, 2, 2};
  const SimulatedStep all = simulate(one_forward_one_backward(3, 30), costs);
  EXPECT_GE(all.seconds, 30 * 6);
  EXPECT_LE(all.seconds, 30 * 6 + 2 * 3 + 1e-9);
}

}  // namespace
}  // namespace spillway::pipe
