// Tests of the published formulas of pipelines' steps, beside simulations of the same steps.
#include "benchmarks/reproduce/pipeline_formulas.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <utility>

#include "benchmarks/reproduce/block_profile.h"
#include "pipe/schedules.h"
#include "pipe/simulate.h"
#include "tests/runtime/files.h"

namespace spillway::runtime {
namespace {

constexpr auto kChimera = PublishedOrder::chimera;
constexpr auto kGpipe = PublishedOrder::gpipe_or_1f1b;

void expect_as_simulated(const pipe::StepProgram& program, const PipelineShape& shape, const BlockTimes& block) {
  const double backward = block.backward + (shape.recompute ? block.forward : 0);
  const PipelineStep step = published_step(shape, block);
  const pipe::SimulatedStep simulated =
      pipe::simulate(program, pipe::equal_stages(program.graph.stages, block.forward, backward));
  const std::string what = str("D = ", shape.stages, ", N = ", shape.micro_batches);
  EXPECT_NEAR(step.pipeline, simulated.seconds, 1e-9 * step.pipeline) << what;
  for (int rank = 0; rank < shape.stages; ++rank)
    EXPECT_NEAR(step.bubble, simulated.bubble(rank), 1e-9 * step.pipeline) << what << ", rank " << rank;
}

TEST(PipelineFormulasTest, AreExactWhereTheSimulationIs) {
  for (const BlockTimes& block : {BlockTimes{.forward = 1, .backward = 2}, kBertBase, kBertLarge})
    for (const bool recompute : {false, true})
      for (int d : {2, 4, 8, 16}) {
        for (int n : {d, 2 * d, 3 * d}) {
          const PipelineShape shape{.stages = d, .micro_batches = n, .recompute = recompute};
          expect_as_simulated(pipe::gpipe(d, n), shape, block);
          expect_as_simulated(pipe::one_forward_one_backward(d, n), shape, block);
        }
        expect_as_simulated(pipe::chimera(d, d),
                            {.order = kChimera, .stages = d, .micro_batches = d, .recompute = recompute}, block);
      }
}

TEST(PipelineFormulasTest, CountCriticalPathsAsPublished) {
  const BlockTimes unit{.forward = 1, .backward = 2};
  for (const auto& [d, gpipe, chimera] : {std::tuple{4, 21, 16}, {8, 45, 36}, {16, 93, 76}}) {
    EXPECT_EQ(published_step({.stages = d, .micro_batches = d}, unit).pipeline, gpipe);
    EXPECT_EQ(published_step({.order = kChimera, .stages = d, .micro_batches = d}, unit).pipeline, chimera);
  }
  EXPECT_EQ(published_step({.order = kChimera, .stages = 8, .micro_batches = 16}, unit).pipeline, 57);
  EXPECT_EQ(published_step({.order = kChimera, .stages = 8, .micro_batches = 24}, unit).pipeline, 81);
}

TEST(PipelineFormulasTest, GiveTheStepsOfARefresh) {
  struct Case {
    PipelineShape shape;
    BlockTimes block;
    double steps;
  };
  for (const Case& one : {Case{{kGpipe, 4, 4}, kBertBase, 2.21},
                          {{kGpipe, 8, 8}, kBertBase, 1.51},
                          {{kGpipe, 16, 16}, kBertBase, 1.22},
                          {{kGpipe, 4, 4, false, 2}, kBertBase, 1.76},
                          {{kChimera, 4, 4}, kBertBase, 5.28},
                          {{kChimera, 8, 8}, kBertBase, 2.80},
                          {{kChimera, 16, 16}, kBertBase, 2.09},
                          {{kChimera, 4, 4, true}, kBertBase, 3.32},
                          {{kChimera, 8, 8, true}, kBertBase, 1.76},
                          {{kChimera, 16, 16, true}, kBertBase, 1.31},
                          {{kChimera, 8, 8}, kBertLarge, 2.94}})
    EXPECT_NEAR(published_step(one.shape, one.block).refresh_steps(), one.steps, 0.005)
        << "D = " << one.shape.stages << (one.shape.recompute ? ", recomputed" : "");
}

TEST(PipelineFormulasTest, GiveTheTimeThatPreconditioningAdds) {
  for (const auto& [ranks, percent] : {std::pair{4, 4.9}, {8, 2.2}, {16, 1.0}})
    EXPECT_NEAR(100 * published_step({kChimera, ranks, ranks}, kBertBase).added_share(), percent, 0.05);
}

TEST(PipelineFormulasTest, GainWhatARefreshOutsideTheWaitsCosts) {
  for (const BlockProfile& profile : published_profiles())
    for (const auto& [size, block] : profile.by_batch_size) {
      const PipelineStep step = published_step({kChimera, 8, 16}, block);
      const double with_kfac = step.pipeline + step.preconditioning;
      const double skip = with_kfac + (16 * block.statistics + block.inversion) / step.refresh_steps();
      EXPECT_NEAR(step.gain_over_skip(), skip / with_kfac, 1e-12) << profile.block << ", " << size;
    }
}

TEST(PipelineFormulasTest, RefuseShapesThatTheyDoNotHold) {
  const auto expect_refused = [](const PipelineShape& shape, const std::string& part) {
    expect_refusal([&] { published_step(shape, kBertBase); }, {part});
  };
  expect_refused({.stages = 0}, "0 stages");
  expect_refused({.micro_batches = 0}, "0 micro-batches");
  expect_refused({.copies = 0}, "0 copies");
  expect_refused({kChimera, 3, 3}, "3 stages");
  expect_refused({kChimera, 4, 6}, "6 micro-batches");
}

}  // namespace
}  // namespace spillway::runtime
