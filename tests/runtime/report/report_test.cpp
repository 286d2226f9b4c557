// Tests of a report as a whole: its page, and its files.
#include "runtime/report/report.h"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>
#include <regex>

#include "runtime/report/page.h"
#include "tests/runtime/files.h"
#include "tests/runtime/report/sample_report.h"

namespace spillway {
namespace fs = std::filesystem;
using namespace report;

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
       {&r.options.model.name, &r.options.data.source, &r.metric_name, &r.weights_sha256, &r.step_kinds[2],
        &r.observed->floor_operator, &r.kfac->strategy, &r.kfac->reason, &r.allreduce->levels,
        &r.allreduce->explanation, &r.recording.events[0].name, &r.recording.events[1].lane})
    *text = nasty;
  const std::string page = draw_page(r, {{nasty, r}});
  EXPECT_EQ(xml_fault(page), "");
  EXPECT_FALSE(contains(page, "<x>"));
  EXPECT_FALSE(contains(page, "\xff"));
  EXPECT_TRUE(contains(page, "&lt;x&gt;&quot;&#39;&amp;\xEF\xBF\xBD\xEF\xBF\xBD]]&gt;"));
}

TEST(ReportPageTest, TellsKfacsSecondsOfTheSlowestAndTheFastestRank) {
  TrainResult r = small_run();
  EXPECT_FALSE(contains(draw_page(r, {}), "slowest rank")) << "only one rank's are known";
  r.kfac->seconds_by_rank = {{.decompose = 7}, {.decompose = 3}};
  const std::string page = draw_page(r, {});
  EXPECT_EQ(xml_fault(page), "");
  EXPECT_TRUE(contains(page, "slowest rank"));
  for (const char* seconds : {"<td>7.00 s</td>", "<td>5.00 s</td>", "<td>3.00 s</td>"})
    EXPECT_TRUE(contains(page, seconds)) << seconds;
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

class ReportFilesTest : public ScratchFolder {
 protected:
  size_t files() const {
    return static_cast<size_t>(
        std::distance(fs::recursive_directory_iterator(dir_), fs::recursive_directory_iterator()));
  }
  /// Calls `body` while no file of this process may grow beyond `bytes`, which stands for a full disk.
  static void with_file_limit(int64_t bytes, const std::function<void()>& body) {
    rlimit before;
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    auto* handler = std::signal(SIGXFSZ, SIG_IGN);
    rlimit few = before;
    few.rlim_cur = static_cast<rlim_t>(bytes);
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &few), 0);
    body();
    setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
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

TEST_F(ReportFilesTest, AFileThatEndsInTheMiddleKeepsTheOldReportAndLeavesNoHalfOne) {
  for (const auto& [bytes, cut] :
       {std::pair(10, "trace.json"), std::pair(2000, "report.html")}) {  // the trace fits 2000
    write_file(dir_ / "report.html", "old page");
    write_file(dir_ / "trace.json", "old trace");
    with_file_limit(bytes, [&, cut = cut] {
      expect_failure([&] { write_report(dir_, small_run(), {}); }, std::errc::file_too_large, dir_ / cut);
    });
    EXPECT_EQ(read_file(dir_ / "report.html"), "old page");
    EXPECT_EQ(read_file(dir_ / "trace.json"), "old trace");
    EXPECT_EQ(files(), 2u);
  }
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
  with_file_limit(
      100, [&] { expect_failure([&] { check_report_dir(dir_); }, std::errc::file_too_large, dir_ / "trace.json"); });
  EXPECT_EQ(files(), 1u);
}

}  // namespace spillway
