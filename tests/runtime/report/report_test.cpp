#include "runtime/report/report.h"

#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "runtime/report/axis.h"
#include "runtime/report/curves.h"
#include "runtime/report/lanes.h"
#include "runtime/report/memory.h"
#include "runtime/report/page.h"
#include "runtime/report/paging.h"
#include "runtime/report/tables.h"
#include "runtime/report/text.h"
#include "swap/schedule/schedule.h"
#include "swap/schedule/step_trace.h"
#include "tests/runtime/files.h"

namespace spillway {
using namespace swap;
namespace {

namespace fs = std::filesystem;
using namespace report;

constexpr int64_t kMiB = 1 << 20;
const Grid kPlot{100, 900, 0, 300};
const Axis kSecond{0, 1, 100, 900};

BytesByCategory bytes_of(Category category, int64_t bytes) {
  BytesByCategory all{};
  all[static_cast<size_t>(category)] = bytes;
  return all;
}

TrainResult small_run() {
  TrainResult r;
  r.shape = {32, 32, 32};
  r.world_size = 2;
  r.metric_name = "Dice";
  r.budget_bytes = 600 * kMiB;
  r.observed = UnlimitedProfile{1200 * kMiB, 300 * kMiB, "aten::cat", 0, 0.2};
  r.floor_bytes = 300 * kMiB;
  r.peak_bytes = 540 * kMiB;
  r.losses = {2, 1.5, 1.25};
  r.step_seconds = {0.5, 0.4, 0.3};
  r.step_kinds = {"plain", "plain", "factor"};
  r.metric = {{0, 0.1}, {3, 0.7}};
  r.weights_sha256 = "0123456789abcdef";
  r.kfac = KfacSummary();
  r.kfac->reason = "it fits";
  r.allreduce = AllreduceSummary{"2", "direct", "one level", kMiB, 0.01};
  r.predicted = Prediction{"plain", 540 * kMiB, 0.31, 0.3};
  r.paging = PagingSummary{
      .kind = "plain",
      .absences = {{"aten::cat", "aten::conv", "aten::conv_backward", Category::activations, 64 * kMiB, 0.2, true}},
      .footprints = {{"aten::conv_backward", 100 * kMiB, 50 * kMiB}},
      .compute_seconds = 0.3,
      .shortest_compute_seconds = 0.3,
      .predicted_seconds = 0.31,
      .exposed_seconds = 0.001,
      .bound_seconds = 0.3,
      .bytes_out = kMiB,
      .bytes_in = kMiB};
  r.recording.step = 2;
  r.recording.seconds = 1;
  r.recording.memory = {{0, bytes_of(Category::weights, 100 * kMiB)},
                        {0.25, bytes_of(Category::activations, 540 * kMiB)},
                        {0.75, bytes_of(Category::gradients, 50 * kMiB)}};
  r.recording.events = {{"aten::conv", "compute", 0, 0.5, 0}, {"page", "copy out", 0.1, 0.2, kMiB}};
  return r;
}

/// Returns the reason why `text` is not well-formed XML, or an empty text when it is.
std::string xml_fault(std::string_view text) {
  static const std::regex tag(R"re(<(/?)([A-Za-z][\w]*)((?:\s+[\w:-]+="[^"<]*")*)\s*(/?)>)re");
  static const std::regex entity("&(?:lt|gt|amp|quot|#39);");
  std::vector<std::string> open;
  for (size_t at = text.starts_with("<!DOCTYPE html>") ? 15 : 0; at < text.size(); ++at) {
    const std::string rest(text.substr(at, 4000));
    std::smatch match;
    if (static_cast<unsigned char>(text[at]) < 0x20 && text[at] != '\n') return str("control character at ", at);
    if (text[at] == '&' && !std::regex_search(rest, entity, std::regex_constants::match_continuous))
      return "entity in: " + rest.substr(0, 60);
    if (text[at] != '<') continue;
    const size_t end = text.find('>', at);  // paths are too long for the regular expression
    std::string one(text.substr(at, end - at + 1));
    one = std::regex_replace(one, std::regex(R"re(d="[MLHVZ0-9 .-]*")re"), R"(d="")");
    if (!std::regex_match(one, match, tag)) return "tag: " + one.substr(0, 60);
    if (match[1].length() == 0 && match[4].length() == 0) open.push_back(match[2]);
    if (match[1].length() > 0 && (open.empty() || open.back() != match[2])) return "not open: " + one;
    if (match[1].length() > 0) open.pop_back();
    at = end;
  }
  return open.empty() ? "" : "not closed: " + open.back();
}

size_t count(std::string_view text, std::string_view part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

bool contains(std::string_view text, std::string_view part) {
  return count(text, part) > 0;
}

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

}  // namespace

TEST(ReportPageTest, IsWellFormedAndNeedsNothingFromOutside) {
  const std::string page = draw_page(small_run(), {{"unlimited", small_run()}, {"adam", TrainResult()}});
  EXPECT_EQ(xml_fault(page), "");
  for (const char* part : {"<script", "src=", "href=", "url(", "@import"}) EXPECT_FALSE(contains(page, part)) << part;
  EXPECT_EQ(count(page, "://"), 2u);  // the namespace's name, chrome://tracing
  for (const char* part : {"budget 600 MiB", "32×32×32", "step 3, factor", "it fits", "one level", "aten::conv"})
    EXPECT_TRUE(contains(page, part)) << part;
}

TEST(ReportPageTest, TheCheckerOfTheseTestsFindsFaults) {
  EXPECT_EQ(xml_fault("<a b=\"c\">&lt;<d/></a>"), "");
  for (const char* bad : {"<a>", "<a></b>", "<a b=c/>", "a & b", "<a b=\"<\"/>", "\x01"}) EXPECT_NE(xml_fault(bad), "");
}

TEST(ReportPageTest, EscapesWhatOthersNamed) {
  const std::string nasty = "</title><x>\"'&\x01\xff]]>";
  TrainResult r = small_run();
  for (std::string* text :
       {&r.options.model, &r.options.data, &r.options.optimizer, &r.metric_name, &r.weights_sha256, &r.step_kinds[2],
        &r.observed->floor_operator, &r.kfac->strategy, &r.kfac->reason, &r.allreduce->levels,
        &r.allreduce->explanation, &r.recording.events[0].name, &r.recording.events[1].lane})
    *text = nasty;
  const std::string page = draw_page(r, {{nasty, r}});
  EXPECT_EQ(xml_fault(page), "");
  EXPECT_FALSE(contains(page, "<x>"));
  EXPECT_FALSE(contains(page, "\xff"));
  EXPECT_TRUE(contains(page, "&lt;x&gt;&quot;&#39;&amp;\xEF\xBF\xBD\xEF\xBF\xBD]]&gt;"));
}

TEST(ReportPageTest, HoldsForRunsWithLittleInThem) {
  std::vector<TrainResult> runs(6, small_run());
  runs[0] = TrainResult();
  runs[1].recording = {};
  runs[2].budget_bytes = kUnlimitedBytes, runs[2].observed.reset(), runs[2].metric.clear();
  runs[3].losses = {NAN}, runs[3].step_seconds = {0}, runs[3].step_kinds.clear();
  runs[4].recording.seconds = 0, runs[4].recording.memory = {{0, {}}}, runs[4].recording.events.clear();
  runs[5].world_size = 1, runs[5].shape = {}, runs[5].kfac = KfacSummary(), runs[5].recording.memory.clear();
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::string page = draw_page(runs[i], {{"other", runs[(i + 1) % runs.size()]}});
    EXPECT_EQ(xml_fault(page), "") << i;
    EXPECT_EQ(xml_fault(draw_page(runs[i], {})), "") << i;
    std::string lower = page;
    for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    EXPECT_FALSE(std::regex_search(lower, std::regex(R"re("[a-z0-9 .-]*(nan|inf)[ "])re"))) << i;  // in an attribute
  }
  EXPECT_TRUE(contains(draw_page(runs[1], {}), "No step was recorded"));
  EXPECT_FALSE(contains(draw_page(runs[2], {}), "class=\"budget\""));
}

TEST(ReportPageTest, StaysSmallHoweverMuchWasRecorded) {
  TrainResult r = small_run();
  for (int i = 0; i < 200'000; ++i) {
    const double at = i / 200'000.;
    BytesByCategory bytes;
    for (size_t c = 0; c < kCategoryCount; ++c) bytes[c] = (i * 7919 + static_cast<int>(c) * 31) % 1000 * 50'000;
    r.recording.memory.push_back({at, bytes});
    for (const char* lane : {"compute", "copy out", "copy in", "communication"})
      r.recording.events.push_back({"an::operator_with_a_name", lane, at, 0.5e-5, 1});
    r.losses.push_back(1 + i % 77);
  }
  std::sort(r.recording.memory.begin(), r.recording.memory.end(),
            [](auto& a, auto& b) { return a.seconds < b.seconds; });
  EXPECT_LT(draw_page(r, {{"a", r}, {"b", r}}).size(), 1'500'000u);
}

TEST(ReportMemoryTest, DrawsTheBudgetWhereTheAxisHasIt) {
  const std::string svg = draw_memory(small_run(), kPlot, kSecond);
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
  const std::string svg = draw_memory(r, kPlot, kSecond);
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
  const std::string svg = draw_memory(r, kPlot, kSecond);
  const double per_mib = (300 - budget_height(svg)) / 600;
  EXPECT_NEAR(top_of(svg, "weights"), 300 - per_mib * 590, 0.2);
  EXPECT_NEAR(number(svg, R"re(V([\d.]+)H900V300Z)re"), 300 - per_mib * 10, 0.2);  // the level of the last sample
}

TEST(ReportMemoryTest, NamesALevelFarAboveInsteadOfFlatteningTheRest) {
  TrainResult r = small_run();
  r.budget_bytes = 100 * 1024 * kMiB;
  const std::string svg = draw_memory(r, kPlot, kSecond);
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
  for (int i = 0; i < 20; ++i) recording.events.push_back({str("op", i), "compute", 0, 1. + i, 0});
  recording.events.push_back({"page", "copy out", 0, 1e6, 0});
  const std::string table = draw_operators(recording);
  EXPECT_EQ(count(table, "<tr>"), 14u);  // with the row of headings
  EXPECT_LT(table.find(">op19<"), table.find(">op8<"));
  EXPECT_TRUE(contains(table, ">8 others<"));
  EXPECT_FALSE(contains(table, ">page<"));
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
  trace.operators[3].leased_bytes = 100;
  trace.slots = {{.bytes = 100, .birth = 0, .born_as_output = true, .death = 3, .uses = {0, 1, 3}, .writes = {0}},
                 {.bytes = 300, .uses = {2}}};
  Schedule schedule;
  schedule.actions.page_ins = {{0, 2, 3}, {1, 3, 4 + 2}};  // the weight is paged in at the end of the step before
  const PagingSummary summary = summarise_paging(trace, schedule);
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

class ReportFilesTest : public ScratchFolder {
 protected:
  size_t files() const {
    return static_cast<size_t>(
        std::distance(fs::recursive_directory_iterator(dir_), fs::recursive_directory_iterator()));
  }
  /// Expects that `call` fails with `code`, naming `path`.
  static void expect_failure(const std::function<void()>& call, std::errc code, const fs::path& path) {
    try {
      call();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::system_error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      EXPECT_TRUE(contains(error.what(), path.string())) << error.what();
      EXPECT_TRUE(contains(error.what(), std::make_error_code(code).message())) << error.what();
    }
  }
};

TEST_F(ReportFilesTest, WritesThePageAndATraceWithAThreadPerLane) {
  TrainResult r = small_run();
  r.recording.events[0].name = "not UTF-8: \xff";
  write_report(dir_ / "a" / "b", r, {});
  EXPECT_EQ(read_file(dir_ / "a" / "b" / "report.html"), draw_page(r, {}));
  const auto trace = nlohmann::json::parse(read_file(dir_ / "a" / "b" / "trace.json"))["traceEvents"];
  ASSERT_EQ(trace.size(), 4u);
  EXPECT_EQ(trace[2]["args"]["name"], "copy out");
  EXPECT_EQ(trace[3]["tid"], trace[2]["tid"]);
  EXPECT_EQ(trace[3]["ts"], 0.1 * 1e6);
  EXPECT_EQ(files(), 4u);
}

TEST_F(ReportFilesTest, AFullDiskKeepsTheOldReportAndLeavesNoHalfOne) {
  for (const char* full : {"trace.json", "report.html"}) {
    write_file(dir_ / "report.html", "old page");
    write_file(dir_ / "trace.json", "old trace");
    fs::create_symlink("/dev/full", dir_ / (std::string(full) + ".part"));
    expect_failure([&] { write_report(dir_, small_run(), {}); }, std::errc::no_space_on_device, dir_ / full);
    EXPECT_EQ(read_file(dir_ / "report.html"), "old page");
    EXPECT_EQ(read_file(dir_ / "trace.json"), "old trace");
    EXPECT_EQ(files(), 2u);
  }
}

TEST_F(ReportFilesTest, AFileThatEndsInTheMiddleIsNotKept) {
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  auto* handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit few = before;
  few.rlim_cur = 2000;  // enough for the trace
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &few), 0);
  expect_failure([&] { write_report(dir_, small_run(), {}); }, std::errc::file_too_large, dir_ / "report.html");
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(files(), 0u);
}

