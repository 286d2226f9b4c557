/// What a person sees while a run goes on, and when it has ended.
#pragma once
#include <functional>
#include <vector>

#include "core/ledger.h"
#include "runtime/report/report.h"
#include "runtime/training/train.h"

namespace spillway::tools {

/// On a terminal one line that changes; elsewhere a line every ten steps, or every few seconds. Silent unless it
/// `speaks`. Launchers give their ranks a terminal of its own kind, which is none: `launched` says so.
class Progress final : public TrainListener {
 public:
  /// `ledger` is the device's.
  Progress(bool speaks, bool launched, const Ledger& ledger);
  /// What to do before the first run starts; called once.
  void before_start(std::function<void()> check) { check_ = std::move(check); }
  void heading(const std::string& text);
  void on_start() override;
  void on_decision(const std::string& text) override;
  void on_step(int64_t step, int64_t steps, const StepOutcome& outcome, int64_t resident_bytes) override;
  void on_metric(const MetricPoint& point) override;

 private:
  void end_line();

  const bool speaks_;
  const bool terminal_;
  const Ledger& ledger_;
  bool line_open_ = false;
  std::function<void()> check_;
  double since_line_seconds_ = 0;  // of the steps since the last line
  int64_t since_line_steps_ = 0;
};

/// The table at the end.
void print_summary(const TrainResult& result, const std::vector<NamedResult>& others);

}  // namespace spillway::tools
