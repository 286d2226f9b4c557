#include "kfac/refresh/background_renewals.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "core/clock.h"

namespace spillway::kfac {
namespace {

/// Returns one stack for each factor that the rank decomposes.
std::vector<MatrixStack> stacks_of(const Setup& setup) {
  std::vector<MatrixStack> all;
  for (const FactorId& id : setup.owned) {
    const auto [role, side, count, rank] = setup.factor(id);
    const auto type = state_options(setup.layers[id.layer].weight).dtype();
    all.push_back({count, side, static_cast<int64_t>(type.itemsize())});
  }
  return all;
}

}  // namespace

BackgroundRenewals::BackgroundRenewals(const Setup& setup, const StagedFactors& staged, FactorRenewals& renewals,
                                       Tally& tally)
    : setup_(setup), staged_(staged), renewals_(renewals), tally_(tally), solver_(stacks_of(setup)) {}

Eigenbasis BackgroundRenewals::pending(const FactorId& id) {
  const auto job = std::find(setup_.owned.begin(), setup_.owned.end(), id);
  if (job == setup_.owned.end()) return {};
  solver_.wait();
  const size_t stack = job - setup_.owned.begin();
  const auto [role, side, count, rank] = setup_.factor(id);
  const auto type = state_options(setup_.layers[id.layer].weight).device(at::kCPU);
  return {at::from_blob(solver_.matrices(stack), {count, side, side}, type),
          at::from_blob(solver_.values(stack), {count, side}, type)};
}

void BackgroundRenewals::start() {
  Stopwatch watch(tally_.seconds.decompose);
  for (const FactorId& id : setup_.owned) {
    pending(id).vectors.copy_(staged_.average(id));
    renewals_.count(id);
  }
  solver_.start();
}

void BackgroundRenewals::adopt(const OpenRefresh& refresh) {
  Stopwatch watch(tally_.seconds.decompose);
  for (const FactorId& id : setup_.owned) {
    const auto [rows, values] = pending(id);
    if (at::isfinite(values.sum() + rows.sum()).item<bool>()) {
      const auto basis = renewals_.basis(refresh, id);
      basis.vectors.copy_(rows.transpose(1, 2));
      basis.values.copy_(values.clamp_min(0));
    } else {
      renewals_.keep_eigenvectors(refresh, id);
    }
  }
}

}  // namespace spillway::kfac
