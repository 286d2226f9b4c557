/// The times of this machine's kernels and copies, measured once and remembered.
#pragma once
#include <filesystem>
#include <memory>

#include "swap/shapes/measured_times.h"

namespace spillway::runtime {

/// The times of kernels as this machine takes them, what its host takes between them, and the rate of its copies. They
/// are remembered in a file of a folder, by processor, threads and version of LibTorch. Used by one thread at a time.
class MachineTimes {
 public:
  /// Reads what the folder remembers; nothing where it is empty, or the file cannot be used.
  explicit MachineTimes(const std::filesystem::path& folder);

  const std::shared_ptr<swap::MeasuredTimes>& kernels() const { return kernels_; }
  /// Measures the calls that dry runs have noted since, and the host's time between them where it is not known, and
  /// writes the file. A failure to write is no error: they are measured again then. No Session may be open on this
  /// thread. Returns the number of calls.
  int64_t measure_missing();
  /// Returns the rate of copies in bytes per second; measures it when the file did not tell it.
  double copy_rate();

 private:
  void set_gaps(const swap::HostGaps& gaps);
  void read();
  void write() const;

  const std::filesystem::path file_;
  const std::shared_ptr<swap::MeasuredTimes> kernels_ = std::make_shared<swap::MeasuredTimes>();
  bool knows_gaps_ = false;
  double copy_rate_ = 0;
};

/// Trains a small BERT for some steps, which take half a second, and returns what passes between its operators in the
/// fastest of them. No Session may be open on this thread. Leaves the default generator as it was.
swap::HostGaps measure_host_gaps();

}  // namespace spillway::runtime
