/// The progress of a run as the user sees it, and the summary at its end.
#pragma once
#include <functional>
#include <vector>

#include "core/ledger.h"
#include "runtime/report/report.h"
#include "runtime/training/train.h"

namespace spillway::tools {

/// A listener that prints a run's progress when it `prints`, else nothing. On a terminal it changes one line. Elsewhere
/// it prints a line every ten steps, or every few seconds. Under a launcher (`launched`) it never takes stdout for a
/// terminal, because the terminals that launchers give their ranks are no real ones.
class Progress final : public TrainListener {
 public:
  /// Makes the listener. `ledger` is the device's ledger.
  Progress(bool prints, bool launched, const Ledger& ledger);
  /// Sets the check that is called once, before the first run starts.
  void before_start(std::function<void()> check) { check_ = std::move(check); }
  void heading(const std::string& text);
  void on_start() override;
  void on_decision(const std::string& text) override;
  void on_step(int64_t step, int64_t steps, const StepOutcome& outcome, int64_t resident_bytes) override;
  void on_metric(const MetricPoint& point) override;

 private:
  void end_line();

  const bool prints_;
  const bool terminal_;
  const Ledger& ledger_;
  bool line_open_ = false;
  std::function<void()> check_;
  double since_line_seconds_ = 0;  // seconds of the steps since the last line
  int64_t since_line_steps_ = 0;
};

/// Prints the table at the end. `others` are the runs that are compared with `result`.
void print_summary(const TrainResult& result, const std::vector<NamedResult>& others);

}  // namespace spillway::tools
