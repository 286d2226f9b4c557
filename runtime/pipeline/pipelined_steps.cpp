#include "runtime/pipeline/pipelined_steps.h"

#include <ATen/ATen.h>

#include <span>
#include <utility>

#include "ddl/comm/collectives.h"

namespace spillway::runtime {

PipelinedSteps::PipelinedSteps(std::shared_ptr<const Pipeline> pipeline, PipelineExecutor& model, Now now)
    : pipeline_(std::move(pipeline)), model_(model), now_(std::move(now)) {}

void PipelinedSteps::fill_waits(kfac::Kfac& kfac, const ddl::Comm& world, int64_t first_step, bool plans) {
  in_bubbles_.emplace(kfac, pipeline_, world, first_step);
  plans_ = plans;
}

std::string PipelinedSteps::begin(int64_t step, std::string kind) {
  times_.step = step;
  // The step before may have ended with the first plan. Then no step was timed since.
  if (plans_ && untaken_steps_ > 0 && in_bubbles_->plans_again(step)) in_bubbles_->plan_again(take_cycle_seconds());
  times_.fills_bubbles = in_bubbles_ && in_bubbles_->plans() > 0;
  return times_.fills_bubbles ? in_bubbles_->kind_of_step(step) : std::move(kind);
}

at::Tensor PipelinedSteps::learn(const StepWork& work) {
  if (in_bubbles_)
    model_.follow(in_bubbles_->items_of(work.step),
                  [this, step = work.step](const pipe::FilledItem& extra) { in_bubbles_->run(extra, step); });
  at::Tensor loss = model_.learn(work);
  if (in_bubbles_) in_bubbles_->run_together(work.step);
  passes_end_ = now_();
  return loss;
}

void PipelinedSteps::end(const StepMoments& moments, int64_t steps_done) {
  times_.add(moments);
  update_seconds_ += now_() - passes_end_;
  ++untaken_steps_;
  if (plans_ && in_bubbles_->plans() == 0 && steps_done % in_bubbles_->cycle() == 0)
    in_bubbles_->plan(take_cycle_seconds());
}

CycleSeconds PipelinedSteps::take_cycle_seconds() {
  const auto steps = static_cast<double>(std::exchange(untaken_steps_, 0));
  return {model_.take_stage_seconds(), std::exchange(update_seconds_, 0) / steps};
}

double PipelinedSteps::on_all_ranks(std::optional<double> value) const {
  double sum = 0;
  for (int direction = 0; direction < pipeline_->plan.directions(); ++direction) {
    double known = value.value_or(0);
    const int last = pipeline_->place_of_last_stage(direction);
    ddl::broadcast(*pipeline_->of_copy, std::as_writable_bytes(std::span(&known, 1)), last);
    sum += known;
  }
  return sum;
}

}  // namespace spillway::runtime
