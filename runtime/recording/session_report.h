/// The content of a Session's report.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "core/category.h"
#include "runtime/recording/paging_summary.h"
#include "runtime/recording/step_recording.h"

namespace spillway {

/// The figures of a Session, and one of its steps from inside.
struct SessionReport {
  std::string device;
  int64_t budget_bytes = kUnlimitedBytes;
  int64_t peak_bytes = 0;
  BytesByCategory peak_by_category{};
  int64_t floor_bytes = 0;  ///< bytes of the neediest operator
  std::string floor_operator;
  int64_t host_peak_bytes = 0;
  int64_t disk_peak_bytes = 0;
  int64_t bytes_out = 0;
  int64_t bytes_in = 0;
  int64_t replays = 0;
  double exposed_seconds = 0;
  std::map<std::string, std::vector<double>> seconds_by_kind;  ///< seconds of every step, in order
  std::string kind;                                            ///< the kind of the recorded step
  StepRecording recording;
  std::optional<PagingSummary> paging;  ///< the paging of that kind, where it was planned
};

}  // namespace spillway
