#include "kfac/refresh/factor_renewals.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "core/category.h"
#include "core/clock.h"
#include "kfac/inverse/eigenbasis_refresh.h"

namespace spillway::kfac {

void FactorRenewals::renew(OpenRefresh& refresh, const RefreshWork& piece) {
  if (piece.layers.empty()) return;
  const RenewalGroup& group = plan_.renewal(refresh.set, piece.index);
  const int64_t pieces = plan_.pieces_of(group, refresh.is_late);
  Stopwatch watch(tally_.seconds.decompose);
  if (pieces == 1) return renew_whole(refresh, group);
  const CategoryScope eigenbases(Category::eigenbases);
  OpenRenewal& open = refresh.renewals[piece.index];
  const FactorId& id = group.front();
  const bool is_last = piece.piece + 1 == pieces;
  if (setup_.options.method == Method::eigen)
    follow_piece(refresh, id, open.subspace, is_last);
  else
    invert_piece(refresh, id, open.inverse, is_last);
  if (!is_last) return;
  count(id);
  refresh.renewals.erase(piece.index);
}

void FactorRenewals::count(const FactorId& id) {
  tally_.flops.decompose += decomposition_flops(setup_.shape(id.layer), setup_.factor(id));
}

Eigenbasis FactorRenewals::basis(const OpenRefresh& refresh, const FactorId& id) {
  return inverse(refresh, id).basis(setup_.shape(id.layer), id.factor);
}

void FactorRenewals::keep_eigenvectors(const OpenRefresh& refresh, const FactorId& id) {
  tally_.failed.add_(1);
  rescale_fresh_values(staged_.average(id), inverse(refresh, id), setup_.shape(id.layer), id.factor);
}

// --- whole factors ---------------------------------------------------------------------------------------------------

void FactorRenewals::renew_whole(const OpenRefresh& refresh, const RenewalGroup& group) {
  for (const FactorId& id : group) count(id);
  const FactorId& first = group.front();
  if (setup_.options.method != Method::eigen)
    invert(refresh, first);
  else if (setup_.factor(first).is_truncated())
    follow(refresh, group);
  else if (setup_.options.warm_start > 0)
    decompose_one(refresh, first);
  else
    decompose_together(refresh, group);
}

void FactorRenewals::decompose_together(const OpenRefresh& refresh, const RenewalGroup& group) {
  std::vector<Eigenbasis> bases;
  for (const FactorId& id : group) bases.push_back(basis(refresh, id));
  const auto done = decompose(staged_.averages(group), bases);
  for (size_t g = 0; g < group.size(); ++g)
    if (!done[g]) keep_eigenvectors(refresh, group[g]);
}

void FactorRenewals::decompose_one(const OpenRefresh& refresh, const FactorId& id) {
  const auto& shape = setup_.shape(id.layer);
  // The errors of a layer's factors add up.
  const double tolerance = setup_.options.warm_start / static_cast<double>(shape.factors().size());
  const auto delta =
      factor_damping(shape, staged_.layers[id.layer].averages(), id.factor, refresh.damping.of(id.layer));
  const auto outcome = kfac::refresh(staged_.average(id), basis(refresh, id), delta, tolerance);
  tally_.counters.warm_starts += outcome == Refreshed::rescaled;
  if (outcome == Refreshed::kept_last) keep_eigenvectors(refresh, id);
}

void FactorRenewals::invert(const OpenRefresh& refresh, const FactorId& id) {
  invert_factor(inverse(refresh, id), setup_.shape(id.layer), staged_.layers[id.layer].averages(), id.factor,
                refresh.damping.of(id.layer), tally_.failed);
}

void FactorRenewals::follow(const OpenRefresh& refresh, const RenewalGroup& group) {
  const bool is_first = tally_.counters.decompositions == 0;
  std::vector<Eigenbasis> bases;
  for (const FactorId& id : group) bases.push_back(basis(refresh, id));
  if (is_first) randomize(bases);
  const auto done = iterate_subspaces(staged_.averages(group), bases, is_first ? kFirstSubspaceIterations : 1);
  for (size_t g = 0; g < group.size(); ++g)
    if (!done[g]) keep_eigenvectors(refresh, group[g]);
}

// --- pieces of large factors -----------------------------------------------------------------------------------------

void FactorRenewals::invert_piece(const OpenRefresh& refresh, const FactorId& id, std::optional<PanelInverse>& open,
                                  bool is_last) {
  const auto& shape = setup_.shape(id.layer);
  if (!open)
    open.emplace(damped_factor(shape, staged_.layers[id.layer].averages(), id.factor, refresh.damping.of(id.layer)),
                 setup_.options.panel_columns);
  open->run_next();
  if (is_last) keep_solved(inverse(refresh, id), shape, id.factor, open->inverses(), open->solved(), tally_.failed);
}

void FactorRenewals::follow_piece(const OpenRefresh& refresh, const FactorId& id,
                                  std::optional<SubspaceIteration>& open, bool is_last) {
  const auto held = basis(refresh, id);
  if (!open) open.emplace(staged_.average(id), held.vectors.size(2), setup_.options.panel_columns);
  open->run_next(held);
  if (is_last && !open->keep(held)) keep_eigenvectors(refresh, id);
}

// --- sending ---------------------------------------------------------------------------------------------------------

// G's owner gets the other owners' eigenvalues and forms the reciprocal of their products.
void FactorRenewals::gather_reciprocal(const OpenRefresh& refresh, size_t layer) {
  const auto& shape = setup_.shape(layer);
  const auto& owners = setup_.assignments[layer].owners;
  auto& inverse = inverses_.renewed(layer, refresh.is_late);
  const int64_t rank = setup_.rank(), root = owners.back();
  for (size_t f = 0; f < owners.size(); ++f)
    if (owners[f] != root && (rank == owners[f] || rank == root))
      setup_.exchange.broadcast_({inverse.basis(shape, f).values}, owners[f],
                                 {std::min(owners[f], root), std::max(owners[f], root)});
  if (rank == root) form_reciprocal(inverse, shape, refresh.damping.of(layer));
  inverse.fresh_values.clear();
}

void FactorRenewals::share(const OpenRefresh& refresh, size_t layer) {
  Stopwatch watch(tally_.seconds.eigenbasis_communicate);
  if (setup_.options.precompute_outer) gather_reciprocal(refresh, layer);
  const auto tensors = inverse_tensors(setup_.shape(layer));
  const auto& held = inverses_.renewed(layer, refresh.is_late).held;
  for (size_t t = 0, end = 0; t < held.size(); t = end) {  // tensors from one owner travel together
    std::vector<at::Tensor> message;
    for (; end < held.size() && tensors[end].factor == tensors[t].factor; ++end) message.push_back(held[end]);
    const auto& assignment = setup_.assignments[layer];
    setup_.exchange.broadcast_(message, assignment.owners[tensors[t].factor], assignment.workers);
  }
}

}  // namespace spillway::kfac
