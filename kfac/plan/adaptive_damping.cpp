#include "kfac/plan/adaptive_damping.h"

#include <cmath>

namespace spillway::kfac {

double predicted_reduction(double product, double length) {
  return length * (1 - length / 2) * product;
}

double damping_change(double rho, int64_t steps) {
  constexpr double kOmega = 19.0 / 20;
  if (rho > 0.75) return std::pow(kOmega, static_cast<double>(steps));
  if (rho >= 0.25) return 1;
  return std::pow(kOmega, -static_cast<double>(steps));
}

}  // namespace spillway::kfac
