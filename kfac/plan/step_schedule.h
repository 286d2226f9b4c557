/// Numbers that may change with the optimizer step. LibTorch-free.
#pragma once
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace spillway::kfac {

/// A constant, or a function of the optimizer step (counted from 0). The function is called on the owner's thread,
/// several times for a step; it must give the same number each time, and on every rank.
class Scheduled {
 public:
  Scheduled(double value) : value_(value) {}  // NOLINT: 0.3 is a schedule
  Scheduled(std::function<double(int64_t step)> function) : function_(std::move(function)) {}  // NOLINT: so is this

  double at(int64_t step) const { return function_ ? function_(step) : value_; }
  bool is_constant() const { return !function_; }

 private:
  double value_ = 0;
  std::function<double(int64_t step)> function_ = nullptr;
};

/// value / (1 + step/steps): half of `value` after `steps`; infinite `steps` keep it.
inline Scheduled harmonic(double value, double steps) {
  return Scheduled([=](int64_t step) { return value / (1 + static_cast<double>(step) / steps); });
}

/// From step `step` on, a number is `factor` times as large.
struct StepDecay {
  int64_t step;
  double factor;
};

/// `value` times the factors of the decays whose step has come, in any order (SC'20 §V-C: damping shrinks and intervals
/// grow at given epochs).
inline Scheduled decayed(const Scheduled& value, std::vector<StepDecay> decays) {
  return Scheduled([value, decays = std::move(decays)](int64_t step) {
    double now = value.at(step);
    for (const auto& decay : decays)
      if (step >= decay.step) now *= decay.factor;
    return now;
  });
}

}  // namespace spillway::kfac
