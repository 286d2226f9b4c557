// Tests of the picture of a pipeline's step, and of its events.
#include "runtime/report/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <regex>

#include "runtime/report/page.h"
#include "tests/runtime/report/sample_pipeline.h"
#include "tests/runtime/report/sample_report.h"

namespace spillway {
using namespace report;
namespace {

struct Rect {
  double x, y, width, height;
};

/// Returns the blocks of the rows that are `what`, in their order.
std::vector<Rect> rects_of(const std::string& html, const std::string& what) {
  static const std::regex rect(R"re(<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)")re");
  std::vector<Rect> all;
  for (size_t at = html.find("<g class=\"" + what); at != std::string::npos;
       at = html.find("<g class=\"" + what, at + 1)) {
    const std::string row = html.substr(at, html.find("</g>", at) - at);
    for (std::sregex_iterator i(row.begin(), row.end(), rect), end; i != end; ++i)
      all.push_back({std::stod((*i)[1]), std::stod((*i)[2]), std::stod((*i)[3]), std::stod((*i)[4])});
  }
  return all;
}

}  // namespace

TEST(ReportPipelineTest, HasARowMeasuredAboveARowPlannedForEachRank) {
  const std::string html = draw_pipeline(pipeline_of(3, 20), "step 7, plain");
  EXPECT_EQ(xml_fault(html), "");
  EXPECT_TRUE(contains(html, "1f1b, 3 ranks, 4 micro-batches, step 7, plain"));
  EXPECT_EQ(count(html, "<g class=\"measured\">"), 3u);
  EXPECT_EQ(count(html, "<g class=\"planned\">"), 3u);
  for (const char* label : {">rank 0<", ">rank 1<", ">rank 2<", ">stage 2<"})
    EXPECT_EQ(count(html, label), 1u) << label;
  const auto measured = rects_of(html, "measured"), planned = rects_of(html, "planned");
  ASSERT_EQ(measured.size(), 60u);
  ASSERT_EQ(planned.size(), 60u);
  for (size_t i = 0; i < 60; ++i) {
    EXPECT_LE(measured[i].y + measured[i].height, planned[i].y);
    if (i + 20 < 60) {
      EXPECT_LE(planned[i].y + planned[i].height, measured[i + 20].y) << "the next rank is below";
    }
    if (i % 20 == 0) continue;
    EXPECT_GE(measured[i].x, measured[i - 1].x + measured[i - 1].width) << "waits are blank";
    // One axis: the plan takes twice the time.
    EXPECT_NEAR(planned[i].x - planned[i - 1].x, 2 * (measured[i].x - measured[i - 1].x), 0.25);
  }
  EXPECT_TRUE(contains(html, "measured, 144 ms busy")) << "exchanges are no work";
  EXPECT_TRUE(contains(html, "forward of stage 1, micro-batch 0, 8.00 ms"));
  EXPECT_TRUE(contains(html, "K-FAC renew of stage 2, 8.00 ms"));
}

TEST(ReportPipelineTest, TheLegendNamesEveryKindThatOccurs) {
  const std::string html = draw_pipeline(pipeline_of(2, 10), "step 1");
  for (PipelineWork work : kKinds) {
    EXPECT_EQ(count(html, str("<i class=\"k-", name(work), "\">")), 1u) << name(work);
    EXPECT_EQ(count(html, str("class=\"k k-", name(work), "\"")), 4u) << name(work);
  }
  EXPECT_TRUE(contains(html, "K-FAC statistics <b>16.0 ms</b>")) << "8 ms of each rank";
  const std::string first = draw_pipeline(pipeline_of(2, 1), "step 1");
  EXPECT_EQ(count(first, "<i class="), 1u);
  TrainResult r = small_run();
  r.pipeline = pipeline_of(2, 10);
  const std::string page = draw_page(r, {});
  for (PipelineWork work : kKinds) {
    EXPECT_EQ(count(page, str("--", name(work), ": #")), 2u) << "a color in light and in dark style";
    EXPECT_TRUE(contains(page, str(".k-", name(work), " { fill: var(--", name(work), ")")));
  }
}

TEST(ReportPipelineTest, NumbersStandWhereTheyFit) {
  const std::string wide = draw_pipeline(pipeline_of(1, 5), "step 1");
  EXPECT_EQ(count(wide, ">0·0</text>"), 4u) << "micro-batch 0 is the first item and the last one, twice";
  EXPECT_EQ(count(wide, ">0·3</text>"), 2u);
  EXPECT_FALSE(contains(draw_pipeline(pipeline_of(1, 100), "step 1"), "·0</text>"));
}

TEST(ReportPipelineTest, StaysSmallHoweverManyItemsThereAre) {
  const std::string html = draw_pipeline(pipeline_of(4, 10'000), "step 1");
  EXPECT_EQ(xml_fault(html), "");
  EXPECT_LT(html.size(), 300'000u);
  int64_t items = 0;
  static const std::regex title("<title>([0-9]+)(?:\u202F([0-9]+))? short blocks,");
  for (std::sregex_iterator i(html.begin(), html.end(), title), end; i != end; ++i)
    items += std::stoll((*i)[1].str() + (*i)[2].str());
  EXPECT_EQ(items, 80'000) << "each is in some block";
  EXPECT_TRUE(contains(html, "k-forward r\""));
}

TEST(ReportPipelineTest, DrawsTheFirstOfManyRanksAndSaysSo) {
  const std::string html = draw_pipeline(pipeline_of(20, 2), "step 1");
  EXPECT_EQ(count(html, "<g class=\"measured\">"), 16u);
  EXPECT_TRUE(contains(html, "The first 16 of 20 ranks are drawn"));
}

TEST(ReportPipelineTest, IsEmptyWithoutAStepAndHoldsForAnEmptyOne) {
  PipelineSummary p = pipeline_of(2, 3);
  p.schedule = "</small><x>\"&";
  EXPECT_EQ(xml_fault(draw_pipeline(p, "<y>")), "");
  for (PipelineRankStep& rank : p.step->ranks) rank.measured.clear(), rank.planned.clear();
  EXPECT_EQ(xml_fault(draw_pipeline(p, "step 1")), "");
  p.step.reset();
  EXPECT_EQ(draw_pipeline(p, "step 1"), "");
  EXPECT_TRUE(pipeline_events(p).empty());
}

TEST(ReportPipelineTest, EventsHaveALaneForWhatARankDidAndOneForThePlan) {
  const auto events = pipeline_events(pipeline_of(2, 3));
  ASSERT_EQ(events.size(), 12u);
  EXPECT_EQ(events[1].name, "backward of stage 0, micro-batch 1");
  EXPECT_EQ(events[1].lane, "rank 0");
  EXPECT_NEAR(events[1].start_seconds, 0.51, 1e-9);
  EXPECT_NEAR(events[1].seconds, 0.008, 1e-9);
  EXPECT_EQ(events[3].lane, "rank 0, planned");
  EXPECT_EQ(events[11].lane, "rank 1, planned");
  EXPECT_NEAR(events[11].start_seconds, 0.54, 1e-9);
}

}  // namespace spillway
