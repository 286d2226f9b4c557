/// Predicted and measured times of emulated pipelines.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "benchmarks/pipeline/emulated_pipeline.h"
#include "benchmarks/pipeline/emulated_run.h"
#include "benchmarks/pipeline/refresh_plan.h"

namespace spillway::tools {

/// Figures of a step.
struct StepFigures {
  double seconds = 0;
  double utilization = 0;       ///< work of all ranks as a share of their time
  double filled = 0;            ///< share of the waits that a refresh fills
  double exceeded_seconds = 0;  ///< seconds that a refresh makes the step longer
};

/// Figures on paper, and of a run.
struct Figures {
  StepFigures predicted, measured;
};

struct MeasureOptions {
  int steps = 24;  ///< steps that are measured at least, in whole cycles
  Messages messages = {};
};

/// A refresh of a pipeline.
struct MeasuredRefresh {
  RefreshPlan plan = {};
  int done_in_steps = 0;  ///< steps after which the last statistics are in use at the latest
  Figures figures = {};
};

/// Runs a pipeline without a refresh.
Figures measure_alone(const EmulatedPipeline& pipeline, const MeasureOptions& options);

/// Plans and runs a refresh. `alone` has the figures without it.
MeasuredRefresh measure_refresh(const EmulatedPipeline& pipeline, const RefreshOptions& refresh, const Figures& alone,
                                const MeasureOptions& options);

/// An item without work.
struct EmptyItem {
  double seconds = 0;            ///< seconds of a step of such items, for each item on its longest path
  double processor_seconds = 0;  ///< processor time of all threads, for each item of all ranks
};

/// Runs the items of a pipeline without their work.
EmptyItem measure_empty(const EmulatedPipeline& pipeline, const Messages& messages);

/// Messages of one size beside items.
struct BesideItems {
  int64_t bytes = 0;
  double message_seconds = 0;  ///< time of a message alone
  double exposed_seconds = 0;  ///< seconds by which all messages make a step longer
  double step_seconds = 0;
  double hidden = 0;  ///< hidden share of the seconds of those messages that an item is beside
};

/// The items beside which messages are measured: their seconds, and the micro-batches of a step.
inline constexpr double kBesideSeconds = 0.02;
inline constexpr int kBesideMicroBatches = 16;

/// Runs GPipe on two ranks with items of kBesideSeconds, with messages of each size and with empty ones. The first
/// message of each direction has no item beside it.
std::vector<BesideItems> measure_beside(const std::vector<int64_t>& sizes, double link_bytes_per_second);

}  // namespace spillway::tools
