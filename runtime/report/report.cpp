#include "runtime/report/report.h"

#include <sstream>

#include "core/atomic_file.h"
#include "runtime/report/page.h"

namespace spillway {

void write_report(const std::filesystem::path& dir, const TrainResult& result, const std::vector<NamedResult>& others) {
  report::make_folder(dir);
  std::ostringstream trace;
  write_chrome_json(trace, result.recording.events);
  // Both files are on the disk before either takes its final name.
  report::PendingFile trace_file(dir / "trace.json", trace.view());
  report::PendingFile page_file(dir / "report.html", report::draw_page(result, others));
  trace_file.commit();
  page_file.commit();
}

void check_report_dir(const std::filesystem::path& dir) {
  report::make_folder(dir);
  const std::string some(4096, '\n');  // an empty file fits on a full disk
  report::PendingFile trace_file(dir / "trace.json", some);
  report::PendingFile page_file(dir / "report.html", some);
}

}  // namespace spillway
