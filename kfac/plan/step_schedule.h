/// Numbers that may change with the optimizer step. LibTorch-free.
#pragma once
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace spillway::kfac {

/// A constant, or a function of the optimizer step (counted from 0). The function is called on the thread that owns the
/// Kfac, several times for a step. It must give the same number each time, and on every rank.
class StepSchedule {
 public:
  StepSchedule(double value) : value_(value) {}  // NOLINT: 0.3 is a schedule
  StepSchedule(std::function<double(int64_t step)> function) : function_(std::move(function)) {}  // NOLINT: so is this

  double at(int64_t step) const { return function_ ? function_(step) : value_; }
  bool is_constant() const { return !function_; }

 private:
  double value_ = 0;
  std::function<double(int64_t step)> function_ = nullptr;
};

/// Returns value / (1 + step/steps): half of `value` after `steps`. Infinite `steps` keep `value` constant.
inline StepSchedule harmonic(double value, double steps) {
  return StepSchedule([=](int64_t step) { return value / (1 + static_cast<double>(step) / steps); });
}

/// A decay from step `step` on: a number is then `factor` times as large.
struct StepDecay {
  int64_t step;
  double factor;
};

/// Returns `value` times the factors of all decays whose step has come; the decays may be in any order. (SC'20 §V-C:
/// damping shrinks and intervals grow at given epochs.)
inline StepSchedule decayed(const StepSchedule& value, std::vector<StepDecay> decays) {
  return StepSchedule([value, decays = std::move(decays)](int64_t step) {
    double now = value.at(step);
    for (const auto& decay : decays)
      if (step >= decay.step) now *= decay.factor;
    return now;
  });
}

}  // namespace spillway::kfac
