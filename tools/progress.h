/// What a person sees while a run goes on, and when it has ended.
#pragma once
#include <chrono>
#include <vector>

#include "runtime/report.h"
#include "runtime/train.h"

namespace spillway::tools {

/// On a terminal one line that changes; elsewhere a line every ten steps. Silent unless it `speaks`.
class Progress final : public TrainListener {
 public:
  explicit Progress(bool speaks);
  void heading(const std::string& text);
  void on_decision(const std::string& text) override;
  void on_step(int64_t step, int64_t steps, const StepOutcome& outcome, int64_t resident_bytes) override;
  void on_metric(const MetricPoint& point) override;

 private:
  void end_line();

  const bool speaks_;
  const bool terminal_;
  bool line_open_ = false;
  double since_line_seconds_ = 0;
  int64_t since_line_steps_ = 0;
};

/// The table at the end.
void print_summary(const TrainResult& result, const std::vector<NamedResult>& others);

}  // namespace spillway::tools
