// Tests of the published figures of pipelines: their predictions, and that each says how it came about.
#include "benchmarks/reproduce/reproduce_pipelines.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>

#include "tests/runtime/files.h"

namespace spillway::runtime {
namespace {

Reproduction table_of(const std::string& name, const BlockTimesSource& blocks = BlockTimesSource()) {
  const std::optional<Reproduction> table = reproduce_pipeline(name, blocks);
  if (!table) throw BadRequest("there is no " + name);
  return *table;
}

double predicted(const Reproduction& table, const std::string& what) {
  for (const PublishedFigure& figure : table.figures)
    if (figure.what == what) return figure.predicted.value();
  ADD_FAILURE() << table.name << " has no '" << what << "'";
  return 0;
}

/// Returns a source whose times are multiples of the published ones.
BlockTimesSource scaled(double factor, std::initializer_list<int> sizes = {1, 8, 16, 32}) {
  BlockProfile profile{.block = "a block", .device = "times.csv"};
  for (int size : sizes)
    profile.by_batch_size[size] = {factor * kBertBase.forward, factor * kBertBase.backward,
                                   factor * kBertBase.statistics, factor * kBertBase.inversion,
                                   factor * kBertBase.preconditioning};
  return BlockTimesSource(profile);
}

TEST(ReproducePipelinesTest, EachNameSaysWhatItAssumes) {
  std::set<std::string> names;
  for (const std::string& name : pipeline_reproductions()) {
    const Reproduction table = table_of(name);
    EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_EQ(table.name, name);
    EXPECT_NE(table.source.find("PipeFisher"), std::string::npos) << name;
    EXPECT_FALSE(table.assumptions.empty()) << name;
    std::set<std::string> rows;
    for (const PublishedFigure& figure : table.figures) {
      EXPECT_TRUE(rows.insert(figure.what).second) << name << ": " << figure.what << " again";
      ASSERT_TRUE(figure.predicted) << name << ": " << figure.what;
      EXPECT_TRUE(std::isfinite(*figure.predicted)) << name << ": " << figure.what;
      EXPECT_EQ(figure.deviation().has_value(), figure.published.has_value()) << name << ": " << figure.what;
    }
    EXPECT_FALSE(rows.empty()) << name;
  }
  for (const char* name : {"paths", "fig3", "fig4", "fig5", "fig6", "fig7", "fig9", "fig10", "fig11", "fig12", "fig13",
                           "fig14", "fig15", "fig16", "table2", "wide"})
    EXPECT_TRUE(names.contains(str("pipefisher-", name))) << name;
  EXPECT_EQ(names.size(), 16);
  EXPECT_FALSE(reproduce_pipeline("pipefisher-fig8", BlockTimesSource()));
}

TEST(ReproducePipelinesTest, UsesWaitsAsTheSimulationSays) {
  const Reproduction fig3 = table_of("pipefisher-fig3"), fig4 = table_of("pipefisher-fig4"),
                     fig7 = table_of("pipefisher-fig7");
  for (const std::string order : {"GPipe", "1F1B"}) {
    EXPECT_NEAR(predicted(fig3, order + ", use of GPUs without K-FAC"), 57.1, 0.05);
    EXPECT_NEAR(predicted(fig3, order + ", with K-FAC in its waits, cycles by rank"), 88.7, 0.05);
    EXPECT_NEAR(predicted(fig3, order + ", with K-FAC in its waits, one cycle"), 88.7, 0.05);
    EXPECT_EQ(predicted(fig3, order + ", steps of a refresh, most of a rank"), 3);
    EXPECT_NEAR(predicted(fig3, order + ", r"), 2.21, 0.005);
    EXPECT_NEAR(predicted(fig3, order + ", W = 2, r"), 1.76, 0.005);
    EXPECT_NEAR(predicted(fig3, order + ", W = 2, use of GPUs without K-FAC"), 57.1, 0.05);
    EXPECT_EQ(predicted(fig3, order + ", W = 2, steps of a refresh, least of a rank"), 2);
  }
  EXPECT_NEAR(predicted(fig4, "Chimera, use of GPUs without K-FAC"), 68.0, 0.05);
  EXPECT_EQ(predicted(fig4, "Chimera, steps of a refresh, least of a rank"), 3);
  EXPECT_EQ(predicted(fig4, "Chimera, steps of a refresh, most of a rank"), 4);
  EXPECT_NEAR(predicted(fig4, "Chimera, with K-FAC in its waits, one cycle"), 91.5, 0.05);
  EXPECT_NEAR(predicted(fig4, "Chimera, r"), 2.94, 0.005);
  EXPECT_NEAR(predicted(fig7, "Chimera, use of GPUs without K-FAC"), 76.1, 0.05);
  EXPECT_EQ(predicted(fig7, "Chimera, steps of a refresh, least of a rank"), 6);
  EXPECT_EQ(predicted(fig7, "Chimera, steps of a refresh, most of a rank"), 7);
  EXPECT_NEAR(predicted(fig7, "Chimera, with K-FAC in its waits, one cycle"), 94.1, 0.05);
  EXPECT_NEAR(predicted(fig7, "Chimera, r"), 5.28, 0.005);
}

TEST(ReproducePipelinesTest, WorksNoMoreThanBusyRanksAndNoLessThanInOneCycle) {
  for (const char* name : {"pipefisher-fig3", "pipefisher-fig4", "pipefisher-fig7"}) {
    const Reproduction table = table_of(name);
    for (const PublishedFigure& figure : table.figures) {
      const size_t at = figure.what.find("cycles by rank");
      if (at == std::string::npos) continue;
      const double one_cycle = predicted(table, figure.what.substr(0, at) + "one cycle");
      EXPECT_GE(*figure.predicted, one_cycle - 1e-9) << name;
      EXPECT_LE(*figure.predicted, 100) << name;
    }
  }
}

TEST(ReproducePipelinesTest, SpreadsRefreshesOverAllCases) {
  const Reproduction all = table_of("pipefisher-fig6");
  EXPECT_NEAR(predicted(all, "cases with r from 2 to 10 (more than)"), 65, 0.5);
  EXPECT_NEAR(predicted(all, "cases with r below 2"), 16, 0.5);
  EXPECT_NEAR(predicted(all, "cases with r above 10"), 19, 0.5);
  EXPECT_NEAR(predicted(all, "gain over K-FAC+skip, N = D, largest B, least"), 1.23, 0.005);
  EXPECT_NEAR(predicted(all, "gain over K-FAC+skip, N = D, largest B, most (at most)"), 1.38, 0.005);
  EXPECT_NEAR(predicted(all, "gain over K-FAC+skip, N = 3 D, least"), 1.05, 0.005);
  EXPECT_NEAR(predicted(all, "gain over K-FAC+skip, N = 3 D, most"), 1.14, 0.005);
  double least = 1e9, most = 0;
  for (int figure = 11; figure <= 16; ++figure) {
    const Reproduction table = table_of(str("pipefisher-fig", figure));
    for (const char* gpu : {"P100", "V100", "RTX 3090"}) {
      least = std::min(least, predicted(table, str(gpu, ", least r")));
      most = std::max(most, predicted(table, str(gpu, ", most r")));
      EXPECT_NEAR(predicted(table, str(gpu, ", cases with r from 2 to 10 (more than)")) +
                      predicted(table, str(gpu, ", cases with r below 2")) +
                      predicted(table, str(gpu, ", cases with r above 10")),
                  100, 1e-9);
    }
  }
  EXPECT_EQ(predicted(all, "least r"), least);
  EXPECT_EQ(predicted(all, "most r"), most);
}

TEST(ReproducePipelinesTest, CountsMinutesAsStepsTimesMilliseconds) {
  const Reproduction table2 = table_of("pipefisher-table2"), fig7 = table_of("pipefisher-fig7");
  EXPECT_NEAR(predicted(table2, "7038 steps of NVLAMB, with the published ms"), 275.14, 0.005);
  EXPECT_NEAR(predicted(table2, "5000 steps with K-FAC, with the published ms"), 208.29, 0.005);
  EXPECT_NEAR(predicted(table2, "minutes with K-FAC to those without, with the published ms"), 75.7, 0.05);
  EXPECT_NEAR(predicted(table2, "a step of NVLAMB"), 1518, 0.5);
  EXPECT_NEAR(predicted(table2, "time that K-FAC adds to a step"), 44, 0.5);
  EXPECT_NEAR(predicted(table2, "the same, preconditioning not shared"), 88, 0.5);
  EXPECT_NEAR(predicted(fig7, "with K-FAC to without"), 1.049, 0.0005);
  EXPECT_NEAR(predicted(fig7, "the same, preconditioning not shared"), 1.099, 0.0005);
  for (const PublishedFigure& figure : fig7.figures)
    if (figure.what == "with K-FAC to without") {
      EXPECT_NEAR(*figure.published, 1.157, 0.0005);
    }
}

TEST(ReproducePipelinesTest, MakesWideModelsRefreshMoreOften) {
  const Reproduction table = table_of("pipefisher-wide");
  for (const double times : {2.0, 4.0}) {
    const std::string title = str("K = ", times, ", ");
    EXPECT_DOUBLE_EQ(predicted(table, title + "forward and backward"), times * times);
    EXPECT_DOUBLE_EQ(predicted(table, title + "preconditioning"), times * times);
    EXPECT_DOUBLE_EQ(predicted(table, title + "statistics"), times);
    EXPECT_DOUBLE_EQ(predicted(table, title + "inversion"), times);
    EXPECT_DOUBLE_EQ(predicted(table, title + "r"), 1 / times);
  }
}

TEST(ReproducePipelinesTest, TakesTheUsersOwnTimes) {
  for (const std::string& name : pipeline_reproductions()) {
    if (name == "pipefisher-paths") continue;
    const Reproduction table = table_of(name, scaled(2));
    EXPECT_NE(table.assumptions.front().find("times.csv"), std::string::npos) << name;
  }
  // Twice the times are twice the milliseconds, and the same ratios.
  const Reproduction own = table_of("pipefisher-fig7", scaled(2)), published = table_of("pipefisher-fig7");
  EXPECT_DOUBLE_EQ(predicted(own, "a step of NVLAMB, from its minutes"),
                   2 * predicted(published, "a step of NVLAMB, from its minutes"));
  EXPECT_NEAR(predicted(own, "Chimera, r"), predicted(published, "Chimera, r"), 1e-12);
  // A GPU whose inversions take no time refreshes sooner.
  BlockProfile quick{.block = "a block", .device = "times.csv"};
  quick.by_batch_size[32] = kBertBase;
  quick.by_batch_size[32].inversion = 0;
  EXPECT_LT(predicted(table_of("pipefisher-fig3", BlockTimesSource(quick)), "GPipe, r"), 1.4);
}

TEST(ReproducePipelinesTest, RefusesTimesThatAreNotEnoughOrOfNoUse) {
  expect_refusal([] { table_of("pipefisher-paths", scaled(1)); }, {"takes no block times"});
  for (const char* name : {"pipefisher-fig3", "pipefisher-fig4", "pipefisher-fig5", "pipefisher-fig7",
                           "pipefisher-table2", "pipefisher-wide"})
    expect_refusal([&] { table_of(name, scaled(1, {8, 16})); }, {"micro-batches of 32; there are for 8, 16"});
}

}  // namespace
}  // namespace spillway::runtime
