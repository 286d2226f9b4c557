#include "kfac/state_dict.h"

#include <ATen/ATen.h>

#include <bit>

#include "core/error.h"
#include "kfac/plan/counters.h"

namespace spillway::kfac {
namespace {

constexpr int64_t kCounterCount = 11;

}  // namespace

at::Tensor pack(const KfacCounters& c) {
  return at::tensor({c.steps, c.factor_updates, c.decompositions, c.dropped_factors, c.failed_decompositions,
                     c.warm_starts, c.last_factor_step, c.last_decomposition_step, c.last_launch_step,
                     c.last_adaptation, std::bit_cast<int64_t>(c.damping_scale)},
                    at::kLong);
}

KfacCounters unpack(const at::Tensor& packed) {
  if (!packed.defined() || packed.scalar_type() != at::kLong || packed.numel() != kCounterCount)
    throw BadRequest(str("[kfac.unpack] counters are ", kCounterCount, " int64 numbers"));
  const auto host = packed.cpu();
  const auto count = [&](int64_t i) { return host[i].item<int64_t>(); };
  return {.steps = count(0),
          .factor_updates = count(1),
          .decompositions = count(2),
          .dropped_factors = count(3),
          .failed_decompositions = count(4),
          .warm_starts = count(5),
          .last_factor_step = count(6),
          .last_decomposition_step = count(7),
          .last_launch_step = count(8),
          .last_adaptation = count(9),
          .damping_scale = std::bit_cast<double>(count(10))};
}

}  // namespace spillway::kfac
