/// The results of a training run, in numbers.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/category.h"
#include "kfac/plan/counters.h"
#include "runtime/options/train_options.h"
#include "runtime/recording/session_report.h"
#include "runtime/results/pipeline_summary.h"

namespace spillway {

/// A step that was taken.
struct StepOutcome {
  double loss = 0;  ///< mean over ranks and micro-batches
  double lr = 0;
  double seconds = 0;
  std::string kind;
  double bound_seconds = 0;  ///< minimum time of such a step under the budget; 0 before one was planned
  bool skipped = false;      ///< fp16: gradients overflowed, and nothing was learned
};

/// The metric on the held-out cases, after `step` steps.
struct MetricPoint {
  int64_t step;
  double value;
};

/// The needs of steps without a budget.
struct UnlimitedProfile {
  int64_t steps = 1;        ///< number of observed steps
  int64_t peak_bytes = 0;   ///< maximum over ranks
  int64_t floor_bytes = 0;  ///< the smallest budget that can run every operator of the run; maximum over ranks
  int64_t library_bytes =
      0;  ///< part of both that libraries hold on a GPU, so that it cannot leave; maximum over ranks
  std::string floor_operator;
  int64_t floor_operator_bytes = 0;
  double step_seconds = 0;
  int64_t gradient_bytes = 0;   ///< gradient bytes that this rank shares with the other ranks
  double gradient_seconds = 0;  ///< time of this rank within the allreduces of these gradients

  int64_t tensor_bytes() const { return peak_bytes - library_bytes; }  ///< held by tensors at the peak
};

/// The prediction of the simulation for a kind of step.
struct Prediction {
  std::string kind;
  int64_t peak_bytes = 0;    ///< peak of the run, over all kinds; maximum over ranks
  double step_seconds = 0;   ///< under the schedule in force at the end
  double bound_seconds = 0;  ///< minimum possible under the budget
};

/// The work and state of K-FAC.
struct KfacSummary {
  std::string strategy;
  double grad_worker_frac = 1;
  std::string reason;  ///< reason for this grad_worker_frac
  int64_t layers = 0;
  int64_t separable_layers = 0;
  int64_t block_layers = 0;  ///< layers with a factor in more than one block
  std::string storage;       ///< fp32, bf16 or fp16
  std::string samples;       ///< positions of an update: exact, auto or their least number
  std::string rank;          ///< eigenvectors that are kept of a factor: full, auto or their largest number
  std::vector<kfac::LayerCurvature> plan;  ///< KfacOptions::layer_curvature
  int64_t curvature_delay = 0;             ///< KfacOptions::curvature_delay
  int64_t left_alone = 0;
  int64_t state_bytes = 0;
  kfac::KfacCounters counters;
  kfac::KfacSeconds seconds;
  std::vector<kfac::KfacSeconds> seconds_by_rank;  ///< the seconds of every rank of the run, in their order

  /// The seconds of one phase, over the ranks.
  struct Spread {
    double slowest = 0, mean = 0, fastest = 0;
  };
  /// Returns the spread of a phase over seconds_by_rank; zeros where no rank told them.
  Spread over_ranks(const kfac::KfacPhase& phase) const;
};

/// The allreduce of gradients.
struct AllreduceSummary {
  std::string levels;     ///< `4x2`
  std::string algorithm;  ///< `direct x direct`, by level
  std::string explanation;
  int64_t bytes_per_step = 0;
  double seconds_per_step = 0;          ///< from each message's start, including the wait for later ranks
  double exposed_seconds_per_step = 0;  ///< part of seconds_per_step that training waited for
  int64_t buckets = 0;                  ///< 0: gradients were sent after backward
  int64_t bucket_bytes = 0;
  double bound_seconds = 0;  ///< minimum by the measured rates of the links; 0: not measured
  double hidden_percent() const {
    return seconds_per_step > 0 ? std::max(0.0, 100 * (1 - exposed_seconds_per_step / seconds_per_step)) : 0;
  }
};

/// The loss scale with fp16.
struct LossScaleSummary {
  double scale = 0;           ///< scale at the end
  int64_t skipped_steps = 0;  ///< steps left out since the very first
};

/// The results of a training run.
struct TrainResult {
  TrainOptions options;
  int world_size = 1;
  int64_t threads = 1;          ///< threads that share a rank's sums; maximum over ranks
  Shape3 shape{};               ///< shape of a case; zeros where it is no volume
  int64_t image_edge = 0;       ///< edge of a case; 0 where it is no image
  int64_t sequence_length = 0;  ///< length of a case; 0 where it is no sequence
  int64_t parameters = 0;
  std::string metric_name;

  int64_t budget_bytes = kUnlimitedBytes;
  std::optional<UnlimitedProfile> observed;
  int64_t floor_bytes = 0;
  int64_t peak_bytes = 0;              ///< maximum over ranks
  BytesByCategory peak_by_category{};  ///< on this rank
  int64_t host_peak_bytes = 0;         ///< maximum over ranks, like disk_peak_bytes
  int64_t disk_peak_bytes = 0;
  int64_t bytes_to_disk = 0;  ///< whole run on this rank, like bytes_from_disk
  int64_t bytes_from_disk = 0;
  int64_t rss_peak_bytes = 0;

  std::optional<int64_t> resumed_from_step;  ///< step of the checkpoint; the losses and later fields start after it
  std::vector<double> losses;                ///< means over ranks
  std::vector<double> learning_rates;
  std::vector<double> step_seconds;
  std::vector<std::string> step_kinds;
  std::vector<MetricPoint> metric;
  double exposed_copy_seconds = 0;  ///< whole run, like bytes_out and bytes_in
  int64_t bytes_out = 0;
  int64_t bytes_in = 0;
  int64_t replayed_operators = 0;  ///< tensors that were made again by a replay instead of copied
  std::string weights_sha256;
  /// Steps after which the weights of all ranks were compared and found equal. Empty in a world of one.
  std::vector<int64_t> replicas_compared_after;
  bool interrupted = false;

  std::optional<Prediction> predicted;  ///< prediction for the most frequent kind of step, when there was a whole one
  std::optional<PagingSummary> paging;  ///< paging of that kind of step, on this rank
  std::optional<LossScaleSummary> loss_scale;  ///< with fp16
  std::optional<KfacSummary> kfac;
  std::optional<AllreduceSummary> allreduce;
  std::optional<PipelineSummary> pipeline;  ///< where the model is cut over ranks
  StepRecording recording;

  /// Returns the bytes by which the counted peak exceeded the budget: 0 except for the unified engine.
  int64_t over_budget_bytes() const { return std::max<int64_t>(0, peak_bytes - budget_bytes); }

  /// Returns the median of the steps except the first two (of all steps, when there are no others).
  double median_step_seconds() const;
};

/// A run to compare with the main one.
struct NamedResult {
  std::string name;  ///< name such as `adam` or `unlimited`
  TrainResult result;
};

/// Returns the median step time of `run` as a multiple of the median of `base`, over the steps that both did. The first
/// two are left out when there are more. The same kinds of step then stand on both sides. Returns 0 when there are
/// none.
double step_time_ratio(const TrainResult& run, const TrainResult& base);

}  // namespace spillway
