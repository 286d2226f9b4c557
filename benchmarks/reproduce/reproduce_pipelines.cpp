#include "benchmarks/reproduce/reproduce_pipelines.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "benchmarks/reproduce/pipeline_formulas.h"
#include "benchmarks/reproduce/published.h"
#include "benchmarks/reproduce/reproduce_formulas.h"
#include "core/error.h"
#include "pipe/fill.h"
#include "pipe/schedules.h"
#include "pipe/simulate.h"

namespace spillway::runtime {
namespace {

constexpr const char* kFree = "messages and collectives take no time";
constexpr const char* kShares =
    "a factor's statistics take time by its side squared, its inversion by its side cubed, over a block's six matrices";
constexpr const char* kUse = "preconditioning is not counted as use";
constexpr const char* kOwnCycles =
    "in the paper a rank repeats a cycle of its own, although the copies of a stage share statistics; which ranks are "
    "done a step earlier can turn on a thousandth of a block's times";
constexpr const char* kPaper = "PIPEFISHER";
constexpr int kBatchSize = 32;
constexpr int kBlocksOfStage = 3;
constexpr std::nullopt_t kNotTold = std::nullopt;

struct Pipeline {
  pipe::StepProgram program;
  BlockTimes block;
  PublishedOrder order = PublishedOrder::gpipe_or_1f1b;
  int copies = 1;  ///< data-parallel ones

