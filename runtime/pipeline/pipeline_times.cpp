#include "runtime/pipeline/pipeline_times.h"

#include <algorithm>
#include <utility>

namespace spillway::runtime {

PipelineTimes::PipelineTimes(int stages, std::shared_ptr<PipelineClock> clock)
    : clock_(std::move(clock)), stage_sums_(stages), stage_passes_(stages) {}

void PipelineTimes::start() {
  spans_.clear();
  clock_->start();
}

void PipelineTimes::stop(double waited) {
  ++totals_.passes;
  totals_.seconds += clock_->now();
  totals_.wait = waited;
}

void PipelineTimes::done(const pipe::Item& item, double begin) {
  clock_->done(item);
  const double end = clock_->now();
  spans_.push_back({.item = item, .begin = begin, .end = end});
  const bool is_forward = item.work == pipe::Work::forward;
  (is_forward ? totals_.forward : totals_.backward) += end - begin;
  pipe::StageSeconds& sums = stage_sums_[item.stage];
  if (is_forward) ++stage_passes_[item.stage];
  (is_forward                                 ? sums.forward
   : item.work == pipe::Work::weight_gradient ? sums.weight_gradient
                                              : sums.input_gradient) += end - begin;
}

void PipelineTimes::extra_done(const pipe::FilledItem& extra, double begin) {
  clock_->extra_done(extra);
  pipe::FilledItem& span = spans_.emplace_back(extra);
  span.begin = begin;
  span.end = clock_->now();
  totals_.extras += span.end - span.begin;
}

std::vector<pipe::StageSeconds> PipelineTimes::take_stage_seconds(bool splits_backward) {
  const size_t stages = stage_sums_.size();
  std::vector<pipe::StageSeconds> means = std::exchange(stage_sums_, std::vector<pipe::StageSeconds>(stages));
  const auto passes = std::exchange(stage_passes_, std::vector<int64_t>(stages));
  for (size_t stage = 0; stage < stages; ++stage) {
    pipe::StageSeconds& mean = means[stage];
    const auto items = static_cast<double>(std::max<int64_t>(1, passes[stage]));
    mean.forward /= items;
    mean.input_gradient /= items;
    mean.weight_gradient /= items;
    if (!splits_backward) mean.input_gradient = mean.weight_gradient = mean.input_gradient / 2;
  }
  return means;
}

}  // namespace spillway::runtime
