#include "runtime/pipeline/step_record.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>

#include "pipe/simulate.h"

namespace spillway::runtime {
namespace {

using Spans = std::vector<PipelineSpan>;
using What = kfac::RefreshWork::What;

double seconds_between(SteadyTime from, SteadyTime to) {
  return std::chrono::duration<double>(to - from).count();
}

PipelineWork kind_of(pipe::Work work) {
  switch (work) {
    case pipe::Work::forward:
      return PipelineWork::forward;
    case pipe::Work::backward:
      return PipelineWork::backward;
    case pipe::Work::input_gradient:
      return PipelineWork::input_gradient;
    case pipe::Work::weight_gradient:
      return PipelineWork::weight_gradient;
    case pipe::Work::update:
      break;
  }
  return PipelineWork::update;
}

PipelineWork kind_of(What what) {
  switch (what) {
    case What::statistics:
      return PipelineWork::statistics;
    case What::average:
      return PipelineWork::average;
    case What::renew:
      return PipelineWork::renew;
    case What::share:
      break;
  }
  return PipelineWork::share;
}

PipelineSpan span_of(const pipe::FilledItem& filled, const KfacInBubbles* in_bubbles) {
  PipelineSpan span{.begin = filled.begin, .end = filled.end};
  if (filled.extra < 0) {
    span.work = kind_of(filled.item.work);
    span.stage = filled.item.stage;
    span.micro_batch = filled.item.micro_batch;
    return span;
  }
  const pipe::Item& ready = in_bubbles->extras()[filled.extra].ready;
  span.work = kind_of(in_bubbles->kind_of(filled.extra));
  span.stage = ready.stage;
  if (span.work == PipelineWork::statistics) span.micro_batch = ready.micro_batch;
  return span;
}

double first_begin(const std::vector<Spans>& ranks) {
  double first = std::numeric_limits<double>::infinity();
  for (const Spans& spans : ranks)
    for (const PipelineSpan& span : spans) first = std::min(first, span.begin);
  return first;
}

void move(Spans& spans, double by) {
  for (PipelineSpan& span : spans) span.begin += by, span.end += by;
}

}  // namespace

void StepTimes::add(const StepMoments& moments) {
  last = moments;
  ++steps;
  average_seconds += seconds_between(last.passed, last.averaged);
  update_seconds += seconds_between(last.averaged, last.updated);
}

Spans measured_spans(const std::vector<pipe::FilledItem>& passes, const StepTimes& times,
                     const KfacInBubbles* in_bubbles, SteadyTime zero) {
  Spans spans;
  for (const pipe::FilledItem& filled : passes) spans.push_back(span_of(filled, in_bubbles));
  const StepMoments& last = times.last;
  move(spans, seconds_between(zero, last.began));
  const auto at = [&](SteadyTime time) { return seconds_between(zero, time); };
  spans.push_back({.work = PipelineWork::exchange, .begin = at(last.passed), .end = at(last.averaged)});
  spans.push_back({.work = PipelineWork::update, .begin = at(last.averaged), .end = at(last.updated)});
  return spans;
}

std::vector<Spans> planned_spans(const PipelinePlan& plan, const StepTimes& times, const KfacInBubbles* in_bubbles,
                                 double update) {
  std::vector<Spans> ranks;
  if (times.fills_bubbles) {
    const pipe::Filled& filled = in_bubbles->filled();
    for (const auto& steps : filled.items) {
      Spans& spans = ranks.emplace_back();
      for (const pipe::FilledItem& item : steps[times.step % filled.steps()])
        spans.push_back(span_of(item, in_bubbles));
    }
  } else {
    pipe::Costs costs = plan.costs;
    costs.update = update;
    for (const auto& simulated : pipe::simulate(plan.program, costs).spans) {
      Spans& spans = ranks.emplace_back();
      for (const auto& [item, begin, end] : simulated)
        spans.push_back(span_of({.item = item, .begin = begin, .end = end}, nullptr));
    }
  }
  const double first = first_begin(ranks);
  for (Spans& spans : ranks) move(spans, -first);
  return ranks;
}

RefreshSteps refresh_steps(const pipe::Filled& filled, const std::vector<pipe::Extra>& extras, int place) {
  RefreshSteps steps;
  std::map<int, int> last;  // by the step of the statistics: of the refresh's last piece
  for (int step = 0; step < filled.steps(); ++step)
    for (const pipe::FilledItem& item : filled.items[place][step]) {
      if (item.extra < 0) continue;
      const pipe::Extra& extra = extras[item.extra];
      int& known = last.try_emplace(extra.taken_step, 0).first->second;
      known = std::max(known, step + item.age * filled.steps() - extra.taken_step + 1);
      steps.oldest = std::max<int64_t>(steps.oldest, extra.serves_step - extra.taken_step);
    }
  for (const auto& [taken, count] : last) steps.mean += static_cast<double>(count) / static_cast<double>(last.size());
  return steps;
}

double move_to_common_zero(std::vector<Spans>& spans, const std::vector<double>& zeros, bool share_clock, int own) {
  if (share_clock)
    for (size_t rank = 0; rank < spans.size(); ++rank) move(spans[rank], zeros[rank] - zeros[own]);
  const double first = first_begin(spans);
  for (Spans& of_rank : spans) move(of_rank, -first);
  return first;
}

}  // namespace spillway::runtime
