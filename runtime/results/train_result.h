/// What a training run did, in numbers.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/category.h"
#include "core/trace_events.h"
#include "kfac/plan/counters.h"
#include "runtime/options/train_options.h"
#include "runtime/results/paging_summary.h"

namespace spillway {

/// The metric on the held-out cases, after `step` steps.
struct MetricPoint {
  int64_t step;
  double value;
};

/// Bytes held at one instant.
struct MemorySample {
  double seconds;  ///< since the recorded step began
  BytesByCategory bytes;
};

/// One step seen from inside: memory over time and what ran on which lane. Seconds since the step began.
struct StepRecording {
  int64_t step = -1;
  double seconds = 0;
  std::vector<MemorySample> memory;
  std::vector<TraceEvent> events;
};

/// What one step without a budget needed.
struct Observation {
  int64_t peak_bytes = 0;   ///< the largest of all ranks
  int64_t floor_bytes = 0;  ///< the smallest budget that can run every operator of the run; the largest of all ranks
  std::string floor_operator;
  int64_t floor_operator_bytes = 0;
  double step_seconds = 0;
  int64_t gradient_bytes = 0;   ///< that this rank shares with the others
  double gradient_seconds = 0;  ///< of this rank, within their allreduces
};

/// What the simulation said of a kind of step.
struct Prediction {
  std::string kind;
  int64_t peak_bytes = 0;    ///< of the run, all kinds; the largest of all ranks
  double step_seconds = 0;   ///< under the schedule in force at the end
  double bound_seconds = 0;  ///< least possible under the budget
};

struct KfacSummary {
  std::string strategy;
  double grad_worker_frac = 1;
  std::string reason;  ///< why this grad_worker_frac
  int64_t layers = 0;
  int64_t separable_layers = 0;
  int64_t block_layers = 0;  ///< with a factor in more than one block
  std::string storage;       ///< fp32, bf16 or fp16
  int64_t left_alone = 0;
  int64_t state_bytes = 0;
  kfac::KfacCounters counters;
  kfac::KfacSeconds seconds;
};

struct AllreduceSummary {
  std::string levels;     ///< `4x2`
  std::string algorithm;  ///< `direct x direct`, by level
  std::string explanation;
  int64_t bytes_per_step = 0;
  double seconds_per_step = 0;          ///< from each message's start, waiting for later ranks included
  double exposed_seconds_per_step = 0;  ///< of that, what training waited for
  int64_t buckets = 0;                  ///< 0: gradients were sent after backward
  int64_t bucket_bytes = 0;
  double bound_seconds = 0;  ///< by the links' rates as measured; 0: nobody measured them

  double hidden_percent() const {
    return seconds_per_step > 0 ? std::max(0.0, 100 * (1 - exposed_seconds_per_step / seconds_per_step)) : 0;
  }
};

struct LossScaleSummary {
  double scale = 0;           ///< at the end
  int64_t skipped_steps = 0;  ///< since the very first
};

struct TrainResult {
  TrainOptions options;
  int world_size = 1;
  int64_t threads = 1;          ///< that split a rank's sums; the most of all ranks
  Shape3 shape{};               ///< of a case; zeros where it is no volume
  int64_t image_edge = 0;       ///< of a case; 0 where it is no image
  int64_t sequence_length = 0;  ///< of a case; 0 where it is no sequence
  int64_t parameters = 0;
  std::string metric_name;

  int64_t budget_bytes = kUnlimitedBytes;
  std::optional<Observation> observed;
  int64_t floor_bytes = 0;
  int64_t peak_bytes = 0;              ///< the largest of all ranks
  BytesByCategory peak_by_category{};  ///< on this rank
  int64_t host_peak_bytes = 0;         ///< the largest of all ranks, like the next
  int64_t disk_peak_bytes = 0;
  int64_t bytes_to_disk = 0;  ///< of the whole run on this rank, like the next
  int64_t bytes_from_disk = 0;
  int64_t rss_peak_bytes = 0;

  std::optional<int64_t> resumed_from_step;  ///< of a checkpoint; what follows is of the steps after it
  std::vector<double> losses;                ///< means over ranks
  std::vector<double> learning_rates;
  std::vector<double> step_seconds;
  std::vector<std::string> step_kinds;
  std::vector<MetricPoint> metric;
  double exposed_copy_seconds = 0;  ///< of the whole run, like the next two
  int64_t bytes_out = 0;
  int64_t bytes_in = 0;
  int64_t replayed_operators = 0;  ///< tensors that were made again instead of copied
  std::string weights_sha256;
  /// Steps after which the weights of all ranks were compared and found equal. Empty in a world of one.
  std::vector<int64_t> replicas_compared_after;
  bool interrupted = false;

  std::optional<Prediction> predicted;  ///< of the most frequent kind of step, when there was a whole one
  std::optional<PagingSummary> paging;  ///< of the same kind, on this rank

  std::optional<LossScaleSummary> loss_scale;  ///< with fp16
  std::optional<KfacSummary> kfac;
  std::optional<AllreduceSummary> allreduce;
  StepRecording recording;

  /// By how much the counted peak exceeded the budget: 0 but for the unified engine.
  int64_t over_budget_bytes() const { return std::max<int64_t>(0, peak_bytes - budget_bytes); }

  /// Median of the steps but the first two (of all, when there are no others).
  double median_step_seconds() const;
};

/// Median step time of `run` as a multiple of `base`'s, over the steps that both did (but the first two, when there are
/// more): the same kinds of step then stand on both sides. 0 when there are none.
double step_time_ratio(const TrainResult& run, const TrainResult& base);

}  // namespace spillway
