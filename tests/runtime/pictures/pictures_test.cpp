// Tests of a report's figures and tables, each by itself.
#include <gtest/gtest.h>

#include <cmath>
#include <regex>

#include "runtime/pictures/axis.h"
#include "runtime/pictures/lanes.h"
#include "runtime/pictures/memory.h"
#include "runtime/pictures/operators.h"
#include "runtime/pictures/paging.h"
#include "runtime/pictures/text.h"
#include "runtime/recording/summarize_paging.h"
#include "runtime/report/curves.h"
#include "runtime/report/tables.h"
#include "swap/schedule/schedule.h"
#include "swap/schedule/step_trace.h"
#include "tests/runtime/report/sample_report.h"

namespace spillway {
using namespace runtime;
namespace {

using namespace report;
using namespace swap;

const Grid kPlot{100, 900, 0, 300};
const Axis kSecond{0, 1, 100, 900};

/// Returns the first group of `pattern` in `text` as a number, or NaN when it is not there.
double number(const std::string& text, const std::string& pattern) {
  std::smatch match;
  return std::regex_search(text, match, std::regex(pattern)) ? std::stod(match[1]) : NAN;
}

double budget_height(const std::string& svg) {
  return number(svg, R"re(y1="([\d.]+)"[^>]*class="budget")re");
}
double label_height(const std::string& svg, const std::string& label) {
  return number(svg, R"re(y="([\d.]+)" class="tick end">)re" + label + "<") - 4;  // the baseline is 4 below
}

/// Returns the least y of the area of `category`, which is its highest point.
double top_of(const std::string& svg, const std::string& category) {
  const size_t at = svg.find("class=\"c-" + category + "\"");
  if (at == std::string::npos) return NAN;
  const std::string path = svg.substr(at, svg.find('>', at) - at);
  static const std::regex vertical("V([0-9.]+)");
  double least = INFINITY;
  for (std::sregex_iterator i(path.begin(), path.end(), vertical), end; i != end; ++i)
    least = std::min(least, std::stod((*i)[1]));
  return least;
}

std::string memory_of(const TrainResult& r, const Grid& grid, const Axis& time) {
  return draw_memory(r.recording, {r.budget_bytes, r.observed ? r.observed->peak_bytes : 0}, grid, time);
}

}  // namespace

TEST(ReportMemoryTest, DrawsTheBudgetWhereTheAxisHasIt) {
  const std::string svg = memory_of(small_run(), kPlot, kSecond);
  const double ground = label_height(svg, "0"), half = label_height(svg, "0\\.5 GiB");
  EXPECT_EQ(ground, 300);
  EXPECT_NEAR(budget_height(svg), ground + (half - ground) * 600 / 512, 0.2);
  EXPECT_NEAR(top_of(svg, "activations"), ground + (half - ground) * 540 / 512, 0.2);
  EXPECT_TRUE(contains(svg, "unconstrained 1.17 GiB"));
}

TEST(ReportMemoryTest, StacksTheCategories) {
  TrainResult r = small_run();
  r.recording.memory = {{0, bytes_of(Category::weights, 100 * kMiB)}};
  r.recording.memory[0].bytes[Category::gradients] = 100 * kMiB;
  const std::string svg = memory_of(r, kPlot, kSecond);
  EXPECT_NEAR(300 - top_of(svg, "gradients"), 2 * (300 - top_of(svg, "weights")), 0.2);
  EXPECT_LT(svg.find("c-gradients"), svg.find("c-weights"));  // the lower area covers the higher one's lower part
  EXPECT_FALSE(contains(svg, "c-activations"));
}

TEST(ReportMemoryTest, KeepsTheHighestSampleAndTheLastOfAColumn) {
  TrainResult r = small_run();
  r.recording.memory.assign(100'000, {0, bytes_of(Category::weights, 10 * kMiB)});
  for (size_t i = 0; i < r.recording.memory.size(); ++i)
    r.recording.memory[i].seconds = 0.5 * static_cast<double>(i) / 1e5;
  r.recording.memory[99'900].bytes = bytes_of(Category::weights, 590 * kMiB);
  const std::string svg = memory_of(r, kPlot, kSecond);
  const double per_mib = (300 - budget_height(svg)) / 600;
  EXPECT_NEAR(top_of(svg, "weights"), 300 - per_mib * 590, 0.2);
  EXPECT_NEAR(number(svg, R"re(V([\d.]+)H900V300Z)re"), 300 - per_mib * 10, 0.2);  // the level of the last sample
}

TEST(ReportMemoryTest, NamesALevelFarAboveInsteadOfFlatteningTheRest) {
  TrainResult r = small_run();
  r.budget_bytes = 100 * 1024 * kMiB;
  const std::string svg = memory_of(r, kPlot, kSecond);
  EXPECT_TRUE(std::isnan(budget_height(svg)));
  EXPECT_TRUE(contains(svg, "budget 100 GiB ↑"));
  EXPECT_LT(top_of(svg, "activations"), 200);
}

TEST(ReportLanesTest, MergesShortEventsAndKeepsLongOnes) {
  std::vector<TraceEvent> events{{"aten::big", "compute", 0.5, 0.25, 0}};
  for (int i = 0; i < 9'000; ++i) events.push_back({"tiny", "compute", i * 0.5 / 9'000, 1e-5, 0});
  const std::string svg = draw_lanes(events, kPlot, kSecond);
  EXPECT_LT(count(svg, "<rect"), 600u);
  EXPECT_NEAR(number(svg, R"re(width="([\d.]+)"[^>]*><title>aten::big)re"), 200, 0.1);
  EXPECT_TRUE(contains(svg, ">big</text>"));
  int64_t merged = 0;
  static const std::regex title(">([0-9]+)(?:\u202F([0-9]+))? short events?,");
  for (std::sregex_iterator i(svg.begin(), svg.end(), title), end; i != end; ++i)
    merged += std::stoll((*i)[1].str() + (*i)[2].str());
  EXPECT_EQ(merged, 9'000);
}

TEST(ReportLanesTest, CountsOverlappingEventsAsBusyOnce) {
  const std::vector<TraceEvent> events{{"a", "copy in", 0, 0.2, 512}, {"b", "copy in", 0.1, 0.2, 512}};
  const std::string svg = draw_lanes(events, kPlot, kSecond);
  EXPECT_TRUE(contains(svg, "300 ms busy, 1.00 KiB"));
  EXPECT_EQ(count(svg, ">idle<"), 3u);
}

TEST(ReportCurvesTest, BreaksTheLineWhereTheLossIsNotFinite) {
  TrainResult r = small_run();
  r.losses = {3, 2, NAN, 1, 0.5, INFINITY};
  const std::string figure = draw_losses(r, {});
  const std::string path = figure.substr(figure.find(" d=\""));
  EXPECT_EQ(count(path.substr(0, path.find('>')), "M"), 2u);
  EXPECT_TRUE(contains(figure, "this run: not finite at 2 steps, first at step 3."));
}

TEST(ReportCurvesTest, SaysWhichRunsAgreeToTheBit) {
  TrainResult r = small_run(), near = r;
  near.losses[1] = std::nextafter(near.losses[1], 9);
  const std::string figure = draw_losses(r, {{"unlimited", r}, {"near", near}});
  EXPECT_EQ(count(figure, "the same bits"), 1u);
}

TEST(ReportCurvesTest, PlacesLossesByTheTimeOfTheirSteps) {
  TrainResult r = small_run(), fast = r;
  r.losses = fast.losses = {3, 2, 1};
  fast.losses[0] = 2.5;
  r.step_seconds = {2, 1, 1};
  fast.step_seconds = {0.5, 1, 0.5};
  const std::string figure = draw_losses(r, {{"fast", fast}}, Over::seconds);
  EXPECT_TRUE(contains(figure, "Loss over time"));
  const auto places = [&](const std::string& css) {
    const std::string path = figure.substr(figure.find("class=\"curve " + css));
    std::vector<double> across;
    static const std::regex point("[ML]([0-9.]+) ");
    const std::string d = path.substr(0, path.find('>'));
    for (std::sregex_iterator i(d.begin(), d.end(), point), end; i != end; ++i)
      across.push_back(std::stod((*i)[1].str()));
    return across;
  };
  const auto own = places("s0"), others = places("s1");
  ASSERT_EQ(own.size(), 3u);
  ASSERT_EQ(others.size(), 3u);
  const double second = (own[2] - own[0]) / 2;
  EXPECT_NEAR(own[1] - own[0], second, 0.1);
  EXPECT_NEAR(own[2] - others[2], 2 * second, 0.1);
  EXPECT_NEAR(own[0] - others[0], 1.5 * second, 0.1);
  r.resumed_from_step = 7;  // its own time begins there
  EXPECT_EQ(draw_losses(r, {{"fast", fast}}, Over::seconds), figure);
}

TEST(ReportCurvesTest, TakesALogarithmWhenTheLossFallsAHundredfold) {
  TrainResult r = small_run();
  EXPECT_FALSE(contains(draw_losses(r, {}), "log scale"));
  r.losses = {10, 1, 0.01};
  EXPECT_TRUE(contains(draw_losses(r, {}), "log scale"));
  r.losses = {10, 1, 0};  // zero has no logarithm
  EXPECT_FALSE(contains(draw_losses(r, {}), "log scale"));
}

TEST(ReportTablesTest, HoldsTimesAgainstTheUnlimitedRun) {
  TrainResult r = small_run(), unlimited = small_run();
  for (double& seconds : unlimited.step_seconds) seconds /= 2;
  EXPECT_TRUE(contains(draw_summary(r, {{"unlimited", unlimited}}), "2.00×"));
  EXPECT_FALSE(contains(draw_summary(r, {{"adam", unlimited}}), "2.00×</td>"));
  EXPECT_TRUE(contains(draw_summary(r, {}), "90.0 % of the budget"));
}

TEST(ReportTablesTest, ListsTwelveOperatorsAndTheRest) {
  StepRecording recording;
  for (int i = 0; i < 20; ++i) recording.events.push_back({str("aten::op", i), "compute", 0, 1. + i, 0});
  recording.events.push_back({"page", "copy out", 0, 1e6, 0});
  recording.events.push_back({"page", "disk write", 0, 1e6, 0});
  recording.events.push_back({"gradients", "communication", 0, 1e6, 64});
  const std::string table = draw_operators(recording);
  EXPECT_EQ(count(table, "<tr>"), 14u);  // with the row of headings
  EXPECT_LT(table.find(">aten::op19<"), table.find(">aten::op8<"));
  EXPECT_TRUE(contains(table, ">8 others<"));
  EXPECT_FALSE(contains(table, ">page<"));
  EXPECT_FALSE(contains(table, ">gradients<"));
}

TEST(ReportPagingTest, SaysWhatBoundsTheStepWhatLeavesAndWhatNeedsMostRoom) {
  PagingSummary paging = *small_run().paging;
  const std::string html = draw_paging(paging, 600 * kMiB);
  EXPECT_NE(html.find("Computing bounds it"), std::string::npos);
  EXPECT_NE(html.find("aten::cat"), std::string::npos);
  EXPECT_NE(html.find("made again instead of copied; not used for 200 ms"), std::string::npos);
  EXPECT_NE(html.find("25.0 %"), std::string::npos) << "150 of 600 MiB";
  EXPECT_EQ(xml_fault(html), "");
  paging.bound_seconds = 0.5;
  paging.exposed_seconds = 0.2;
  EXPECT_NE(draw_paging(paging, 600 * kMiB).find("The copies bound it"), std::string::npos);
  EXPECT_NE(draw_paging(paging, 600 * kMiB).find("a larger budget"), std::string::npos);
  paging.absences.clear();
  EXPECT_NE(draw_paging(paging, kUnlimitedBytes).find("everything fits"), std::string::npos);
  EXPECT_EQ(draw_paging(paging, kUnlimitedBytes).find("of the budget"), std::string::npos);
  paging.absences.assign(20, {"x", "y", "z", Category::weights, kMiB, 0, false});
  EXPECT_NE(draw_paging(paging, kUnlimitedBytes).find("8 smaller ones, 8.00 MiB together"), std::string::npos);
}

TEST(PagingSummaryTest, NamesTheUsesAroundEachAbsence) {
  StepTrace trace;
  trace.kind = "plain";
  trace.operators.resize(4);
  const char* names[] = {"make", "read", "busy", "again"};
  for (size_t i = 0; i < 4; ++i) trace.operators[i] = {.name = names[i], .seconds = 0.1};
  trace.operators[2].own_bytes = 500;
  trace.operators[2].births = {2};
  trace.operators[3].leased_bytes = 100;
  trace.slots = {{.bytes = 100, .birth = 0, .born_as_output = true, .death = 3, .uses = {0, 1, 3}, .writes = {0}},
                 {.bytes = 300, .uses = {2}},
                 {.bytes = 200, .birth = 2, .born_as_output = true, .death = 2, .uses = {2}, .writes = {2}}};
  Schedule schedule;
  schedule.actions.page_ins = {{0, 2, 3}, {1, 3, 4 + 2}};  // the weight is paged in at the end of the step before
  const PagingSummary summary = summarize_paging(trace, schedule);
  ASSERT_EQ(summary.absences.size(), 2u);
  EXPECT_EQ(summary.absences[0].bytes, 300);
  EXPECT_EQ(summary.absences[0].maker, "");
  EXPECT_EQ(summary.absences[0].before, "busy");
  EXPECT_NEAR(summary.absences[0].seconds, 0.3, 1e-9);
  EXPECT_EQ(summary.absences[1].maker, "make");
  EXPECT_EQ(summary.absences[1].after, "read");
  EXPECT_EQ(summary.absences[1].before, "again");
  EXPECT_NEAR(summary.absences[1].seconds, 0.1, 1e-9);
  ASSERT_EQ(summary.footprints.size(), 2u);
  EXPECT_EQ(summary.footprints[0].name, "busy");
  EXPECT_EQ(summary.footprints[0].output_bytes, 200);
  EXPECT_EQ(summary.footprints[0].scratch_bytes, 300);
}

TEST(ReportTextTest, ReplacesWhatIsNotUtf8) {
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(escape("µ → 😀"), "µ → 😀");
  EXPECT_EQ(escape("\xC3("), bad + "(");
  EXPECT_EQ(escape("a\xE2\x86"), "a" + bad + bad);     // cut off
  EXPECT_EQ(escape("\xC0\xBC"), bad + bad);            // overlong encoding of '<'
  EXPECT_EQ(escape("\xED\xA0\x80"), bad + bad + bad);  // half of a surrogate pair
}

TEST(ReportAxisTest, TicksAreRoundAndShareAUnit) {
  std::string text;
  for (const Tick& tick : second_ticks(0.78, 8)) text += tick.label + "|";
  EXPECT_EQ(text, "0|100 ms|200 ms|300 ms|400 ms|500 ms|600 ms|700 ms|");
  EXPECT_EQ(second_ticks(3.1, 8)[1].label, "0.5 s");
  EXPECT_EQ(second_ticks(1.3e-5, 8)[1].label, "2 µs");
  text.clear();
  for (const Tick& tick : byte_ticks(636. * kMiB)) text += tick.label + "|";
  EXPECT_EQ(text, "0|128 MiB|256 MiB|384 MiB|512 MiB|");
  EXPECT_EQ(whole_ticks(1, 6).size(), 2u);
}

TEST(ReportAxisTest, ScalesHoldTheirValues) {
  const std::vector<std::vector<double>> cases{
      {}, {0}, {5}, {-3e299, 1e300}, {0.5, 0.5000001}, {1e-12}, {NAN, 2, INFINITY}};
  for (const auto& values : cases) {
    const ValueScale scale = scale_values(values);
    EXPECT_LT(scale.axis.low, scale.axis.high);
    EXPECT_GE(scale.ticks.size(), 2u);
    EXPECT_LE(scale.ticks.size(), 12u);
    for (size_t i = 1; i < scale.ticks.size(); ++i) EXPECT_NE(scale.ticks[i].label, scale.ticks[i - 1].label);
    for (double value : values)
      EXPECT_FALSE(std::isfinite(value) && (value < scale.axis.low || value > scale.axis.high)) << value;
  }
}

TEST(ReportAxisTest, SpreadKeepsLabelsApartAndInside) {
  const auto placed = spread({100, 99, 10, 101}, 15, 0, 110);
  EXPECT_EQ(placed[2], 10);
  EXPECT_LE(placed[1] + 15, placed[0]);
  EXPECT_LE(placed[0] + 15, placed[3]);
  EXPECT_LE(placed[3], 110);
}

}  // namespace spillway
