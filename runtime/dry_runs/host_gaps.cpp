#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <vector>

#include "core/bytes.h"
#include "runtime/dry_runs/machine_times.h"
#include "runtime/passes/random_state.h"
#include "runtime/training/training_run.h"
#include "swap/schedule/step_trace.h"
#include "swap/shapes/shape_kernels.h"

namespace spillway::runtime {
namespace {

/// The steps until a step's time has settled, and those that are measured.
constexpr int kWarmUp = 4, kMeasured = 9;

/// Marks the operators of backward passes by a "gap" of 1 s. Kernels take no time.
class BackwardMarks final : public swap::KernelTimes {
 public:
  double seconds(const c10::OperatorHandle&, c10::ArrayRef<c10::IValue>) override { return 0; }
  double gap_seconds(const c10::OperatorHandle&) const override { return swap::in_backward() ? 1 : 0; }
};

TrainOptions small_bert() {
  TrainOptions options;
  options.model.name = "bert-base";
  options.model.layers = 2;
  options.model.hidden = 128;
  options.data.source = "synthetic:32";
  options.data.batch = 4;
  options.data.cases = 8;
  return options;
}

/// Runs steps, and returns the traces of those that are measured.
std::vector<swap::StepTrace> traces_of(const RunContext& context) {
  TrainingRun run(context, kUnlimitedBytes, 1);
  std::vector<swap::StepTrace> traces;
  for (int step = 0; step < kWarmUp + kMeasured; ++step) {
    run.step();
    if (step >= kWarmUp) traces.push_back(*run.session().traces().front());
  }
  return traces;
}

/// Returns the mean seconds before operators in forward and in backward passes, which `marks` tells apart.
std::array<double, 2> mean_gaps(const swap::StepTrace& real, const swap::StepTrace& marks) {
  std::array<double, 2> sums{}, counts{};
  for (size_t i = 0; i < std::min(real.operators.size(), marks.operators.size()); ++i) {
    const auto pass = static_cast<size_t>(marks.operators[i].host_seconds);
    sums[pass] += real.operators[i].host_seconds;
    counts[pass] += 1;
  }
  return {sums[0] / std::max(1.0, counts[0]), sums[1] / std::max(1.0, counts[1])};
}

}  // namespace

swap::HostGaps measure_host_gaps() {
  const RandomState random{at::Device(at::kCPU)};
  RunContext on_paper = make_context(small_bert(), nullptr);
  const RunContext context = on_paper;
  on_paper.kernels = swap::make_shape_kernels(std::make_shared<BackwardMarks>());
  const swap::StepTrace marks = traces_of(on_paper).back();
  constexpr double kNever = std::numeric_limits<double>::infinity();
  swap::HostGaps fastest{kNever, kNever};
  for (const swap::StepTrace& real : traces_of(context)) {
    const auto [forward, backward] = mean_gaps(real, marks);
    fastest = {std::min(fastest.forward, forward), std::min(fastest.backward, backward)};
  }
  random.restore();
  return fastest;
}

}  // namespace spillway::runtime
