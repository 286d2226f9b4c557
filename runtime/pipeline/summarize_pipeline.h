/// The summary of a pipeline's run.
#pragma once
#include <cstdint>
#include <optional>

#include "core/clock.h"
#include "runtime/pipeline/kfac_in_bubbles.h"
#include "runtime/pipeline/pipeline_executor.h"
#include "runtime/pipeline/step_record.h"
#include "runtime/results/pipeline_summary.h"

namespace spillway::runtime {

/// A rank's part of a run that is over.
struct PipelineRun {
  const Pipeline& pipeline;
  const PipelineExecutor& model;
  const KfacInBubbles* in_bubbles = nullptr;  ///< null where K-FAC's work fills no bubbles
  StepTimes times = {};
  int64_t peak_bytes = 0;
  /// The moment after which the last step began, as move_to_common_zero() takes it; nothing where that step is not to
  /// be kept. The same choice on every rank.
  std::optional<SteadyTime> recorded_since = {};
};

/// Returns the summary of all ranks of this copy of the model, with the last step where it was recorded. Collective
/// over the copy. Throws CommError.
PipelineSummary summarize_pipeline(const PipelineRun& run);

}  // namespace spillway::runtime
