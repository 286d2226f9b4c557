/// A pipeline's step to report.
#pragma once
#include <array>
#include <vector>

#include "runtime/results/pipeline_summary.h"

namespace spillway {

inline constexpr std::array kKinds{
    PipelineWork::forward,    PipelineWork::backward, PipelineWork::input_gradient, PipelineWork::weight_gradient,
    PipelineWork::statistics, PipelineWork::average,  PipelineWork::renew,          PipelineWork::share,
    PipelineWork::exchange,   PipelineWork::update};
static_assert(kKinds.size() == kPipelineWorkCount);

/// Returns a step of ranks that each do `items` items of 8 ms every 10 ms, the kinds in turn.
inline PipelineSummary pipeline_of(int ranks, int items) {
  PipelineSummary p{.schedule = "1f1b", .micro_batches = 4, .cut = std::vector<int>(static_cast<size_t>(ranks), 1)};
  p.step = PipelineStep{.begin = 0.5};
  for (int rank = 0; rank < ranks; ++rank) {
    p.ranks.push_back({.rank = rank, .stages = {rank}});
    PipelineRankStep& own = p.step->ranks.emplace_back(PipelineRankStep{.rank = rank});
    for (int i = 0; i < items; ++i) {
      const PipelineWork work = kKinds[static_cast<size_t>(i) % kKinds.size()];
      const int micro_batch = work <= PipelineWork::statistics ? i % 4 : -1;
      own.measured.push_back({work, rank, micro_batch, 0.01 * i, 0.01 * i + 0.008});
      own.planned.push_back({work, rank, micro_batch, 0.02 * i, 0.02 * i + 0.008});
    }
  }
  return p;
}

}  // namespace spillway
