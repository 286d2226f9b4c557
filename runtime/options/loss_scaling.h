/// The user's options for the scale of a loss. LibTorch-free.
#pragma once
#include <cstdint>

namespace spillway {

/// Options of loss scaling under `amp = fp16`.
struct LossScaling {
  double initial = 65536;          ///< ≥ 1; powers of two scale without rounding
  int64_t growth_interval = 2000;  ///< steps without an overflow after which the scale doubles, ≥ 1

  /// Throws BadRequest naming the field, its value and the allowed range.
  void validate() const;
};

}  // namespace spillway