  pipe::Costs costs() const {
    return pipe::equal_stages(program.graph.stages, kBlocksOfStage * block.forward, kBlocksOfStage * block.backward);
  }
  PipelineStep formula() const {
    const PipelineShape shape{.order = order,
                              .stages = program.graph.stages,
                              .micro_batches = program.micro_batches() / copies,
                              .copies = copies};
    return published_step(shape, block);
  }
};

/// Returns as many copies of a program side by side, each on ranks of its own.
pipe::StepProgram side_by_side(const pipe::StepProgram& one, int copies) {
  pipe::StepProgram all = one;
  const int ranks = one.graph.ranks(), micro_batches = one.micro_batches();
  const int ways = static_cast<int>(one.graph.rank_of.size());
  for (int copy = 1; copy < copies; ++copy) {
    for (std::vector<int> rank_of : one.graph.rank_of) {
      for (int& rank : rank_of) rank += copy * ranks;
      all.graph.rank_of.push_back(std::move(rank_of));
    }
    for (int way : one.copy_of) all.copy_of.push_back(way + copy * ways);
    for (std::vector<pipe::Item> items : one.items) {
      for (pipe::Item& item : items)
        if (item.micro_batch >= 0) item.micro_batch += copy * micro_batches;
      all.items.push_back(std::move(items));
    }
  }
  return all;
}

/// Returns the work of a refresh: the statistics of each factor and micro-batch, and the inversion of each factor after
/// all of its statistics. Copies of a stage share its inversions.
std::vector<pipe::Extra> refresh_of(const Pipeline& pipeline) {
  const pipe::StepProgram& program = pipeline.program;
  double squares = 0, cubes = 0;
  for (const auto& sides : {kInputSides, kOutputSides})
    for (double side : sides) squares += side * side, cubes += side * side * side;
  std::vector<pipe::Extra> extras;
  for (int stage = 0; stage < program.graph.stages; ++stage) {
    std::vector<double> load(program.graph.rank_of.size(), 0);  // milliseconds of inversions, by copy
    for (int block = 0; block < kBlocksOfStage; ++block)
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
          const double inversion = pipeline.block.inversion * side * side * side / cubes;
          load[copy] += inversion;
          const int rank = program.graph.rank_of[copy][stage];
          const int own = *std::find_if(statistics.begin(), statistics.end(),
                                        [&](int extra) { return extras[extra].rank == rank; });
          extras.push_back({.rank = rank, .seconds = inversion, .ready = extras[own].ready, .after = statistics});
        }
  }
  return extras;
}

/// The waits of a pipeline with a refresh in them.
struct Refreshed {
  double before = 0;                    ///< percentage of time that ranks work without it
  double own_cycles = 0;                ///< with it, where each rank begins anew when it is done
  double one_cycle = 0;                 ///< with it, where all ranks begin anew when the last one is done
  int least_steps = 0, most_steps = 0;  ///< a rank's refresh, the shortest and the longest one
};

Refreshed refreshed(const Pipeline& pipeline) {
  const pipe::Costs costs = pipeline.costs();
  pipe::check(pipeline.program);
  const std::vector<pipe::Extra> extras = refresh_of(pipeline);
  const pipe::Filled filled = pipe::fill(pipeline.program, extras, costs, {.steps = 0});
  Refreshed result{.before = 100 * pipe::simulate(pipeline.program, costs).utilization(),
                   .one_cycle = 100 * filled.utilization(),
                   .least_steps = std::numeric_limits<int>::max()};
  const int ranks = static_cast<int>(filled.busy.size());
  const double step = filled.unfilled_seconds / filled.steps();
  for (int rank = 0; rank < ranks; ++rank) {
    const int steps = filled.steps_until_done(rank, extras);
    result.least_steps = std::min(result.least_steps, steps);
    result.most_steps = std::max(result.most_steps, steps);
    const double work = filled.busy[rank] / filled.steps() + filled.filled[rank] / steps;
    result.own_cycles += 100 * work / step / ranks;
  }
  return result;
}

/// Published percentages of use without and with K-FAC, and steps of a rank's refresh.
struct Published {
  std::optional<double> before = {}, after = {}, least_steps = {}, most_steps = {};
};

/// The columns of a published row that hold them.
struct Columns {
  const char *before, *after, *least_steps, *most_steps;
};

Published published_use(const PublishedTable& table, const char* row, const Columns& columns) {
  return {.before = table.at(row, columns.before),
          .after = table.at(row, columns.after),
          .least_steps = table.at(row, columns.least_steps),
          .most_steps = table.at(row, columns.most_steps)};
}

void add_utilization(const std::string& title, const Pipeline& pipeline, const Published& published,
                     Reproduction& table) {
  const Refreshed result = refreshed(pipeline);
  auto& figures = table.figures;
  figures.push_back({title + ", use of GPUs without K-FAC", "%", published.before, result.before});
  figures.push_back({title + ", with K-FAC in its waits, cycles by rank", "%", published.after, result.own_cycles});
  figures.push_back({title + ", with K-FAC in its waits, one cycle", "%", published.after, result.one_cycle});
  figures.push_back({title + ", steps of a refresh, least of a rank", "", published.least_steps,
                     static_cast<double>(result.least_steps)});
  figures.push_back({title + ", steps of a refresh, most of a rank", "", published.most_steps,
                     static_cast<double>(result.most_steps)});
  figures.push_back({title + ", r", "", kNotTold, pipeline.formula().refresh_steps()});
}

std::string source_of(const char* place) {
  return str("Osawa et al., PipeFisher, MLSys 2023, ", place);
}

Reproduction pipefisher_paths(const BlockTimesSource& blocks) {
  if (blocks.is_own())
    throw BadRequest(
        "'pipefisher-paths' counts forwards and backwards, and takes no block times; --times changes none "
        "of its figures");
  Reproduction table{.name = "pipefisher-paths",
                     .source = "Osawa et al., PipeFisher, MLSys 2023: critical paths of a step, in T_f"};
  const BlockTimes unit{.forward = 1, .backward = 2};
  const auto add = [&](const std::string& title, const PipelineShape& shape, const pipe::StepProgram& program) {
    pipe::check(program);
    table.figures.push_back(
        {title, "", published_step(shape, unit).pipeline,
         pipe::simulate(program, pipe::equal_stages(program.graph.stages, unit.forward, unit.backward)).seconds});
  };
  for (int d : {4, 8, 16}) {
    const PipelineShape equal{.stages = d, .micro_batches = d};
    add(str("GPipe, D = N = ", d), equal, pipe::gpipe(d, d));
    add(str("1F1B, D = N = ", d), equal, pipe::one_forward_one_backward(d, d));
    add(str("Chimera, D = N = ", d), {.order = PublishedOrder::chimera, .stages = d, .micro_batches = d},
        pipe::chimera(d, d));
  }
  for (int n : {16, 24})
    add(str("Chimera, D = 8, N = ", n), {.order = PublishedOrder::chimera, .stages = 8, .micro_batches = n},
        pipe::chimera(8, n));
  table.assumptions = {"T_b = 2 T_f, and messages that take no time",
                       "for N > D the paper's order of items does not take as long as its formula says"};
  return table;
}

Reproduction pipefisher_fig3(const BlockTimesSource& blocks) {
  Reproduction table{.name = "pipefisher-fig3",
                     .source = source_of("figure 3: BERT-Base on 4 P100, D = N = 4, B = 32; with W = 2 on 8")};
  const BlockTimes block = blocks.on_p100("BERT-Base", kBatchSize);
  const std::pair<const char*, pipe::StepProgram> orders[]{{"GPipe", pipe::gpipe(4, 4)},
                                                           {"1F1B", pipe::one_forward_one_backward(4, 4)}};
  const Published published =
      published_use({kPaper, "3.1, fig 3"}, "GPipe and 1F1B",
                    {"use of GPUs without K-FAC, about", "use of GPUs with PipeFisher",
                     "steps of a refresh, stages 2 and 3", "steps of a refresh, stages 1 and 4"});
  for (const auto& [name, program] : orders) add_utilization(name, {program, block}, published, table);
  for (const auto& [name, program] : orders)
    add_utilization(str(name, ", W = 2"), {.program = side_by_side(program, 2), .block = block, .copies = 2}, {},
                    table);
  table.assumptions = {
      blocks.describe(),
      kFree,
      kShares,
      kUse,
      kOwnCycles,
      "with W = 2 two data-parallel copies share a stage's inversions",
      "the paper says that stages 2 and 3 refresh in 1 step, the others in 2",
      "with equal stages and D = N = 4 ranks work 57.1 % of the time, whatever a block takes; 42 % is not explained"};
  return table;
}

Reproduction pipefisher_fig4(const BlockTimesSource& blocks) {
  Reproduction table{.name = "pipefisher-fig4",
                     .source = source_of("figure 4: BERT-Large on 8 P100, Chimera, D = N = 8, B = 32")};
  add_utilization("Chimera", {pipe::chimera(8, 8), blocks.on_p100("BERT-Large", kBatchSize), PublishedOrder::chimera},
                  published_use({kPaper, "3.2, fig 4"}, "Chimera",
                                {"use of GPUs without K-FAC", "use of GPUs with PipeFisher",
                                 "steps of a refresh, others", "steps of a refresh, stages 1 and 8"}),
                  table);
  table.assumptions = {
      blocks.describe(), kFree,
      kShares,           kUse,
      kOwnCycles,        "the paper counts waits for collectives as use; 59.8 and 97.6 % are not explained"};
  return table;
}

// --- times to a loss ------------------------------------------------------------------------------------------------

/// Steps to one loss, without and with K-FAC, and their minutes.
struct Training {
  double plain_steps, kfac_steps, plain_minutes, kfac_minutes;
};

constexpr double kMillisecondsOfMinute = 60e3;

/// Milliseconds of a step. Ranks have a stage of each direction.
struct StepTimes {
  double plain = 0, with_kfac = 0, with_all_preconditioning = 0;  ///< the last where directions do not share it
};

StepTimes chimera_step(int ranks, const BlockTimes& block) {
  const PipelineStep step =
      published_step({.order = PublishedOrder::chimera, .stages = ranks, .micro_batches = ranks}, block);
  const double plain = kBlocksOfStage * step.pipeline, preconditioning = kBlocksOfStage * step.preconditioning;
  return {plain, plain + preconditioning, plain + 2 * preconditioning};
}

void add_minutes(const Training& published, const StepTimes& step, Reproduction& table) {
  const double plain = published.plain_steps * step.plain / kMillisecondsOfMinute;
  const double kfac = published.kfac_steps * step.with_kfac / kMillisecondsOfMinute;
  table.figures.push_back({str(published.plain_steps, " steps of NVLAMB"), "min", published.plain_minutes, plain});
  table.figures.push_back({str(published.kfac_steps, " steps with K-FAC"), "min", published.kfac_minutes, kfac});
  table.figures.push_back({"minutes with K-FAC to those without", "%",
                           100 * published.kfac_minutes / published.plain_minutes, 100 * kfac / plain});
}

constexpr const char* kConvergence = "the steps to the loss are the paper's; nothing here predicts convergence, or F1";
constexpr const char* kShared = "preconditioning is shared by the two directions, where it is not said otherwise";

Reproduction pipefisher_fig7(const BlockTimesSource& blocks) {
  Reproduction table{.name = "pipefisher-fig7",
                     .source = source_of("figure 7: BERT-Base on 256 P100, Chimera, D = N = 4, B = 32, W = 64")};
  const BlockTimes block = blocks.on_p100("BERT-Base", kBatchSize);
  const PublishedTable published(kPaper, "4, fig 7, B.2");
  add_utilization("Chimera", {pipe::chimera(4, 4), block, PublishedOrder::chimera},
                  published_use(published, "BERT-Base",
                                {"use of GPUs, NVLAMB", "use of GPUs, K-FAC with PipeFisher",
                                 "steps of a refresh, least", "steps of a refresh, most"}),
                  table);
  const auto at = [&](const char* column) { return published.at("BERT-Base", column); };
  const Training training{at("steps of NVLAMB"), at("steps of K-FAC to that loss"), at("time of NVLAMB"),
                          at("time of K-FAC")};
  const StepTimes step = chimera_step(4, block);
  const double plain = kMillisecondsOfMinute * training.plain_minutes / training.plain_steps;
  const double kfac = kMillisecondsOfMinute * training.kfac_minutes / training.kfac_steps;
  auto& figures = table.figures;
  figures.push_back({"a step of NVLAMB, from its minutes", "ms", plain, step.plain});
  figures.push_back({"a step with K-FAC, from its minutes", "ms", kfac, step.with_kfac});
  figures.push_back({"with K-FAC to without", "×", kfac / plain, step.with_kfac / step.plain});
  figures.push_back(
      {"the same, preconditioning not shared", "×", kfac / plain, step.with_all_preconditioning / step.plain});
  add_minutes(training, step, table);
  table.assumptions = {blocks.describe(),
                       kFree,
                       kShares,
                       kUse,
                       kOwnCycles,
                       kShared,
                       kConvergence,
                       "inversions are shared by the two directions, not by the 64 copies beside them",
                       "the paper says 5 to 10 steps of a refresh, 7038 and 2961 steps to a loss of 3.41"};
  return table;
}

Reproduction pipefisher_table2(const BlockTimesSource& blocks) {
  Reproduction table{.name = "pipefisher-table2",
                     .source = source_of("table 2: BERT-Large, Chimera, D = N = 8, B = 32")};
  const PublishedTable published(kPaper, "table 2");
  const auto plain = [&](const char* column) { return published.at("NVLAMB, Chimera", column); };
  const auto kfac = [&](const char* column) { return published.at("K-FAC, Chimera with PipeFisher", column); };
  const double plain_step = plain("time of a step"), kfac_step = kfac("time of a step");
  const Training training{plain("steps, phase 1"), kfac("steps, phase 1"), plain("time, phase 1"),
                          kfac("time, phase 1")};
  const StepTimes step = chimera_step(8, blocks.on_p100("BERT-Large", kBatchSize));
  table.figures = {{"a step of NVLAMB", "ms", plain_step, step.plain},
                   {"a step with K-FAC", "ms", kfac_step, step.with_kfac},
                   {"with K-FAC to without", "×", kfac_step / plain_step, step.with_kfac / step.plain},
                   {"time that K-FAC adds to a step", "ms", kfac_step - plain_step, step.with_kfac - step.plain},
                   {"the same, preconditioning not shared", "ms", kfac_step - plain_step,
                    step.with_all_preconditioning - step.plain}};
  add_minutes(training, step, table);
  Reproduction at_published_times;
  add_minutes(training, {.plain = plain_step, .with_kfac = kfac_step}, at_published_times);
  for (PublishedFigure& figure : at_published_times.figures) {
    figure.what += ", with the published ms";
    table.figures.push_back(std::move(figure));
  }
  table.assumptions = {blocks.describe(),
                       kFree,
                       kShared,
                       kConvergence,
                       "nothing is recomputed",
                       "minutes with the published ms are steps × ms"};
  return table;
}

struct Entry {
  std::string_view name;
  Reproduction (*make)(const BlockTimesSource& blocks);
};

template <int kFigure>
Reproduction throughput(const BlockTimesSource& blocks) {
  constexpr const char* kBlocks[]{"BERT-Base", "BERT-Large", "T5-Base", "T5-Large", "OPT-125M", "OPT-350M"};
  return pipefisher_throughput(kFigure, kBlocks[kFigure - 11], blocks);
}

constexpr Entry kEntries[]{
    {"pipefisher-paths", pipefisher_paths},
    {"pipefisher-fig3", pipefisher_fig3},
    {"pipefisher-fig4", pipefisher_fig4},
    {"pipefisher-fig5",
     [](const BlockTimesSource& blocks) {
       return pipefisher_performance(5, "BERT-Base", PublishedOrder::chimera, blocks);
     }},
    {"pipefisher-fig6", [](const BlockTimesSource& blocks) { return pipefisher_throughput(6, "", blocks); }},
    {"pipefisher-fig7", pipefisher_fig7},
    {"pipefisher-fig9",
     [](const BlockTimesSource& blocks) {
       return pipefisher_performance(9, "BERT-Base", PublishedOrder::gpipe_or_1f1b, blocks);
     }},
    {"pipefisher-fig10",
     [](const BlockTimesSource& blocks) {
       return pipefisher_performance(10, "BERT-Large", PublishedOrder::chimera, blocks);
     }},
    {"pipefisher-fig11", throughput<11>},
    {"pipefisher-fig12", throughput<12>},
    {"pipefisher-fig13", throughput<13>},
    {"pipefisher-fig14", throughput<14>},
    {"pipefisher-fig15", throughput<15>},
    {"pipefisher-fig16", throughput<16>},
    {"pipefisher-table2", pipefisher_table2},
    {"pipefisher-wide", pipefisher_wide}};

}  // namespace

std::vector<std::string> pipeline_reproductions() {
  std::vector<std::string> names;
  for (const Entry& entry : kEntries) names.emplace_back(entry.name);
  return names;
}

std::optional<Reproduction> reproduce_pipeline(std::string_view name, const BlockTimesSource& blocks) {
  for (const Entry& entry : kEntries)
    if (entry.name == name) return entry.make(blocks);
  return {};
}

}  // namespace spillway::runtime
