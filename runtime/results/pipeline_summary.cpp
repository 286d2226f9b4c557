#include "runtime/results/pipeline_summary.h"

#include <algorithm>
#include <limits>

#include "core/error.h"

namespace spillway {

std::string_view name(PipelineWork work) {
  static constexpr std::array<std::string_view, kPipelineWorkCount> kNames{
      "forward", "backward", "input_gradient", "weight_gradient", "statistics",
      "average", "renew",    "share",          "exchange",        "update"};
  return kNames[static_cast<size_t>(work)];
}

std::string describe(const PipelineSpan& span) {
  std::string text(name(span.work));
  std::replace(text.begin(), text.end(), '_', ' ');
  if (span.work >= PipelineWork::statistics && span.work <= PipelineWork::share) text = "K-FAC " + text;
  if (span.stage >= 0) text += str(" of stage ", span.stage);
  if (span.micro_batch >= 0) text += str(", micro-batch ", span.micro_batch);
  return text;
}

double PipelineSeconds::passes() const {
  return (*this)[PipelineWork::forward] + (*this)[PipelineWork::backward];
}

double PipelineSeconds::kfac() const {
  return (*this)[PipelineWork::statistics] + (*this)[PipelineWork::average] + (*this)[PipelineWork::renew] +
         (*this)[PipelineWork::share];
}

PipelineSeconds PipelineSummary::mean_seconds() const {
  PipelineSeconds mean;
  const auto count = static_cast<double>(std::max<size_t>(1, ranks.size()));
  for (const PipelineRankSummary& rank : ranks) {
    for (size_t work = 0; work < kPipelineWorkCount; ++work) mean.of[work] += rank.seconds.of[work] / count;
    mean.wait += rank.seconds.wait / count;
  }
  return mean;
}

double PipelineSummary::bound_seconds() const {
  double work = 0, update = std::numeric_limits<double>::infinity();
  for (const PipelineRankSummary& rank : ranks) {
    work = std::max(work, rank.seconds.passes() + rank.seconds.kfac());
    update = std::min(update, rank.seconds[PipelineWork::update]);  // others wait for the busiest rank in it
  }
  return ranks.empty() ? 0 : work + update;
}

double PipelineSummary::utilization() const {
  const PipelineSeconds mean = mean_seconds();
  return pass_seconds > 0 ? (mean.passes() + mean.kfac()) / pass_seconds : 0;
}

}  // namespace spillway
