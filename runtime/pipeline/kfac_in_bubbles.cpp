#include "runtime/pipeline/kfac_in_bubbles.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "core/clock.h"
#include "core/error.h"
#include "ddl/comm/communicator.h"
#include "pipe/rerun.h"

namespace spillway::runtime {
namespace {

using kfac::RefreshWork;
using What = RefreshWork::What;

}  // namespace

KfacInBubbles::KfacInBubbles(kfac::Kfac& kfac, std::shared_ptr<const Pipeline> pipeline, ddl::Comm world,
                             int64_t first_step)
    : kfac_(kfac),
      pipeline_(std::move(pipeline)),
      world_(std::move(world)),
      cycle_(kfac.refreshes().cycle_length()),
      first_cycle_(first_step / cycle_),
      micro_batches_(std::ssize(pipeline_->plan.micro_batches_of(0))),
      waits_together_(pipeline_->plan.directions() == 1) {
  kfac_.refreshes().defer(true);
  own_ = pieces();
}

/// True for work that is done in bubbles.
bool KfacInBubbles::fills(const RefreshWork& work) const {
  return waits_together_ || work.what == What::statistics || work.what == What::renew;
}

std::vector<KfacInBubbles::Piece> KfacInBubbles::pieces() const {
  std::vector<Piece> all;
  for (int64_t step = 0; step < cycle_; ++step) {
    const auto work = kfac_.refreshes().work(cycle_ + step, micro_batches_);
    for (size_t index = 0; index < work.size(); ++index)
      if (fills(work[index])) all.push_back({step, index});
  }
  return all;
}

PlacedStage KfacInBubbles::stage_of(const RefreshWork& work) const {
  const std::vector<PlacedStage> own = pipeline_->plan.stages_at(pipeline_->place);
  if (work.layers.empty()) return own.front();
  const int stage = pipeline_->plan.stage_of_module(kfac_.layers()[work.layers.front()].shape.name);
  return *std::find_if(own.begin(), own.end(), [&](const PlacedStage& at) { return at.stage == stage; });
}

RankTimes KfacInBubbles::times_of_rank(const CycleSeconds& seconds) const {
  RankTimes times{.place = pipeline_->place, .stages = seconds.stages};
  for (int64_t step = 0; step < cycle_ && times.is_timed; ++step) times.is_timed = add_pieces(step, times);
  double refresh = 0;  // it is done among the passes once there is a plan
  if (plans_ == 0)
    for (const PieceTimes& piece : times.pieces) refresh += piece.seconds;
  times.update = std::max(0.0, seconds.update - refresh / static_cast<double>(cycle_));
  return times;
}

bool KfacInBubbles::add_pieces(int64_t step, RankTimes& times) const {
  const auto all = kfac_.refreshes().work(cycle_ + step, micro_batches_);
  const auto seconds = kfac_.refreshes().seconds(cycle_ + step);
  if (seconds.size() != all.size()) return false;
  std::vector<int> number(all.size(), -1);  // among the step's work that fills bubbles
  int count = 0;
  for (size_t k = 0; k < all.size(); ++k) {
    if (!fills(all[k])) continue;
    number[k] = count++;
    const PlacedStage at = stage_of(all[k]);
    const int64_t micro_batch = all[k].what == What::statistics ? all[k].micro_batch : micro_batches_ - 1;
    PieceTimes& piece = times.pieces.emplace_back();
    piece.step = step;
    piece.stage = at.stage;
    piece.micro_batch = pipeline_->plan.micro_batches_of(at.direction)[micro_batch];
    piece.what = all[k].what;
    piece.seconds = seconds[k];
    for (size_t need : kfac::needs_of(all, k, ddl::size_of(pipeline_->of_place)))
      if (number[need] >= 0) piece.needs.push_back(number[need]);
  }
  return true;
}

void KfacInBubbles::plan(const CycleSeconds& seconds) {
  constexpr int kTimedCycles = 2;
  const std::vector<RankTimes> times = gather_times(times_of_rank(seconds), *world_->communicator);
  const auto is_timed = [](const RankTimes& rank) { return rank.is_timed; };
  if (std::all_of(times.begin(), times.end(), is_timed) && ++timed_cycles_ >= kTimedCycles) plan_from(times);
  if (plans_ > 0) kfac_.refreshes().forget_seconds();
}

bool KfacInBubbles::plans_again(int64_t step) const {
  if (plans_ == 0 || step % cycle_ != 0) return false;
  const int64_t cycle = step / cycle_ - first_cycle_;
  int64_t next = 8;
  while (next < cycle) next *= 4;
  return cycle == next;
}

void KfacInBubbles::plan_again(const CycleSeconds& seconds) {
  constexpr double kMinGain = 0.1;
  std::optional<BubblePlan> other = plan_of(gather_times(times_of_rank(seconds), *world_->communicator));
  kfac_.refreshes().forget_seconds();
  if (!other) return;
  pipe::Filled now = pipe::rerun(plan_.filled, pipeline_->plan.program, other->extras, other->costs);
  if (other->filled.seconds <= (1 - kMinGain) * now.seconds) return follow(*std::move(other));
  plan_.extras = std::move(other->extras);
  plan_.costs = std::move(other->costs);
  plan_.filled = std::move(now);
}

bool KfacInBubbles::plan_from(const std::vector<RankTimes>& times) {
  std::optional<BubblePlan> plan = plan_of(times);
  if (!plan) return false;
  follow(*std::move(plan));
  return true;
}

void KfacInBubbles::follow(BubblePlan plan) {
  plan_ = std::move(plan);
  ++plans_;
  first_own_ = std::count_if(plan_.extras.begin(), plan_.extras.end(),
                             [&](const pipe::Extra& one) { return one.rank < pipeline_->place; });
}

std::optional<BubblePlan> KfacInBubbles::plan_of(const std::vector<RankTimes>& times) const {
  return plan_bubbles(pipeline_->plan, times, {cycle_, kfac_.options().curvature_delay},
                      message_seconds(*pipeline_, world_));
}

std::string describe(const KfacInBubbles& in_bubbles) {
  const pipe::Filled& filled = in_bubbles.filled();
  const auto milliseconds = [&](double seconds) { return std::llround(1000 * seconds / filled.steps()); };
  return str(in_bubbles.plans() > 1 ? "times have changed: " : "",
             in_bubbles.fills_bubbles() ? "from here on K-FAC's work is done while ranks wait: "
                                        : "K-FAC's work stays after the passes, because waits are too short for it: ",
             in_bubbles.extras().size(), " pieces in ", filled.steps(), " steps, ",
             milliseconds(*std::max_element(filled.filled.begin(), filled.filled.end())),
             " ms a step on the busiest rank, make a step of ", milliseconds(filled.unfilled_seconds), " ms take ",
             milliseconds(filled.seconds), " ms");
}

const std::vector<pipe::FilledItem>* KfacInBubbles::items_of(int64_t step) const {
  return plans_ == 0 ? nullptr : &filled().items[pipeline_->place][step % cycle_];
}

std::string KfacInBubbles::kind_of_step(int64_t step) const {
  return str("filled ", step % cycle_, plans_ > 1 ? str(" of plan ", plans_) : "");
}

void KfacInBubbles::run(const pipe::FilledItem& extra, int64_t step) {
  const Piece& piece = own_.at(extra.extra - first_own_);
  const int64_t taken = (step / cycle_ - extra.age) * cycle_ + piece.taken_step;
  const Stopwatch stopwatch(seconds_[static_cast<size_t>(kind_of(extra.extra))]);
  if (!kfac_.refreshes().waits(taken, piece.index) || needs_others(taken, piece.index)) return;
  kfac_.refreshes().run(taken, micro_batches_, piece.index);
}

/// True where a piece comes after work that ranks do together and have not done, as in a refresh that began before the
/// plan. Such a piece is left to the step that the refresh serves.
bool KfacInBubbles::needs_others(int64_t taken, size_t index) const {
  if (waits_together_) return false;
  const auto work = kfac_.refreshes().work(taken, micro_batches_);
  const auto is_open = [&](size_t need) {
    return kfac_.refreshes().waits(taken, need) && (!fills(work[need]) || needs_others(taken, need));
  };
  const auto needs = kfac::needs_of(work, index, ddl::size_of(pipeline_->of_place));
  return std::any_of(needs.begin(), needs.end(), is_open);
}

void KfacInBubbles::run_together(int64_t step) {
  if (waits_together_ || !items_of(step)) return;
  const auto work = kfac_.refreshes().work(step, micro_batches_);
  for (size_t index = 0; index < work.size(); ++index)
    if (work[index].what == What::average && kfac_.refreshes().waits(step, index))
      kfac_.refreshes().run(step, micro_batches_, index);
}

}  // namespace spillway::runtime
