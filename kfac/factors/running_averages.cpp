#include "kfac/factors/running_averages.h"

#include <ATen/ATen.h>

#include "kfac/factors/packed_triangles.h"

namespace spillway::kfac {
namespace {

// Tensors that are averaged entry by entry. They are triangles, or whole matrices where 16 bits are kept.
struct Entries {
  at::Tensor running, fresh;
  std::vector<at::Tensor> diagonals;  // views of some entries of `running`
};

Entries entries_of(const AverageUpdate& update) {
  if (update.running.diagonal.defined()) {
    const auto running = update.running.load();
    return {running, update.fresh, {running.diagonal(0, -2, -1)}};
  }
  const auto packed = at::empty_like(update.running.entries);
  pack_triangles({update.fresh}, packed.flatten());
  return {update.running.entries, packed, packed_diagonals(update.running.entries)};
}

// Returns the sums as [rows, …].
at::Tensor rows_of(const std::vector<at::Tensor>& sums, size_t rows) {
  return at::stack(sums).view({static_cast<int64_t>(rows), -1});
}

}  // namespace

void update_running_averages(const std::vector<AverageUpdate>& updates, double decay, const at::Tensor& dropped) {
  if (updates.empty()) return;
  std::vector<Entries> all;
  std::vector<at::Tensor> traces, sums;
  for (const AverageUpdate& update : updates) {
    all.push_back(entries_of(update));
    traces.push_back(update.fresh.diagonal(0, -2, -1).sum());
    for (const auto& diagonal : all.back().diagonals) sums.push_back(diagonal.sum());
  }
  // No entry of a Gram matrix is larger than its largest diagonal entry, so the trace tells whether all are finite.
  const auto fresh_trace = at::stack(traces), finite = at::isfinite(fresh_trace);
  dropped.add_(finite.logical_not().sum());
  const auto usable = finite.logical_and(fresh_trace.gt(0));
  const auto started = rows_of(sums, updates.size()).sum(1).gt(0), starts = started.logical_not().logical_and(usable);
  const auto number = [&](double value) { return at::full({}, value, fresh_trace.options()); };
  const auto later = number(1 - decay) * usable, first = at::where(starts, number(1), later);
  for (size_t i = 0; i < updates.size(); ++i) {
    const auto& [running, fresh, diagonals] = all[i];
    const auto k = static_cast<int64_t>(i);
    if (updates[i].start > 0)
      for (const auto& diagonal : diagonals) diagonal.add_(starts[k], updates[i].start);
    const auto step = (updates[i].start > 0 ? later : first)[k].to(running.scalar_type());
    running.lerp_(fresh.nan_to_num_(0, 0, 0), step);
    if (updates[i].running.diagonal.defined()) updates[i].running.store(running);
  }
}

}  // namespace spillway::kfac
