#include "benchmarks/reproduce/reproduce_formulas.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "core/error.h"

namespace spillway::runtime {
namespace {

constexpr const char* kFormulas =
    "times of steps are the paper's formulas; messages and collectives take no time, and a stage is one block";
constexpr const char* kLonger =
    "for N > D the paper's order of items takes longer than its formula (pipefisher-paths), which stands here";
constexpr const char* kBelow2 =
    "the paper says that r is below 2 for large B and D, and throughput nearly kept; the pictures tell no numbers";
constexpr const char* kOrderOf5 =
    "figures 5, 9 and 10 show BERT-Base with Chimera, BERT-Base with GPipe or 1F1B, and BERT-Large with Chimera; this "
    "order is not confirmed";
constexpr const char* kSizes = "B is 1, 2, 4 and so on to 64, for OPT to 8";
constexpr const char* kMostly2To10 = "the paper says that r is mostly 2 to 10, read as more than half of the cases";
constexpr const char* kGain =
    "the paper says that the gain is at most 1.4 for N = D and B = 64, and 1.1 for N = 3 D; it is 1 + T_bubble / "
    "(T_pipe + T_prec), whatever a refresh takes";
constexpr const char* kOrderOf11 =
    "figures 11 to 16 show BERT-Base, BERT-Large, T5-Base, T5-Large, OPT-125M and OPT-350M; this order is not "
    "confirmed";
constexpr const char* kWide =
    "the paper says that all work takes K times as long, and r does not change; counted so, r falls as 1/K";
constexpr const char* kCounted =
    "time is multiply-adds of a block's six matrices; attention's own products are left out";
constexpr int kMaxBatch = 32, kMaxRanks = 16;  // of figures 5, 9 and 10

std::string source_of(const std::string& place) {
  return "Osawa et al., PipeFisher, MLSys 2023, " + place;
}

// --- r by ranks and size --------------------------------------------------------------------------------------------

/// Adds r without and with recomputation. Where `is_bounded` the paper's bound stands beside it.
void add_refresh_steps(const std::string& title, PipelineShape shape, const BlockTimes& times, bool is_bounded,
                       Reproduction& table) {
  for (const bool recompute : {false, true}) {
    shape.recompute = recompute;
    const std::string label = title + ", r" + (recompute ? " with recomputation" : "") + (is_bounded ? " (below)" : "");
    table.figures.push_back(
        {label, "", is_bounded ? std::optional(2.0) : std::nullopt, published_step(shape, times).refresh_steps()});
  }
}

}  // namespace

Reproduction pipefisher_performance(int figure, const std::string& block, PublishedOrder order,
                                    const BlockTimesSource& blocks) {
  const std::string orders = order == PublishedOrder::chimera ? "Chimera" : "GPipe and 1F1B";
  Reproduction table{.name = str("pipefisher-fig", figure),
                     .source = source_of(str("figure ", figure, ": ", block, " on P100, ", orders, ", D = N"))};
  for (int batch_size : {8, 16, kMaxBatch}) {
    const BlockTimes times = blocks.on_p100(block, batch_size);
    for (int ranks : {4, 8, kMaxRanks}) {
      const PipelineShape shape{.order = order, .stages = ranks, .micro_batches = ranks};
      const std::string title = str("B = ", batch_size, ", D = ", ranks);
      add_refresh_steps(title, shape, times, batch_size == kMaxBatch && ranks == kMaxRanks, table);
      table.figures.push_back({title + ", time that preconditioning adds", "%", std::nullopt,
                               100 * published_step(shape, times).added_share()});
    }
  }
  const int more = 2 * kMaxRanks;
  add_refresh_steps(str("B = ", kMaxBatch, ", D = ", more, ", not in the figure"),
                    {.order = order, .stages = more, .micro_batches = more}, blocks.on_p100(block, kMaxBatch), true,
                    table);
  table.assumptions = {blocks.describe(), kFormulas, kBelow2, kOrderOf5};
  return table;
}

// --- r and throughput over all cases --------------------------------------------------------------------------------

namespace {

/// The cases of a figure: steps with Chimera on 4 to 32 ranks.
struct Cases {
  std::vector<double> refresh_steps;  ///< all cases
  std::vector<double> equal_gains;    ///< over K-FAC+skip, N = D, the largest micro-batch
  std::vector<double> triple_gains;   ///< N = 3 D, all sizes

  void add(const BlockProfile& profile) {
    const int largest = profile.by_batch_size.rbegin()->first;
    for (const auto& [batch_size, times] : profile.by_batch_size)
      for (int ranks : {4, 8, 16, 32})
        for (int units : {1, 2, 3}) {
          const PipelineStep step = published_step(
              {.order = PublishedOrder::chimera, .stages = ranks, .micro_batches = units * ranks}, times);
          refresh_steps.push_back(step.refresh_steps());
          if (units == 1 && batch_size == largest) equal_gains.push_back(step.gain_over_skip());
          if (units == 3) triple_gains.push_back(step.gain_over_skip());
        }
  }

