#include "kfac/refresh/curvature_refresh.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "core/error.h"
#include "kfac/factors/own_operators.h"

namespace spillway::kfac {

using What = RefreshWork::What;

CurvatureRefresh::CurvatureRefresh(const Setup& setup, const RefreshPlan& plan, StagedFactors& staged,
                                   LayerInverses& inverses, Tally& tally)
    : setup_(setup),
      plan_(plan),
      staged_(staged),
      inverses_(inverses),
      tally_(tally),
      dampings_(setup, staged, tally),
      averages_(setup, plan, staged, tally),
      renewals_(setup, plan, staged, inverses, tally) {
  if (setup.options.staleness > 0) background_ = std::make_unique<BackgroundRenewals>(setup, staged, renewals_, tally);
}

// --- in a step -------------------------------------------------------------------------------------------------------

void CurvatureRefresh::step(int64_t samples, double loss_scale) {
  if (plan_.is_late(tally_.counters.steps))
    step_late(loss_scale);
  else
    step_now(samples, loss_scale);
}

void CurvatureRefresh::step_now(int64_t samples, double loss_scale) {
  auto& counters = tally_.counters;
  const StepWork work = plan_.work(counters);
  OpenRefresh refresh{.step = counters.steps, .set = plan_.set_of(counters.steps), .loss_scale = loss_scale};
  refresh.samples = {samples};
  if (work.updates_factors || work.decomposes) refresh.prepare(plan_.pieces(refresh.step, /*micro_batches=*/0));
  if (work.updates_factors) run_all(refresh, What::average);
  if (work.decomposes) dampings_.note(plan_.layers(refresh.set));
  dampings_.set();
  refresh.damping = dampings_.now();
  if (work.decomposes) {
    if (background_ && counters.last_decomposition_step >= 0) {
      background_->adopt(refresh);
    } else {
      run_all(refresh, What::renew);
      counters.last_decomposition_step = counters.steps;
    }
    run_all(refresh, What::share);
  }
  if (work.launches) {
    background_->start();
    counters.last_launch_step = counters.last_decomposition_step = counters.steps;
  }
}

void CurvatureRefresh::step_late(double loss_scale) {
  const int64_t step = tally_.counters.steps, delay = setup_.options.curvature_delay;
  TORCH_CHECK(loss_scale == 1 || !staged_.holds, "[kfac.step] loss_scale = ", loss_scale,
              ": a refresh that waits has taken it as 1");
  if (!open_.empty() && open_.back().step == step) open_.back().loss_scale = loss_scale;
  for (OpenRefresh& refresh : open_)
    if (!staged_.holds || refresh.step + delay <= step) finish(refresh);
  while (!open_.empty() && open_.front().step + delay <= step) {
    adopt(open_.front());
    open_.pop_front();
  }
  dampings_.set();
}

void CurvatureRefresh::adopt(const OpenRefresh& refresh) {
  for (size_t i : plan_.layers(refresh.set)) inverses_.adopt(i);
  dampings_.note(plan_.layers(refresh.set));
  if (refresh.was_resumed) return;
  // The first times are often long, so the shortest ones count.
  auto& known = seconds_of_set_[refresh.set];
  known.resize(refresh.seconds.size(), std::numeric_limits<double>::infinity());
  for (size_t k = 0; k < known.size(); ++k) known[k] = std::min(known[k], refresh.seconds[k]);
}

void CurvatureRefresh::discard() {
  const int64_t step = tally_.counters.steps;
  if (open_.empty() || open_.back().step != step) return;
  TORCH_CHECK(!open_.back().is_averaged(), "[kfac.discard] step ", step,
              " cannot be forgotten: its statistics are averaged already");
  open_.pop_back();
}

void CurvatureRefresh::resume() {
  inverses_.overwritten();
  if (setup_.options.curvature_delay == 0) return;
  open_.clear();
  dampings_.set();  // what the next refresh renews with
  const int64_t steps = tally_.counters.steps;
  for (int64_t step = std::max<int64_t>(1, steps - setup_.options.curvature_delay); step < steps; ++step) {
    const size_t set = plan_.set_of(step);
    if (plan_.layers(set).empty()) continue;
    OpenRefresh& refresh = open_.emplace_back(OpenRefresh{.step = step, .set = set, .is_late = true});
    refresh.prepare(plan_.pieces(step, /*micro_batches=*/0));
    refresh.done.assign(refresh.work.size(), true);
    refresh.was_resumed = true;
    for (size_t i : plan_.layers(set)) inverses_.renewed(i, /*is_late=*/true);
  }
  for (size_t i = 0; i < setup_.layers.size(); ++i)
    if (!plan_.renews(i, steps)) inverses_.drop_next(i);
}

// --- piece by piece --------------------------------------------------------------------------------------------------

void CurvatureRefresh::defer(bool on) {
  TORCH_CHECK(!on || setup_.options.curvature_delay > 0, "[kfac.defer] curvature_delay is 0: nothing may wait");
  staged_.holds = on;
}

int64_t CurvatureRefresh::open(int64_t samples, int64_t micro_batch) {
  const int64_t step = tally_.counters.steps;
  if (open_.empty() || open_.back().step != step) {
    OpenRefresh& fresh =
        open_.emplace_back(OpenRefresh{.step = step, .set = plan_.set_of(step), .is_late = true, .seed = staged_.seed});
    fresh.damping = dampings_.at_opening();
  }
  OpenRefresh& refresh = open_.back();
  const int64_t number = micro_batch >= 0 ? micro_batch : refresh.micro_batches();
  refresh.samples.resize(std::max(refresh.micro_batches(), number + 1));
  refresh.samples[number] = samples;  // other stages of this rank tell the same
  return number;
}

bool CurvatureRefresh::waits(int64_t step, size_t index) const {
  const auto found = std::ranges::find(open_, step, &OpenRefresh::step);
  return found != open_.end() && (found->done.empty() || !found->done.at(index));
}

void CurvatureRefresh::run(int64_t step, int64_t micro_batches, size_t index) {
  const OwnOperators own;
  const auto found = std::ranges::find(open_, step, &OpenRefresh::step);
  TORCH_CHECK(found != open_.end(), "[kfac.run] no refresh of step ", step, " is open");
  if (found->work.empty()) found->prepare(plan_.pieces(step, micro_batches));
  run_after_needs(*found, index);
}

void CurvatureRefresh::run_after_needs(OpenRefresh& refresh, size_t index) {
  if (index < refresh.work.size())
    for (size_t need : needs_of(refresh.work, index, setup_.exchange.world()))
      if (!refresh.done[need]) run_after_needs(refresh, need);
  run(refresh, index);
}

void CurvatureRefresh::run(OpenRefresh& refresh, size_t index) {
  TORCH_CHECK(index < refresh.work.size() && !refresh.done[index], "[kfac.run] piece ", index,
              " of the refresh of step ", refresh.step, " is done already, or there is none");
  const RefreshWork& work = refresh.work[index];
  TORCH_CHECK(work.what != What::statistics || work.micro_batch < refresh.micro_batches(), "[kfac.run] ",
              describe(work), " was not watched yet, in step ", refresh.step);
  const double begin = now_();
  switch (work.what) {
    case What::statistics:
      staged_.stage_held(static_cast<size_t>(work.index), work.micro_batch, refresh.seed);
      break;
    case What::average:
      averages_.take(refresh.set, plan_.average(refresh.set, work.index), refresh.all_samples(), refresh.loss_scale);
      break;
    case What::renew:
      renewals_.renew(refresh, work);
      break;
    case What::share:
      renewals_.share(refresh, static_cast<size_t>(work.index));
      break;
  }
  refresh.seconds[index] = now_() - begin;
  refresh.done[index] = true;
}

void CurvatureRefresh::run_all(OpenRefresh& refresh, What what) {
  for (size_t k = 0; k < refresh.work.size(); ++k)
    if (refresh.work[k].what == what) run(refresh, k);
}

void CurvatureRefresh::finish(OpenRefresh& refresh) {
  if (refresh.work.empty()) refresh.prepare(plan_.pieces(refresh.step, refresh.micro_batches()));
  for (size_t k = 0; k < refresh.work.size(); ++k)
    if (!refresh.done[k]) run(refresh, k);
}

void CurvatureRefresh::finish() {
  const OwnOperators own;
  for (OpenRefresh& refresh : open_) finish(refresh);
}

std::vector<double> CurvatureRefresh::seconds(int64_t step) const {
  const auto found = seconds_of_set_.find(plan_.set_of(step));
  return found == seconds_of_set_.end() ? std::vector<double>() : found->second;
}

}  // namespace spillway::kfac
