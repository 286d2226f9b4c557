#include "runtime/dry_runs/host_gaps.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "core/bytes.h"
#include "core/median.h"
#include "runtime/passes/random_state.h"
#include "runtime/training/training_run.h"
#include "swap/schedule/step_trace.h"
#include "swap/shapes/shape_kernels.h"

namespace spillway::runtime {
namespace {

/// The steps until a step's time has settled, and those that are measured.
constexpr int kWarmUp = 4, kMeasured = 9;

/// Tells the times of kernels, and by a "gap" of 1 s each operator of a backward pass.
class BackwardMarked final : public swap::KernelTimes {
 public:
  explicit BackwardMarked(swap::MeasuredTimes& kernels) : kernels_(kernels) {}
  double seconds(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) override {
    return kernels_.seconds(op, arguments);
  }
  double gap_seconds(const c10::OperatorHandle&) const override { return swap::in_backward() ? 1 : 0; }

 private:
  swap::MeasuredTimes& kernels_;
};

TrainOptions small_bert() {
  TrainOptions options;
  options.model.name = "bert-base";
  options.model.layers = 2;
  options.model.hidden = 24;
  options.data.source = "synthetic:8";
  options.data.batch = 1;
  options.data.cases = 4;
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

/// Returns the mean seconds of operators in forward and in backward passes beyond those of their kernels.
std::array<double, 2> beyond_kernels(const swap::StepTrace& real, const swap::StepTrace& dry) {
  std::array<double, 2> sums{}, counts{};
  for (size_t i = 0; i < std::min(real.operators.size(), dry.operators.size()); ++i) {
    const auto pass = static_cast<size_t>(dry.operators[i].host_seconds);
    sums[pass] += real.operators[i].seconds + real.operators[i].host_seconds - dry.operators[i].seconds;
    counts[pass] += 1;
  }
  return {sums[0] / std::max(1.0, counts[0]), sums[1] / std::max(1.0, counts[1])};
}

}  // namespace

swap::HostGaps measure_host_gaps(swap::MeasuredTimes& kernels) {
  const RandomState random(at::Device(at::kCPU));
  RunContext on_paper = make_context(small_bert(), nullptr);
  const RunContext context = on_paper;
  on_paper.kernels = swap::make_shape_kernels(std::make_shared<BackwardMarked>(kernels));
  (void)traces_of(on_paper);
  kernels.measure();
  const swap::StepTrace dry = traces_of(on_paper).back();
  std::vector<double> forward, backward;
  for (const swap::StepTrace& real : traces_of(context)) {
    const auto [of_forward, of_backward] = beyond_kernels(real, dry);
    forward.push_back(of_forward);
    backward.push_back(of_backward);
  }
  random.restore();
  return {std::max(0.0, median(std::move(forward))), std::max(0.0, median(std::move(backward)))};
}

}  // namespace spillway::runtime