  /// Returns the percentage of cases whose r is in the range.
  double share(double from, double to) const {
    const auto inside = std::count_if(refresh_steps.begin(), refresh_steps.end(),
                                      [&](double steps) { return steps >= from && steps <= to; });
    return 100.0 * static_cast<double>(inside) / static_cast<double>(refresh_steps.size());
  }
};

double least(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}
double most(const std::vector<double>& values) {
  return *std::max_element(values.begin(), values.end());
}

void add_refresh_steps(const std::string& title, const Cases& cases, Reproduction& table) {
  constexpr double kFrom = 2, kTo = 10;
  const double inside = cases.share(kFrom, kTo), up_to = cases.share(0, kTo);
  table.figures.push_back({title + "cases with r from 2 to 10 (more than)", "%", 50, inside});
  table.figures.push_back({title + "cases with r below 2", "%", std::nullopt, up_to - inside});
  table.figures.push_back({title + "cases with r above 10", "%", std::nullopt, 100 - up_to});
  table.figures.push_back({title + "least r", "", std::nullopt, least(cases.refresh_steps)});
  table.figures.push_back({title + "most r", "", std::nullopt, most(cases.refresh_steps)});
}

void add_gains(const Cases& cases, Reproduction& table) {
  const std::string gain = "gain over K-FAC+skip, ";
  table.figures.push_back({gain + "N = D, largest B, least", "×", std::nullopt, least(cases.equal_gains)});
  table.figures.push_back({gain + "N = D, largest B, most (at most)", "×", 1.4, most(cases.equal_gains)});
  table.figures.push_back({gain + "N = 3 D, least", "×", std::nullopt, least(cases.triple_gains)});
  table.figures.push_back({gain + "N = 3 D, most", "×", 1.1, most(cases.triple_gains)});
}

}  // namespace

Reproduction pipefisher_throughput(int figure, const std::string& block, const BlockTimesSource& blocks) {
  const std::string shown = block.empty() ? "figures 6 and 11 to 16: all blocks" : str("figure ", figure, ": ", block);
  Reproduction table{.name = str("pipefisher-fig", figure),
                     .source = source_of(shown + " on P100, V100 and RTX 3090, Chimera, D from 4 to 32, N = D, 2 D, "
                                                 "3 D")};
  Cases all;
  for (const BlockProfile& profile : blocks.profiles(block)) {
    all.add(profile);
    if (block.empty()) continue;
    Cases cases;
    cases.add(profile);
    add_refresh_steps(profile.device + ", ", cases, table);
  }
  if (block.empty()) add_refresh_steps("", all, table);
  add_gains(all, table);
  table.assumptions = {blocks.describe(), kFormulas, kLonger, kMostly2To10, kGain};
  if (!blocks.is_own()) table.assumptions.emplace_back(kSizes);
  if (!block.empty()) table.assumptions.emplace_back(kOrderOf11);
  return table;
}

// --- wide models ----------------------------------------------------------------------------------------------------

namespace {

/// Returns a block's multiply-adds where its width is `times` the model's and each factor is divided into as many
/// blocks. Those of attention's own products are left out.
BlockTimes multiply_adds(double times) {
  BlockTimes work;
  for (size_t matrix = 0; matrix < kInputSides.size(); ++matrix) {
    const double in = kInputSides[matrix], out = kOutputSides[matrix];
    // A dense matrix of (K in) × (K out); K blocks of sides `in` and `out`, each of which meets K blocks of the other.
    work.forward += times * in * times * out;
    work.statistics += times * (in * in + out * out);
    work.inversion += times * (in * in * in + out * out * out);
    work.preconditioning += times * in * in * times * out + times * out * out * times * in;
  }
  work.backward = 2 * work.forward;
  return work;
}

}  // namespace

Reproduction pipefisher_wide(const BlockTimesSource& blocks) {
  Reproduction table{.name = "pipefisher-wide",
                     .source = source_of("appendix A.2: K times the width, and factors in K blocks, beside K = 1")};
  const BlockTimes block = blocks.on_p100("BERT-Base", kMaxBatch), one = multiply_adds(1);
  const PipelineShape shape{.order = PublishedOrder::chimera};
  for (const double times : {2.0, 4.0}) {
    const BlockTimes work = multiply_adds(times);
    const BlockTimes wide{.forward = block.forward * work.forward / one.forward,
                          .backward = block.backward * work.backward / one.backward,
                          .statistics = block.statistics * work.statistics / one.statistics,
                          .inversion = block.inversion * work.inversion / one.inversion,
                          .preconditioning = block.preconditioning * work.preconditioning / one.preconditioning};
    const std::string title = str("K = ", times, ", ");
    table.figures.push_back({title + "forward and backward", "×", times, work.forward / one.forward});
    table.figures.push_back({title + "statistics", "×", times, work.statistics / one.statistics});
    table.figures.push_back({title + "inversion", "×", times, work.inversion / one.inversion});
    table.figures.push_back({title + "preconditioning", "×", times, work.preconditioning / one.preconditioning});
    table.figures.push_back(
        {title + "r", "×", 1,
         published_step(shape, wide).refresh_steps() / published_step(shape, block).refresh_steps()});
  }
  table.assumptions = {blocks.describe(), kFormulas, "BERT-Base, Chimera, D = N = 4, B = 32", kCounted, kWide};
  return table;
}

}  // namespace spillway::runtime
