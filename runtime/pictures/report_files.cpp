#include "runtime/pictures/report_files.h"

#include <sstream>
#include <string_view>
#include <system_error>

#include "core/error.h"
#include "core/new_file.h"

namespace spillway::report {
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

void write_files(const fs::path& dir, const std::string& page, const std::vector<TraceEvent>& events) {
  make_folder(dir);
  std::ostringstream trace;
  write_chrome_json(trace, events);
  ReportFiles(dir, trace.view(), page).commit();
}

void check_files(const fs::path& dir) {
  make_folder(dir);
  const std::string some(4096, '\n');  // an empty file fits on a full disk
  const ReportFiles written_and_removed(dir, some, some);
}

}  // namespace spillway::report