TEST_F(ReportFilesTest, ChecksAFolderAndLeavesNothingInIt) {
  check_report_dir(dir_ / "new" / "folder");
  EXPECT_TRUE(fs::is_directory(dir_ / "new" / "folder"));
  EXPECT_EQ(files(), 2u);
  write_file(dir_ / "report.html", "old page");
  check_report_dir(dir_);
  EXPECT_EQ(read_file(dir_ / "report.html"), "old page");
}

TEST_F(ReportFilesTest, RefusesFoldersThatCannotHoldAReport) {
  write_file(dir_ / "file", "");
  expect_failure([&] { check_report_dir(dir_ / "file"); }, std::errc::not_a_directory, dir_ / "file");
  expect_failure([&] { check_report_dir(dir_ / "file" / "under"); }, std::errc::not_a_directory,
                 dir_ / "file" / "under");
  expect_failure([&] { write_report(dir_ / "file", small_run(), {}); }, std::errc::not_a_directory, dir_ / "file");
  fs::create_directories(dir_ / "report.html");
  expect_failure([&] { check_report_dir(dir_); }, std::errc::is_a_directory, dir_ / "report.html");
  fs::remove(dir_ / "report.html");
  fs::create_symlink("/dev/full", dir_ / "report.html.part");
  expect_failure([&] { check_report_dir(dir_); }, std::errc::no_space_on_device, dir_ / "report.html");
  EXPECT_EQ(files(), 1u);
}

}  // namespace spillway
