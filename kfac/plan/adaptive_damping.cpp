#include "kfac/plan/adaptive_damping.h"

#include <algorithm>
#include <cmath>

namespace spillway::kfac {

double predicted_reduction(double product, double kl_clip, double lr) {
  if (product == 0) return 0;
  const double length = lr * std::min(1.0, std::sqrt(kl_clip / (lr * lr * product)));
  return length * (1 - length / 2) * product;
}

double damping_change(double rho, int64_t steps) {
  constexpr double kOmega = 19.0 / 20;
  if (rho > 0.75) return std::pow(kOmega, static_cast<double>(steps));
  if (rho >= 0.25) return 1;
  return std::pow(kOmega, -static_cast<double>(steps));
}

}  // namespace spillway::kfac
