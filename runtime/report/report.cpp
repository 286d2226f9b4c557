#include "runtime/report/report.h"

#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/new_file.h"
#include "runtime/report/page.h"
#include "runtime/report/pipeline.h"

namespace spillway {
namespace {

namespace fs = std::filesystem;

void make_folder(const fs::path& dir) {
  std::error_code error;
  fs::create_directories(dir, error);
  if (!error && !fs::is_directory(dir, error) && !error) error = std::make_error_code(std::errc::not_a_directory);
  if (error) throw std::system_error(error, str("[report] cannot make folder ", dir.string()));
}

/// A report's files, which are on the disk before either takes its final name.
class ReportFiles {
 public:
  ReportFiles(const fs::path& dir, std::string_view trace, std::string_view page)
      : trace_(dir / "trace.json", Readers::everyone), page_(dir / "report.html", Readers::everyone) {
    trace_.write(trace), page_.write(page);
    trace_.flush(), page_.flush();
  }
  void commit() { trace_.commit(), page_.commit(); }

 private:
  NewFile trace_, page_;
};

}  // namespace

void write_report(const fs::path& dir, const TrainResult& result, const std::vector<NamedResult>& others) {
  make_folder(dir);
  std::ostringstream trace;
  std::vector<TraceEvent> events = result.recording.events;
  if (result.pipeline)
    for (TraceEvent& event : report::pipeline_events(*result.pipeline)) events.push_back(std::move(event));
  write_chrome_json(trace, events);
  ReportFiles(dir, trace.view(), report::draw_page(result, others)).commit();
}

void check_report_dir(const fs::path& dir) {
  make_folder(dir);
  const std::string some(4096, '\n');  // an empty file fits on a full disk
  const ReportFiles written_and_removed(dir, some, some);
}

}  // namespace spillway
