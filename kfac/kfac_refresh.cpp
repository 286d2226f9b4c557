// The refresh of layers' curvature beside the steps, piece by piece (KfacOptions::curvature_delay).
#include <ATen/ATen.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "core/category.h"
#include "core/error.h"
#include "kfac/factors/own_operators.h"
#include "kfac/preconditioner.h"

namespace spillway::kfac {
namespace {

LayerInverse copy_of(const LayerInverse& inverse) {
  const CategoryScope eigenbases(Category::eigenbases);
  LayerInverse copy;
  for (const at::Tensor& tensor : inverse.held) copy.held.push_back(tensor.clone());
  return copy;
}

}  // namespace

// --- what there is to do --------------------------------------------------------------------------------------------

bool Preconditioner::is_late(int64_t step) const {
  return options_.curvature_delay > 0 && step > 0;
}

std::vector<Preconditioner::AverageGroup> Preconditioner::average_groups(size_t set) const {
  std::vector<AverageGroup> groups;
  std::vector<bool> travels(layers_.size());
  for (const auto& bucket : buckets_[set]) {
    groups.push_back({bucket.layers, &bucket});
    for (size_t i : bucket.layers) travels[i] = true;
  }
  for (size_t i : cycle_.sets()[set])
    if (!travels[i]) groups.push_back({{i}, nullptr});
  return groups;
}

std::vector<std::vector<FactorId>> Preconditioner::renewal_groups(size_t set, int64_t rank) const {
  const bool solves_groups = options_.method == Method::eigen && options_.warm_start == 0;
  std::vector<FactorId> whole;
  std::vector<std::vector<FactorId>> groups;
  for (size_t i : cycle_.sets()[set])
    for (size_t f = 0; f < assignments_[i].owners.size(); ++f) {
      if (assignments_[i].owners[f] != rank) continue;
      if (solves_groups && !layers_[i].shape.factors()[f].is_truncated())
        whole.push_back({i, f});
      else
        groups.push_back({{i, f}});
    }
  for (auto& group : groups_of_one_side(shapes_of(layers_), whole)) groups.push_back(std::move(group));
  return groups;
}

std::vector<RefreshWork> Preconditioner::refresh_work(int64_t step, int64_t micro_batches) const {
  using What = RefreshWork::What;
  std::vector<RefreshWork> all;
  if (!is_late(step)) return all;
  const size_t set = cycle_.set_of(step);
  const auto& layers = cycle_.sets()[set];
  for (size_t i : layers)
    for (int64_t m = 0; m < micro_batches; ++m)
      all.push_back({.what = What::statistics, .index = static_cast<int64_t>(i), .micro_batch = m, .layers = {i}});
  int64_t number = 0;
  for (auto& group : average_groups(set))
    all.push_back({.what = What::average, .index = number++, .layers = std::move(group.layers)});
  for (auto& work : renewals(set)) all.push_back(std::move(work));
  if (exchange_.world() > 1 || options_.precompute_outer)
    for (size_t i : layers) all.push_back({.what = What::share, .index = static_cast<int64_t>(i), .layers = {i}});
  return all;
}

int64_t Preconditioner::pieces_of(const std::vector<FactorId>& group) const {
  const auto& [i, f] = group.front();
  const FactorShape factor = layers_[i].shape.factors()[f];
  const int64_t most = options_.panel_columns;
  if (factor.side <= most) return 1;
  if (options_.method != Method::eigen) return PanelInverse::pieces(factor.side, most);
  // LAPACK's eigensolver of a whole factor cannot be left in its midst.
  return factor.is_truncated() ? SubspaceIteration::pieces(factor.rank, most) : 1;
}

std::vector<RefreshWork> Preconditioner::renewals(size_t set) const {
  std::vector<int64_t> most;  // pieces of each group, on the rank that has most
  for (int64_t rank = 0; rank < exchange_.world(); ++rank) {
    const auto groups = renewal_groups(set, rank);
    most.resize(std::max(most.size(), groups.size()));
    for (size_t g = 0; g < groups.size(); ++g) most[g] = std::max(most[g], pieces_of(groups[g]));
  }
  const auto own = renewal_groups(set, exchange_.rank());
  std::vector<RefreshWork> all;
  for (size_t g = 0; g < most.size(); ++g)
    for (int64_t piece = 0; piece < most[g]; ++piece) {
      auto& work = all.emplace_back(
          RefreshWork{.what = RefreshWork::What::renew, .index = static_cast<int64_t>(g), .piece = piece});
      if (g >= own.size() || piece >= pieces_of(own[g])) continue;
      for (const FactorId& id : own[g]) work.layers.push_back(id.layer);
    }
  return all;
}

// --- doing it -------------------------------------------------------------------------------------------------------

void Preconditioner::defer(bool on) {
  TORCH_CHECK(!on || options_.curvature_delay > 0, "[kfac.defer] curvature_delay is 0: nothing may wait");
  staged_->holds = on;
}

int64_t Preconditioner::open_refresh(int64_t batch, int64_t micro_batch) {
  if (open_.empty() || open_.back().step != counters_.steps) {
    const auto now = options_.at(counters_.steps);
    const double scale = counters_.damping_scale;
    OpenRefresh& fresh = open_.emplace_back();
    fresh.step = counters_.steps;
    fresh.set = due_set();
    fresh.seed = staged_->seed;
    fresh.damping = {now.relative_damping * scale, now.damping ? std::optional(*now.damping * scale) : std::nullopt};
    if (curvatures_.defined()) fresh.curvatures = curvatures_;
  }
  OpenRefresh& refresh = open_.back();
  const int64_t number = micro_batch >= 0 ? micro_batch : refresh.micro_batches();
  refresh.samples.resize(std::max(refresh.micro_batches(), number + 1));
  refresh.samples[number] = batch;  // other stages of this rank tell the same
  return number;
}

OpenRefresh& Preconditioner::open(int64_t step) {
  const auto found = std::find_if(open_.begin(), open_.end(), [&](const OpenRefresh& r) { return r.step == step; });
  TORCH_CHECK(found != open_.end(), "[kfac.run] no refresh of step ", step, " is open");
  return *found;
}

bool Preconditioner::waits(int64_t step, size_t index) const {
  const auto found = std::find_if(open_.begin(), open_.end(), [&](const OpenRefresh& r) { return r.step == step; });
  return found != open_.end() && (found->done.empty() || !found->done.at(index));
}

void Preconditioner::run(int64_t step, int64_t micro_batches, size_t index) {
  const OwnOperators own;
  OpenRefresh& refresh = open(step);
  if (refresh.work.empty()) refresh.prepare(refresh_work(step, micro_batches));
  run_after_needs(refresh, index);
}

void Preconditioner::run_after_needs(OpenRefresh& refresh, size_t index) {
  if (index < refresh.work.size())
    for (size_t need : needs_of(refresh.work, index, exchange_.world()))
      if (!refresh.done[need]) run_after_needs(refresh, need);
  run(refresh, index);
}

void Preconditioner::run(OpenRefresh& refresh, size_t index) {
  TORCH_CHECK(index < refresh.work.size() && !refresh.done[index], "[kfac.run] piece ", index,
              " of the refresh of step ", refresh.step, " is done already, or there is none");
  const RefreshWork& work = refresh.work[index];
  TORCH_CHECK(work.what != RefreshWork::What::statistics || work.micro_batch < refresh.micro_batches(), "[kfac.run] ",
              describe(work), " was not watched yet, in step ", refresh.step);
  const double begin = now_();
  current_ = &refresh;
  const auto leave = c10::make_scope_exit([&] { current_ = nullptr; });
  switch (work.what) {
    case RefreshWork::What::statistics:
      staged_->stage_held(static_cast<size_t>(work.index), work.micro_batch, refresh.seed);
      break;
    case RefreshWork::What::average: {
      const auto group = average_groups(refresh.set).at(work.index);
      commit_layers(group.layers, group.bucket, refresh.all_samples(), refresh.loss_scale);
      break;
    }
    case RefreshWork::What::renew:
      if (!work.layers.empty()) renew_piece(refresh, work);
      break;
    case RefreshWork::What::share:
      share_inverse(static_cast<size_t>(work.index));
      break;
  }
  refresh.seconds[index] = now_() - begin;
  refresh.done[index] = true;
}

void Preconditioner::renew_piece(OpenRefresh& refresh, const RefreshWork& work) {
  const auto group = renewal_groups(refresh.set, exchange_.rank()).at(work.index);
  const int64_t pieces = pieces_of(group);
  if (pieces == 1) return renew(group);
  Stopwatch watch(seconds_.decompose);
  const CategoryScope eigenbases(Category::eigenbases);
  OpenRenewal& renewal = refresh.renewals[work.index];
  const FactorId& id = group.front();
  const bool is_last = work.piece + 1 == pieces;
  if (options_.method == Method::eigen)
    follow_piece(id, renewal.subspace, is_last);
  else
    invert_piece(id, renewal.inverse, is_last);
  if (!is_last) return;
  const auto& shape = layers_[id.layer].shape;
  flops_.decompose += decomposition_flops(shape, shape.factors()[id.factor]);
  refresh.renewals.erase(work.index);
}

void Preconditioner::invert_piece(const FactorId& id, std::optional<PanelInverse>& inverse, bool is_last) {
  const auto& [i, f] = id;
  const auto& shape = layers_[i].shape;
  if (!inverse)
    inverse.emplace(damped_factor(shape, staged_->layers[i].averages(), f, damping(i)), options_.panel_columns);
  inverse->run_next();
  if (is_last) keep_solved(renewed(i), shape, f, inverse->inverses(), inverse->solved(), failed_);
}

void Preconditioner::follow_piece(const FactorId& id, std::optional<SubspaceIteration>& subspace, bool is_last) {
  const auto& [i, f] = id;
  const auto basis = renewed(i).basis(layers_[i].shape, f);
  if (!subspace) subspace.emplace(factor(i, f), basis.vectors.size(2), options_.panel_columns);
  subspace->run_next(basis);
  if (is_last && !subspace->keep(basis)) keep_eigenvectors(i, f);
}

void Preconditioner::finish(OpenRefresh& refresh) {
  refresh.prepare(refresh_work(refresh.step, refresh.micro_batches()));
  for (size_t k = 0; k < refresh.work.size(); ++k)
    if (!refresh.done[k]) run(refresh, k);
}

std::vector<double> Preconditioner::refresh_seconds(int64_t step) const {
  const auto found = seconds_of_set_.find(cycle_.set_of(step));
  return found == seconds_of_set_.end() ? std::vector<double>() : found->second;
}

bool Preconditioner::renews(size_t i, int64_t steps) const {
  for (int64_t step = std::max<int64_t>(1, steps - options_.curvature_delay); step < steps; ++step) {
    const auto& layers = cycle_.sets()[cycle_.set_of(step)];
    if (std::find(layers.begin(), layers.end(), i) != layers.end()) return true;
  }
  return false;
}

void Preconditioner::finish_refreshes() {
  const OwnOperators own;
  for (OpenRefresh& refresh : open_) finish(refresh);
}

LayerInverse& Preconditioner::renewed(size_t i) {
  if (!current_) {
    forget_mean_curvature(i);
    return inverses_[i];
  }
  if (next_[i].held.empty() && !inverses_[i].held.empty()) next_[i] = copy_of(inverses_[i]);
  return next_[i];
}

void Preconditioner::adopt(OpenRefresh& refresh) {
  for (size_t i : cycle_.sets()[refresh.set]) {
    if (next_[i].held.empty()) continue;
    inverses_[i] = std::move(next_[i]);
    forget_mean_curvature(i);
    next_[i] = {};
  }
  note_curvature(cycle_.sets()[refresh.set]);
  if (refresh.was_resumed) return;
  // The first times are often long, so the shortest ones count.
  auto& known = seconds_of_set_[refresh.set];
  known.resize(refresh.seconds.size(), std::numeric_limits<double>::infinity());
  for (size_t k = 0; k < known.size(); ++k) known[k] = std::min(known[k], refresh.seconds[k]);
}

void Preconditioner::step_late(double loss_scale) {
  TORCH_CHECK(loss_scale == 1 || !staged_->holds, "[kfac.step] loss_scale = ", loss_scale,
              ": a refresh that waits has taken it as 1");
  if (!open_.empty() && open_.back().step == counters_.steps) open_.back().loss_scale = loss_scale;
  for (OpenRefresh& refresh : open_)
    if (!staged_->holds || refresh.step + options_.curvature_delay <= counters_.steps) finish(refresh);
  while (!open_.empty() && open_.front().step + options_.curvature_delay <= counters_.steps) {
    adopt(open_.front());
    open_.pop_front();
  }
}

void Preconditioner::resume_refreshes() {
  open_.clear();
  set_damping();  // what the next refresh renews with
  for (int64_t step = std::max<int64_t>(1, counters_.steps - options_.curvature_delay); step < counters_.steps;
       ++step) {
    const size_t set = cycle_.set_of(step);
    if (cycle_.sets()[set].empty()) continue;
    OpenRefresh& refresh = open_.emplace_back();
    refresh.step = step;
    refresh.set = set;
    refresh.prepare(refresh_work(step, /*micro_batches=*/0));
    refresh.done.assign(refresh.work.size(), true);
    refresh.was_resumed = true;
    for (size_t i : cycle_.sets()[set])
      if (next_[i].held.empty()) next_[i] = copy_of(inverses_[i]);
  }
  for (size_t i = 0; i < next_.size(); ++i)
    if (!renews(i, counters_.steps)) next_[i] = {};
}

}  // namespace spillway::kfac
