#include "runtime/training/summarize.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "core/error.h"
#include "ddl/allreduce/explain.h"
#include "ddl/allreduce/tuned_allreduce.h"
#include "ddl/comm/communicator.h"
#include "ddl/torch/gpu_backend.h"
#include "kfac/plan/assignment.h"
#include "runtime/pipeline/summarize_pipeline.h"
#include "runtime/recording/summarize_paging.h"
#include "runtime/training/training_run.h"
#include "swap/schedule/schedule.h"
#include "swap/schedule/step_trace.h"

namespace spillway::runtime {
namespace {

int64_t rss_peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  return 0;
}

AllreduceSummary summarize_allreduce(const TrainingRun& run, ddl::CommunicatorHandle& comm, size_t steps) {
  AllreduceSummary summary;
  const int64_t bytes = run.gradient_bytes();
  const auto* overlapped = run.gradient_allreduce();
  const double count = static_cast<double>(std::max<size_t>(1, steps));
  summary.levels = comm.communicator->levels().shape();
  summary.bytes_per_step = bytes;
  summary.seconds_per_step = run.gradient_seconds() / count;
  summary.exposed_seconds_per_step = run.exposed_gradient_seconds() / count;
  if (overlapped) {
    summary.buckets = overlapped->buckets();
    summary.bucket_bytes = overlapped->bucket_bytes();
  }
  if (comm.gpus->uses_nccl()) {
    summary.algorithm = comm.gpus->decision();
    summary.explanation = str("allreduce on GPUs by ", comm.gpus->decision(), "\n");
    return summary;
  }
  const ddl::Choice choice = comm.allreduce->choice(overlapped ? overlapped->bucket_bytes() : bytes);
  const auto totals = overlapped ? overlapped->allreduces() : comm.allreduce->for_bytes(bytes).totals();
  const int64_t mean_bytes = totals.calls > 0 ? totals.bytes / totals.calls : bytes;
  constexpr auto kElement = ddl::Element::float32;
  summary.algorithm = choice.plan.name();
  summary.explanation =
      describe(explain(choice, mean_bytes / element_bytes(kElement), kElement, comm.allreduce->costs(), totals));
  if (const auto& costs = comm.allreduce->costs())
    summary.bound_seconds = bound_seconds(choice.plan.levels(), bytes, *costs);
  return summary;
}

PipelineSummary summarize_pipeline(TrainingRun& run, const Pipeline& pipeline, const StepRecording& recording) {
  PipelineRun ended{.pipeline = pipeline,
                    .model = *run.pipelined(),
                    .in_waits = run.in_waits(),
                    .times = run.times(),
                    .peak_bytes = run.session().stats().peak_bytes};
  if (recording.step >= 0) ended.recorded_since = recording.began;
  return summarize_pipeline(ended);
}

std::optional<Prediction> predict(const TrainResult& result, const Session& session) {
  std::map<std::string_view, int64_t> counts;
  Prediction prediction;
  for (const std::string& kind : result.step_kinds)
    if (int64_t count = ++counts[kind]; count >= counts[prediction.kind]) prediction.kind = kind;
  const swap::Schedule* schedule = session.schedule(prediction.kind);
  if (!schedule || schedule->predicted_seconds <= 0) return std::nullopt;  // none fits the budget: all on demand
  prediction.step_seconds = schedule->predicted_seconds;
  prediction.bound_seconds = schedule->bound_seconds;
  for (const swap::StepTrace* trace : session.traces())
    if (const swap::Schedule* of_kind = session.schedule(trace->kind))
      prediction.peak_bytes = std::max(prediction.peak_bytes, of_kind->predicted_peak_bytes);
  return prediction;
}

}  // namespace

KfacSummary summarize(const kfac::Kfac& kfac, int64_t world, double fraction, const std::string& reason) {
  KfacSummary summary;
  summary.strategy = kfac::name(kfac.options().strategy);
  const int64_t workers = kfac::gradient_workers(kfac.options().strategy, fraction, world);
  summary.grad_worker_frac = static_cast<double>(workers) / static_cast<double>(world);
  summary.reason = reason;
  summary.layers = std::ssize(kfac.layers());
  for (const auto& [shape, weight, bias] : kfac.layers()) {
    summary.separable_layers += shape.separable;
    summary.block_layers += shape.input_blocks > 1 || shape.output_blocks > 1;
  }
  summary.storage = kfac::name(kfac.options().storage);
  summary.samples = kfac::name(kfac.options().factor_samples);
  summary.rank = kfac::name(kfac.options().rank_in_use());
  summary.plan = kfac.options().layer_curvature;
  summary.curvature_delay = kfac.options().curvature_delay;
  summary.left_alone = std::ssize(kfac.left_alone());
  summary.state_bytes = kfac.memory_usage().held();
  summary.counters = kfac.counters();
  summary.seconds = kfac.seconds();
  return summary;
}

void finish(TrainResult& result, TrainingRun& run, const RunContext& context) {
  Session& session = run.session();
  const SessionStats stats = session.stats();
  result.peak_bytes = max_over_ranks(context.comm, stats.peak_bytes);
  result.peak_by_category = stats.peak_by_category;
  result.host_peak_bytes = max_over_ranks(context.comm, stats.host_peak_bytes);
  result.disk_peak_bytes = max_over_ranks(context.comm, stats.disk_peak_bytes);
  result.bytes_to_disk = stats.bytes_to_disk;
  result.bytes_from_disk = stats.bytes_from_disk;
  result.exposed_copy_seconds = stats.pager.exposed_seconds;
  result.bytes_out = stats.pager.bytes_out;
  result.bytes_in = stats.pager.bytes_in;
  result.replayed_operators = stats.pager.replays;
  result.predicted = predict(result, session);
  if (result.predicted)
    result.paging = summarize_paging(*session.trace(result.predicted->kind), *session.schedule(result.predicted->kind));
  if (result.predicted) result.predicted->peak_bytes = max_over_ranks(context.comm, result.predicted->peak_bytes);
  result.floor_bytes = max_over_ranks(context.comm, session.neediest().bytes());
  if (result.observed) result.floor_bytes = std::max(result.floor_bytes, result.observed->floor_bytes);
  result.rss_peak_bytes = max_over_ranks(context.comm, rss_peak_bytes());
  result.parameters = run.parameters();
  result.threads = max_over_ranks(context.comm, at::get_num_threads());
  if (context.pipeline) result.pipeline = summarize_pipeline(run, *context.pipeline, result.recording);
  if (const ddl::Comm& comm = context.same_weights())
    result.allreduce = summarize_allreduce(run, *comm, result.losses.size());
}

}  // namespace spillway::runtime
