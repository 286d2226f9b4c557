#include "runtime/dry_runs/reproduce_pipelines.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/error.h"
#include "pipe/fill.h"
#include "pipe/replay.h"
#include "pipe/schedules.h"
#include "runtime/planning/block_times.h"

namespace spillway::runtime {
namespace {

constexpr const char* kTimes =
    "blocks take what the authors measured on one P100; messages and collectives take no time";
constexpr const char* kShares =
    "a factor's statistics take time by its side squared, its inversion by its side cubed, over a block's six matrices";
constexpr const char* kUse = "preconditioning is not counted as use";

struct Pipeline {
  pipe::Program program;
  BlockTimes block;
  int blocks_of_stage;

  pipe::Costs costs() const {
    const double forward = blocks_of_stage * block.forward, backward = blocks_of_stage * block.backward;
    return pipe::equal_stages(program.graph.stages, forward, backward);
  }
};

/// Returns the work of a refresh: the statistics of each factor and micro-batch, and the inversion of each factor after
/// all of its statistics. Copies of a stage share its inversions.
std::vector<pipe::Extra> refresh_of(const Pipeline& pipeline) {
  const pipe::Program& program = pipeline.program;
  double squares = 0, cubes = 0;
  for (const auto& sides : {kInputSides, kOutputSides})
    for (double side : sides) squares += side * side, cubes += side * side * side;
  std::vector<pipe::Extra> extras;
  for (int stage = 0; stage < program.graph.stages; ++stage) {
    std::vector<double> load(program.graph.rank_of.size(), 0);  // seconds of inversions, by copy
    for (int block = 0; block < pipeline.blocks_of_stage; ++block)
      for (const bool is_output : {false, true})
        for (double side : is_output ? kOutputSides : kInputSides) {
          std::vector<int> statistics;
          for (int m = 0; m < program.micro_batches(); ++m) {
            statistics.push_back(static_cast<int>(extras.size()));
            extras.push_back({.rank = program.rank_of(stage, m),
                              .seconds = pipeline.block.statistics * side * side / squares,
                              .ready = {is_output ? pipe::Work::backward : pipe::Work::forward, stage, m}});
          }
          const auto copy = std::min_element(load.begin(), load.end()) - load.begin();
          const double seconds = pipeline.block.inversion * side * side * side / cubes;
          load[copy] += seconds;
          const int rank = program.graph.rank_of[copy][stage];
          const int own = *std::find_if(statistics.begin(), statistics.end(),
                                        [&](int extra) { return extras[extra].rank == rank; });
          extras.push_back({.rank = rank, .seconds = seconds, .ready = extras[own].ready, .after = statistics});
        }
  }
  return extras;
}

/// The published use of ranks without and with K-FAC in percent, and the published steps of a refresh.
struct Published {
  double before, after, steps;
};

void add_utilization(const std::string& title, const Pipeline& pipeline, const Published& published,
                     Reproduction& table) {
  const pipe::Costs costs = pipeline.costs();
  pipe::check(pipeline.program);
  const std::vector<pipe::Extra> extras = refresh_of(pipeline);
  const pipe::Filled filled = pipe::fill(pipeline.program, extras, costs, {.steps = 0});
  table.figures.push_back({title + ", use of GPUs without K-FAC", "%", published.before,
                           100 * pipe::replay(pipeline.program, costs).utilization()});
  table.figures.push_back({title + ", with K-FAC in its waits", "%", published.after, 100 * filled.utilization()});
  table.figures.push_back({title + ", steps of a refresh", "", published.steps, static_cast<double>(filled.steps())});
}

}  // namespace

Reproduction pipefisher_paths() {
  Reproduction table{.name = "pipefisher-paths",
                     .source = "Osawa et al., PipeFisher, MLSys 2023: critical paths of a step, in T_f"};
  constexpr double kForward = 1, kBackward = 2;
  const auto replayed = [&](const pipe::Program& program) {
    pipe::check(program);
    return pipe::replay(program, pipe::equal_stages(program.graph.stages, kForward, kBackward)).seconds;
  };
  for (int ranks : {4, 8, 16}) {
    const double all = (2 * ranks - 1) * (kForward + kBackward);
    table.figures.push_back({str("GPipe, D = N = ", ranks), "", all, replayed(pipe::gpipe(ranks, ranks))});
    table.figures.push_back(
        {str("1F1B, D = N = ", ranks), "", all, replayed(pipe::one_forward_one_backward(ranks, ranks))});
    table.figures.push_back({str("Chimera, D = N = ", ranks), "", ranks * kForward + (2 * ranks - 2) * kBackward,
                             replayed(pipe::chimera(ranks, ranks))});
  }
  for (int units : {2, 3}) {
    const int ranks = 8, micro_batches = units * ranks;
    const double formula = (micro_batches + ranks / 2.0 - 1) * (kForward + kBackward);
    table.figures.push_back({str("Chimera, D = ", ranks, ", N = ", micro_batches), "", formula,
                             replayed(pipe::chimera(ranks, micro_batches))});
  }
  table.assumptions = {"T_b = 2 T_f, and messages that take no time",
                       "for N > D the paper's order of items does not take as long as its formula says"};
  return table;
}

Reproduction pipefisher_fig3() {
  Reproduction table{
      .name = "pipefisher-fig3",
      .source = "Osawa et al., PipeFisher, MLSys 2023, figure 3: BERT-Base on 4 P100, D = N = 4, B = 32"};
  constexpr Published kPublished{42, 89, 2};
  add_utilization("GPipe", {pipe::gpipe(4, 4), kBertBase, 3}, kPublished, table);
  add_utilization("1F1B", {pipe::one_forward_one_backward(4, 4), kBertBase, 3}, kPublished, table);
  table.assumptions = {
      kTimes, kShares, kUse,
      "with equal stages and D = N = 4 ranks work 57.1 % of the time, whatever a block takes; 42 % is not explained"};
  return table;
}

Reproduction pipefisher_fig4() {
  Reproduction table{
      .name = "pipefisher-fig4",
      .source = "Osawa et al., PipeFisher, MLSys 2023, figure 4: BERT-Large on 8 P100, Chimera, D = N = 8, B = 32"};
  add_utilization("Chimera", {pipe::chimera(8, 8), kBertLarge, 3}, {59.8, 97.6, 4}, table);
  table.assumptions = {kTimes, kShares, kUse, "the paper counts waits for collectives as use"};
  return table;
}

Reproduction pipefisher_fig7() {
  Reproduction table{
      .name = "pipefisher-fig7",
      .source = "Osawa et al., PipeFisher, MLSys 2023, figure 7: BERT-Base on 256 P100, Chimera, D = N = 4, B = 32"};
  add_utilization("Chimera", {pipe::chimera(4, 4), kBertBase, 3}, {75.9, 93.2, 5}, table);
  table.assumptions = {kTimes, kShares, kUse,
                       "inversions are shared by the two directions, not by the 64 copies beside them",
                       "the paper says 5 to 10 steps"};
  return table;
}

Reproduction pipefisher_table2() {
  Reproduction table{.name = "pipefisher-table2",
                     .source = "Osawa et al., PipeFisher, MLSys 2023, table 2: BERT-Large, Chimera, D = N = 8, B = 32"};
  Pipeline pipeline{pipe::chimera(8, 8), kBertLarge, 3};
  const double plain = pipe::replay(pipeline.program, pipeline.costs()).seconds;
  pipe::Costs costs = pipeline.costs();
  // Both stages of a rank are preconditioned by it, each by halves with its copy.
  costs.update = pipeline.blocks_of_stage * pipeline.block.preconditioning;
  const double with_kfac = pipe::fill(pipeline.program, refresh_of(pipeline), costs, {.steps = 4}).seconds / 4;
  table.figures = {{"a step with NVLAMB", "ms", 2345.6, plain},
                   {"a step with K-FAC", "ms", 2499.5, with_kfac},
                   {"with K-FAC beside without", "×", 2499.5 / 2345.6, with_kfac / plain}};
  table.assumptions = {kTimes, kShares, "preconditioning is shared by the two directions", "nothing is recomputed"};
  return table;
}

}  // namespace spillway::runtime
