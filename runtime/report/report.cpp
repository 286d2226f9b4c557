#include "runtime/report/report.h"

#include <utility>

#include "runtime/pictures/report_files.h"
#include "runtime/report/page.h"
#include "runtime/report/pipeline.h"

namespace spillway {

void write_report(const std::filesystem::path& dir, const TrainResult& result, const std::vector<NamedResult>& others) {
  std::vector<TraceEvent> events = result.recording.events;
  if (result.pipeline)
    for (TraceEvent& event : report::pipeline_events(*result.pipeline)) events.push_back(std::move(event));
  report::write_files(dir, report::draw_page(result, others), events);
}

void check_report_dir(const std::filesystem::path& dir) {
  report::check_files(dir);
}

}  // namespace spillway
